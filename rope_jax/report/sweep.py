"""A sweep of one run, as text: its tables in the terminal, results.md and results.tex."""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

from rich.console import Console
from rich.progress import TaskProgressColumn

from rope_jax.comparison.curves import Comparison, compare_checkpoints
from rope_jax.config.presentation import Show
from rope_jax.console import (
    describe_duration,
    print_warning,
    print_wrapped,
    progress_bar,
)
from rope_jax.protocols import BASELINE, PROTOCOLS
from rope_jax.report.measured import estimate_cell, measured_table, protocols_of
from rope_jax.report.table import Cell, Line, Table, escape_markdown, format_latex, format_markdown
from rope_jax.report.tasks import print_tasks, task_tables
from rope_jax.report.terminal import print_table
from rope_jax.report.text import (
    QUANTITIES,
    caption,
    documents_text,
    units_text,
    usable_text,
    value_text,
)
from rope_jax.results.rows import Row
from rope_jax.results.statistics import RELIABLE_UNITS
from rope_jax.results.summary import CheckpointSummary, CurveSummary, SweepSummary
from rope_jax.results.tasks import NO_TASKS, TaskTables

_SECONDS_BETWEEN_LINES = 60


class SweepProgress(AbstractContextManager["SweepProgress"]):
    """A progress bar with the time left, over all checkpoints of a sweep."""

    def __init__(self, console: Console, steps: Sequence[int]) -> None:
        self._bar = progress_bar(console, TaskProgressColumn())
        self._task = self._bar.add_task("sweeping", total=None, now="")
        self._console, self._steps = console, steps
        self._began, self._printed = time.perf_counter(), 0.0

    def __exit__(self, *error: object) -> None:
        if error[0] is None:  # fill the bar even if the last checkpoint was skipped
            self._bar.update(self._task, total=self._bar.tasks[self._task].completed)
        if self._bar.live.is_started:
            self._bar.stop()

    def of_checkpoint(self, step: int) -> Callable[[str, int, int], None]:
        """Return the `progress` function for the sweep of one checkpoint."""
        before = self._bar.tasks[self._task].completed
        left = sum(other >= step for other in self._steps)

        def update(now: str, done: int, total: int) -> None:
            # assume that the remaining checkpoints take as long as this one
            label = f"step {step}, {now}" if len(self._steps) > 1 else now
            elapsed = time.perf_counter() - self._began
            # a line a minute where the bar cannot be redrawn, such as in a file
            is_time = elapsed - self._printed >= _SECONDS_BETWEEN_LINES
            if not self._console.is_terminal and 0 < done < total and is_time:
                self._printed = elapsed
                share = (before + done) / (before + total * left)
                left_over = describe_duration(elapsed * (1 - share) / share)
                self._console.print(f"{label}: {share:.0%} of the tokens read, {left_over} left")
            if done < total and not self._bar.live.is_started:
                self._bar.start()
            self._bar.update(
                self._task, completed=before + done, total=before + total * left, now=label
            )

        return update


def results_texts(
    rows: Sequence[Row], checkpoint: CheckpointSummary, tasks: TaskTables, show: Show
) -> tuple[str, str]:
    """Return results.md and results.tex: a table for each protocol and task of a checkpoint."""
    comparison = compare_checkpoints(rows, [checkpoint], show=show)
    tables = [measured_table(comparison, protocol) for protocol in protocols_of(comparison)]
    tables += task_tables(checkpoint, tasks)
    title = escape_markdown(f"{checkpoint.run}, step {checkpoint.step}")
    markdown = "\n".join([f"# {title}\n", *map(format_markdown, tables)])
    return markdown, "\n".join(map(format_latex, tables))


def print_sweep(
    console: Console,
    rows: Sequence[Row],
    summary: SweepSummary,
    show: Show = "perplexity",
    tasks: TaskTables = NO_TASKS,
) -> None:
    """Print one table per protocol and task with one line per curve, and what explains them.

    rows: those of all checkpoints. Only the newest gets intervals and marks, and in a wide console
    usable lengths, gains and blow-ups.
    """
    newest = summary.newest
    comparison = compare_checkpoints(rows, summary.checkpoints, show=show)
    notes: dict[str, None] = {}
    for protocol in protocols_of(comparison):
        own = [row for row in rows if row.protocol == protocol]
        if summary.earlier:
            _print_by_step(console, own, comparison.show)
        of_newest = [row for row in own if row.step == newest.step]
        notes |= dict.fromkeys(_print_protocol(console, of_newest, comparison, newest))
        console.print()
    if notes:
        print_wrapped(console, "; ".join(notes), "dim")
    if newest.unit_kind == "blocks":
        print_wrapped(
            console,
            f"intervals resample {units_text(newest.units, newest.documents)}, more than "
            f"{newest.distance:,} tokens apart: they hold for these documents, not for others",
            "dim",
        )
    if not newest.is_reliable:
        print_wrapped(
            console,
            f"intervals are unreliable below {RELIABLE_UNITS} {newest.unit_kind}; this sweep has "
            f"{newest.units}: a larger max_documents, more test text or shorter lengths give more",
            "yellow",
        )
    print_tasks(console, newest, tasks)


