"""What a terminal shows of comparisons and sweeps: progress, tables, and what explains them."""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from rich.console import Console
from rich.progress import TaskProgressColumn
from rich.text import Text

from rope_jax.comparison.curves import Comparison
from rope_jax.comparison.groups import describe_settings
from rope_jax.console import print_warning, print_wrapped, progress_bar, time_left
from rope_jax.errors import printable
from rope_jax.protocols import BASELINE, PROTOCOLS
from rope_jax.report import measured
from rope_jax.report.measured import (
    Plotted,
    loss_cells,
    measured_table,
    plotted_by,
    shown_by,
)
from rope_jax.report.table import Line, Table, print_table
from rope_jax.report.tasks import print_tasks
from rope_jax.results.statistics import RELIABLE_UNITS
from rope_jax.results.summary import CheckpointSummary
from rope_jax.results.tasks import NO_TASKS, TaskTables

_SECONDS_TO_FIRST_LINE, _SECONDS_BETWEEN_LINES = 10, 60


class SweepProgress(AbstractContextManager["SweepProgress"]):
    """A progress bar with the time left, over all checkpoints of a sweep."""

    def __init__(self, console: Console, steps: Sequence[int]) -> None:
        self._bar = progress_bar(console, TaskProgressColumn)
        self._task = self._bar.add_task("sweeping", total=None, now="")
        self._console, self._steps = console, steps
        self._next_line = float(_SECONDS_TO_FIRST_LINE)

    def __exit__(self, *error: object) -> None:
        if error[0] is None:  # fill the bar even if the last checkpoint was skipped
            self._bar.update(self._task, total=self._bar.tasks[self._task].completed)
        if self._bar.live.is_started:
            self._bar.stop()

    def of_checkpoint(self, step: int) -> Callable[[str, float, float], None]:
        """Return the `progress` function for the sweep of one checkpoint."""
        before = self._bar.tasks[self._task].completed
        left = sum(other >= step for other in self._steps)

        def update(now: str, done: float, total: float) -> None:
            # assume that the remaining checkpoints take as long as this one
            label = f"step {step}, {now}" if len(self._steps) > 1 else now
            if done < total and not self._bar.live.is_started:
                self._bar.start()
            whole = before + total * left
            self._bar.update(self._task, completed=before + done, total=whole, now=label)
            # lines where the bar is not drawn, such as in a file: after 10 s, then each minute
            task = self._bar.tasks[self._task]
            elapsed = task.elapsed or 0.0
            if self._bar.disable and done < total and elapsed >= self._next_line:
                self._next_line = elapsed + _SECONDS_BETWEEN_LINES
                self._console.print(f"{label}; {task.percentage:.0f}% done{time_left(task)}")

        return update


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


def print_comparison(console: Console, comparison: Comparison) -> None:
    """Print a line per curve of the first protocol, what has room beside it, and the notes."""
    protocol = comparison.protocols[0]
    plotted = plotted_by(protocol, comparison.newest)
    groups = list(dict.fromkeys(curve.group for curve in plotted))
    alike = len({curve.name for curve in plotted}) == 1
    has_headings = 1 < len(groups) < len(plotted)
    table = _with_details(comparison, protocol, plotted, "above truncation")
    lines, above = [], None
    for curve, line in zip(plotted, table.lines, strict=True):
        label = curve.group.label
        if has_headings:
            heading = "" if curve.group is above else label
            lines.append(line._replace(labels=(f"  {curve.name}",), heading=heading))
        else:
            name = curve.name if len(groups) == 1 else label if alike else curve.label
            lines.append(line._replace(labels=(name,)))
        above = curve.group
    names, title, of = ("scaling",), measured.quantity_text(comparison, protocol), " of "
    if len(groups) == 1 or comparison.how.show == "above_truncation":
        title, of = f"{title}{of}{printable(groups[0].label)}", "; "
    if len(groups) > 1 and alike:
        names, title = ("runs",), f"{title}{of}{printable(next(iter(plotted)).name)}"
    print_wrapped(console, f"{title}; {protocol}", "bold")
    over = f" over {measured.sampling_text(comparison)}"
    table = replace(table, labels=names, lines=lines)
    legend, details = print_table(console, table, over=over, file="comparison.md")
    for group in groups:
        if group.settings:
            text = describe_settings(group.settings, briefly=True)
            console.print(Text.assemble(printable(group.label), (f": {text}", "dim")))
    if "above truncation" in details:
        whose = " of the same runs" if len(groups) > 1 else ""
        legend.append(f"above truncation{whose}: nats per token at {_longest(plotted):,} tokens")
    if measured.has_single_seeds(comparison) and any("the 95% interval" in note for note in legend):
        legend.append("one seed says nothing about other seeds")
    if legend:
        print_wrapped(console, "; ".join(legend), "dim")
    for remark in comparison.remarks:
        print_wrapped(console, remark, "dim")
    for note in comparison.notes:
        print_wrapped(console, note, "yellow")


def _longest(plotted: Plotted) -> int:
    return max(length for points in plotted.values() for length in points)


