"""A sweep in the terminal: one table per protocol, one row per curve, one column per length."""

from collections.abc import Callable, Sequence
from types import TracebackType

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from rope_jax.evaluation.results import Row
from rope_jax.evaluation.statistics import RELIABLE_UNITS, Estimate
from rope_jax.evaluation.summary import CheckpointSummary, SweepSummary
from rope_jax.evaluation.text import interval_text, perplexity_text, usable_text

_CAPTIONS = {
    "same_tokens": "context length",
    "whole_window": "length of the windows, which are adjacent",
    "sliding": "length of the windows, {stride} tokens apart; the first one is scored whole",
    "per_position": "position in the window; the context length is the end of the column's range",
    "yarn_compat": "length of the windows, {stride} tokens apart; the mean of the windows' means",
}


def caption(protocol: str, stride: int | None) -> str:
    """Return a caption that explains the lengths in a protocol's table."""
    return _CAPTIONS[protocol].format(stride=stride)


class SweepProgress:
    """A progress bar with the time left, over all checkpoints of a sweep."""

    def __init__(self, console: Console, steps: Sequence[int]) -> None:
        self._bar = Progress(
            TextColumn("sweeping", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[now]}", markup=False),
            console=console,
        )
        self._task = self._bar.add_task("", total=None, now="")
        self._steps = steps

    def __enter__(self) -> "SweepProgress":
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:  # fill the bar even if the last checkpoint was skipped
            self._bar.update(self._task, total=self._bar.tasks[self._task].completed)
        self._bar.stop()

    def of_checkpoint(self, step: int) -> Callable[[str, int, int], None]:
        """Return the `progress` function for the sweep of one checkpoint."""
        before = self._bar.tasks[self._task].completed
        left = sum(other >= step for other in self._steps)

        def update(now: str, done: int, total: int) -> None:
            # assume that the remaining checkpoints take as long as this one
            label = f"step {step}, {now}" if len(self._steps) > 1 else now
            self._bar.update(
                self._task, completed=before + done, total=before + total * left, now=label
            )

        return update


def print_tables(console: Console, rows: Sequence[Row], summary: SweepSummary) -> None:
    """Print perplexities by protocol with 95% intervals, and by training step if there are several.

    rows: those of all checkpoints. Only the newest gets intervals and usable lengths.
    """
    newest = summary.newest
    for protocol in dict.fromkeys(row.protocol for row in rows):
        own = [row for row in rows if row.protocol == protocol]
        if summary.earlier:
            console.print(_table_by_step(own))
        console.print(_table([row for row in own if row.step == newest.step], newest))
    has_bits = any(row.bpb is not None for row in rows)
    notes = [
        "each cell: perplexity, half of its 95% interval (by resampling documents), nats per token"
        + (", bits per byte" if has_bits else "")
    ]
    if newest.curves:
        notes.append(
            "usable: the longest length up to which the loss on the same tokens stays within "
            f"{newest.tolerance:g} nats of `trained` at the window of {newest.window} tokens"
        )
    if not all(curve.usable.is_known for curve in newest.curves.values()):
        notes.append(
            "no interval: too few documents to say whether the next length is usable as well"
        )
    for note in notes:
        console.print(note, style="dim", highlight=False)
    if not newest.is_reliable:
        console.print(
            f"intervals are unreliable below {RELIABLE_UNITS} {newest.unit_kind}; this sweep has "
            f"{newest.units}",
            style="yellow",
        )


def _table(rows: Sequence[Row], checkpoint: CheckpointSummary) -> Table:
    """Return the table of one protocol."""
    names = list(dict.fromkeys(row.name for row in rows))
    columns = [row for row in rows if row.name == names[0]]
    protocol, is_by_position = rows[0].protocol, rows[0].protocol == "per_position"
    # position ranges divide the windows' tokens among them; elsewhere each length has its own
    counts = [sum(r.tokens for r in columns)] if is_by_position else [r.tokens for r in columns]
    # whole windows of different lengths rarely cover the same tokens
    tokens = " to ".join(f"{n:,}" for n in sorted({min(counts), max(counts)}))
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        title=Text(f"perplexity, {protocol}: {tokens} tokens of {rows[0].documents} documents"),
        caption=Text(caption(protocol, rows[0].stride)),
        title_justify="left",
        title_style="bold",
        caption_justify="left",
    )
    table.add_column("scaling", no_wrap=True)
    for row in columns:
        heading = f"{row.first_position}-{row.last_position}" if is_by_position else f"{row.length}"
        table.add_column(heading, justify="right", no_wrap=True)
    has_usable = protocol == "same_tokens" and bool(checkpoint.curves)
    if has_usable:
        table.add_column("usable", justify="right", no_wrap=True)
    for name in names:
        cells = [_cell(row) for row in rows if row.name == name]
        if has_usable:
            usable = checkpoint.curves[name].usable
            cells.append(Text(usable_text(**usable._asdict())))
        table.add_row(Text(name), *cells)
    if has_usable and checkpoint.perplexity_at_window is not None:
        # dropping all but the last window gives this, however long the text
        truncated = f"{checkpoint.perplexity_at_window:.2f}"
        texts = [truncated if row.length >= checkpoint.window else "" for row in columns]
        table.add_row("truncation", *texts, "", style="dim")
    return table


def _table_by_step(rows: Sequence[Row]) -> Table:
    """Return one protocol's perplexities with one row per scaling and checkpoint."""
    lengths = sorted({row.last_position for row in rows})
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        title=Text(f"perplexity by training step, {rows[0].protocol}"),
        title_justify="left",
        title_style="bold",
    )
    for heading in ("scaling", "step", *(f"{n}" for n in lengths)):
        table.add_column(heading, justify="left" if heading == "scaling" else "right", no_wrap=True)
    for name in dict.fromkeys(row.name for row in rows):
        steps = sorted({row.step for row in rows if row.name == name})
        for step in steps:
            nll = {r.last_position: r.nll for r in rows if (r.name, r.step) == (name, step)}
            cells = [perplexity_text(nll[n]) if n in nll else "" for n in lengths]
            table.add_row(Text(name if step == steps[0] else ""), f"{step}", *cells)
    return table


def _cell(row: Row) -> Text:
    """Return a row's perplexity, its interval, nats and bits, one below the other."""
    interval = interval_text(Estimate(value=row.nll, low=row.ci_low, high=row.ci_high))
    details = [interval, f"{row.nll:.3f}", *([] if row.bpb is None else [f"{row.bpb:.3f}"])]
    return Text.assemble(perplexity_text(row.nll), *((f"\n{line}", "dim") for line in details))