def warn_of_chance(console: Console, nll: float, vocab_size: int) -> None:
    """Warn if a model's NLL at its window, in nats, is above that of equal probabilities, ln V."""
    chance = math.log(vocab_size)
    if nll > chance:
        print_warning(
            console,
            f"{nll:.2f} nats per token at the window are worse than chance, ln V = {chance:.2f} "
            f"for V = {vocab_size:,}: the tokenizer and the weights may not belong together, or "
            "the model is untrained",
        )


def _print_protocol(
    console: Console, rows: Sequence[Row], comparison: Comparison, checkpoint: CheckpointSummary
) -> list[str]:
    """Print the table of one protocol, and return what explains its signs."""
    table = measured_table(comparison, rows[0].protocol)
    curves: Mapping[str, CurveSummary] = {}
    if rows[0].protocol == BASELINE and checkpoint.curves:
        curves = checkpoint.curves
        longest = max(n for curve in curves.values() for n in curve.gain_over_truncation)
        lines = []
        for line in table.lines:
            curve = curves[line.labels[-1]]
            gain = estimate_cell(curve.gain_over_truncation.get(longest))
            more = gain, estimate_cell(curve.blow_up.get(longest), "{:.3g}".format)
            lines.append(line._replace(details=[*line.details, *more]))
        details = (*table.details, "gain", "blow-up")
        table = dataclasses.replace(table, lines=lines, details=details)
    protocol = rows[0].protocol
    counts = [row.tokens for row in {row.last_position: row for row in rows}.values()]
    if PROTOCOLS[protocol].by_position:  # the positions divide the windows' tokens among them
        counts = [sum(counts)]
    # whole windows of different lengths rarely cover the same tokens
    tokens = " to ".join(f"{n:,}" for n in sorted({min(counts), max(counts)}))
    what = f"{QUANTITIES[comparison.show]} by {caption(protocol, rows[0].stride)}"
    title = f"{what}; {protocol}, {tokens} tokens of {documents_text(rows[0].documents)}"
    print_wrapped(console, title, "bold")
    notes, details = print_table(console, table, file="results.csv")
    if curves and "usable" not in details:
        print_wrapped(console, f"usable: {_usable(curves)}")
    if curves:
        notes.append(f"truncation: only the last {checkpoint.window:,} tokens are kept")
        notes.append(f"usable: within {checkpoint.tolerance:g} nats of truncation")
    if not all(curve.usable.is_known for curve in curves.values()):
        kind = checkpoint.unit_kind
        alone = f"by the values alone, with fewer than {RELIABLE_UNITS} {kind}"
        few = f"too few {kind} for one at the next length"
        notes.append(f"no interval: {few if checkpoint.is_reliable else alone}")
    if "gain" in details:
        notes.append("gain: nats below truncation at the longest")
    if "blow-up" in details:
        notes.append("blow-up: perplexity there over that of truncation")
    return notes


def _usable(curves: Mapping[str, CurveSummary]) -> str:
    """List the curves by usable length, such as "yarn-auto 512; all others 128"."""
    by_text: dict[str, list[str]] = {}
    for name, curve in curves.items():
        by_text.setdefault(usable_text(curve.usable), []).append(name)
    most = max(by_text, key=lambda text: len(by_text[text]))
    shown = [f"{', '.join(own)} {text}" for text, own in by_text.items() if text != most]
    return "; ".join([*shown, f"{'all others' if shown else 'all curves'} {most}"])


def _print_by_step(console: Console, rows: Sequence[Row], show: Show) -> None:
    lengths = sorted({row.last_position for row in rows})
    lines = []
    for name in dict.fromkeys(row.name for row in rows):
        for place, step in enumerate(sorted({row.step for row in rows if row.name == name})):
            own = {row.last_position: row for row in rows if (row.name, row.step) == (name, step)}
            texts = [value_text(own[n].nll, own[n].bpb, show) if n in own else "" for n in lengths]
            heading = name if place == 0 else ""
            lines.append(Line((f"  step {step:,}",), [*map(Cell, texts)], heading=heading))
    print_wrapped(console, f"{QUANTITIES[show]} by training step; {rows[0].protocol}", "bold")
    columns = tuple(f"{n:,}" for n in lengths)
    print_table(console, Table("", "", ("scaling",), columns, lines), file="results.csv")
    console.print()