def _with_details(comparison: Comparison, protocol: str, plotted: Plotted, *headings: str) -> Table:
    """Return the table with losses above truncation at the longest length, and with blow-ups."""
    table, longest = measured_table(comparison, protocol), _longest(plotted)
    found = [points.get(longest) for points in plotted.values()]
    above = [None if point is None else point.above_own for point in found]
    if not any(above):
        return table
    columns = {
        "above truncation": loss_cells(above, "above_truncation"),
        "blow-up": loss_cells(above),
    }
    if comparison.how.show == "above_truncation":  # at every length
        del columns["above truncation"]
    shown = {heading: columns[heading] for heading in headings if heading in columns}
    lines = [
        line._replace(cells=[*line.cells, *more])
        for line, *more in zip(table.lines, *shown.values(), strict=True)
    ]
    return replace(table, lines=lines, details=(*table.details, *shown))


def print_sweep(
    console: Console,
    comparison: Comparison,
    newest: CheckpointSummary,
    tasks: TaskTables = NO_TASKS,
) -> None:
    """Print one table per protocol and task with one line per curve, and what explains them.

    comparison: by `compare_checkpoints`. Only the newest checkpoint gets intervals and marks, and
    in a wide console usable lengths, losses above truncation and blow-ups.
    """
    notes: dict[str, None] = {}
    for protocol in comparison.protocols:
        if len(comparison.newest) < len(comparison.curves):
            _print_by_step(console, comparison, protocol)
        notes |= dict.fromkeys(_print_protocol(console, comparison, newest, protocol))
        console.print()
    if notes:
        print_wrapped(console, "; ".join(notes), "dim")
    if newest.unit_kind == "blocks":
        blocks = measured.units_text(newest.units, newest.documents)
        text = f"intervals resample {blocks}, more than {newest.distance:,} tokens apart: they hold"
        print_wrapped(console, f"{text} for these documents, not for others", "dim")
    if not newest.is_reliable:
        text = f"intervals are unreliable below {RELIABLE_UNITS} {newest.unit_kind}; this sweep has"
        text += f" {newest.units}: a larger max_documents, more test text or shorter lengths give"
        print_wrapped(console, f"{text} more", "yellow")
    print_tasks(console, newest, tasks, comparison.how.labels)


def _print_protocol(
    console: Console, comparison: Comparison, checkpoint: CheckpointSummary, protocol: str
) -> list[str]:
    """Print the table of one protocol, and return what explains its signs."""
    plotted = plotted_by(protocol, comparison.newest)
    points = {p.last_position: p for own in plotted.values() for p in own.values()}
    counts = [point.tokens for point in points.values()]
    if PROTOCOLS[protocol].by_position:  # the positions divide the windows' tokens among them
        counts = [sum(counts)]
    # whole windows of different lengths rarely cover the same tokens
    tokens = " to ".join(f"{n:,}" for n in sorted({min(counts), max(counts)}))
    point = next(iter(points.values()))
    what = f"{measured.quantity_text(comparison, protocol)} by"
    what += f" {measured.caption(protocol, point.stride)}"
    title = f"{what}; {protocol}, {tokens} tokens of {measured.documents_text(point.documents)}"
    print_wrapped(console, title, "bold")
    table = _with_details(comparison, protocol, plotted, "above truncation", "blow-up")
    notes, details = print_table(console, table)
    usable = {curve.name: curve.usable for curve in plotted if curve.usable is not None}
    if protocol != BASELINE or not usable:
        return notes
    if "usable" not in details:
        by_text: dict[str, list[str]] = {}
        for name, length in usable.items():
            by_text.setdefault(measured.usable_text(length), []).append(name)
        most = max(by_text, key=lambda text: len(by_text[text]))
        shown = [f"{', '.join(own)} {text}" for text, own in by_text.items() if text != most]
        shown.append(f"{'all others' if shown else 'all curves'} {most}")
        print_wrapped(console, f"usable: {'; '.join(shown)}")
    notes.append(f"truncation: only the last {checkpoint.window:,} tokens are kept")
    notes.append(f"usable: within {checkpoint.tolerance:g} nats of truncation")
    if not all(length.is_known for length in usable.values()):
        kind = checkpoint.unit_kind
        alone = f"by the values alone, with fewer than {RELIABLE_UNITS} {kind}"
        few = f"too few {kind} for one at the next length"
        notes.append(f"no interval: {few if checkpoint.is_reliable else alone}")
    longest = f"{_longest(plotted):,} tokens"
    if "above truncation" in details:
        notes.append(f"above truncation: nats per token at {longest}")
    if "blow-up" in details:
        notes.append(f"blow-up at {longest}: perplexity divided by that of truncation")
    return notes


def _print_by_step(console: Console, comparison: Comparison, protocol: str) -> None:
    names = list(dict.fromkeys(curve.name for curve in comparison.curves))
    curves = sorted(comparison.curves, key=lambda c: (names.index(c.name), c.step))
    plotted, show = plotted_by(protocol, curves), shown_by(comparison, protocol)
    lengths = sorted({n for points in plotted.values() for n in points})
    columns = [
        loss_cells((measured.loss(points.get(n), show) for points in plotted.values()), show)
        for n in lengths
    ]
    lines, above = [], None
    for curve, *cells in zip(plotted, *columns, strict=True):
        shown = [cell._replace(interval="") for cell in cells]
        heading = "" if curve.name == above else curve.name
        lines.append(Line((f"  step {curve.step:,}",), shown, heading=heading))
        above = curve.name
    what = measured.quantity_text(comparison, protocol)
    print_wrapped(console, f"{what} by training step; {protocol}", "bold")
    headings = tuple(f"{n:,}" for n in lengths)
    print_table(console, Table("", "", ("scaling",), headings, lines))
    console.print()
