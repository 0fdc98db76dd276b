"""A sweep in the terminal: one table a protocol, a row a curve, a column a length."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Self

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from rope_jax.evaluation.results import Row

_CAPTIONS = {
    "same_tokens": "context length",
    "whole_window": "length of the windows, side by side",
    "sliding": "length of the windows, {stride} tokens apart; the first one counts whole",
    "per_position": "position in the window, read at the length that ends the column",
    "yarn_compat": "length of the windows, {stride} tokens apart; the mean of their means",
}


def caption(protocol: str, stride: int | None) -> str:
    """What the lengths of a protocol's table are."""
    return _CAPTIONS[protocol].format(stride=stride)


class SweepProgress:
    """One bar with the time left, over all checkpoints of a sweep."""

    def __init__(self, console: Console, steps: Sequence[int]) -> None:
        columns = (TextColumn("sweeping"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, TextColumn("{task.fields[now]}"), console=console)
        self._task = self._bar.add_task("", total=None, now="")
        self._steps = steps

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:  # the last checkpoint may have been left out
            self._bar.update(self._task, total=self._bar.tasks[self._task].completed)
        self._bar.stop()

    def of(self, step: int) -> Callable[[str, int, int], None]:
        """What the sweep of one checkpoint tells its progress to."""
        before = self._bar.tasks[self._task].completed
        left = sum(other >= step for other in self._steps)

        def tell(now: str, done: int, total: int) -> None:
            # those to come take as long as this one, for all that is known
            at = f"step {step}, {now}" if len(self._steps) > 1 else now
            whole = before + total * left
            self._bar.update(self._task, completed=before + done, total=whole, now=at)

        return tell


def tables(console: Console, rows: Sequence[Row], about: dict[str, Any]) -> None:
    """Print perplexities by protocol with 95% intervals, and how they came about in training.

    about: what `summary` returned of the newest checkpoint, those of others under "earlier".
    """
    newest = [row for row in rows if row.step == about["step"]]
    for protocol in dict.fromkeys(row.protocol for row in rows):
        if about["earlier"]:
            console.print(_by_step([row for row in rows if row.protocol == protocol]))
        console.print(_table([row for row in newest if row.protocol == protocol], about))
    console.print(
        "each cell: perplexity, half of its 95% interval (by resampling documents), nats a token"
        + (", bits a byte" if any(row.bpb is not None for row in rows) else ""),
        style="dim",
        highlight=False,
    )
    if about["curves"]:
        console.print(
            f"usable: the longest length up to which the same tokens stay within "
            f"{about['tolerance_nats']:g} nats of `trained` at the window of "
            f"{about['window']} tokens",
            style="dim",
            highlight=False,
        )
    if not about["reliable"]:
        console.print(
            f"intervals are unreliable below 20 documents; here: {about['documents']}",
            style="yellow",
        )


def _table(rows: Sequence[Row], about: dict[str, Any]) -> Table:
    """Rows of one protocol."""
    names = list(dict.fromkeys(row.name for row in rows))
    columns = [row for row in rows if row.name == names[0]]
    by_position = rows[0].protocol == "per_position"
    # the buckets of positions part the windows; elsewhere each length has its own
    counts = [sum(r.tokens for r in columns)] if by_position else [r.tokens for r in columns]
    # whole windows of every length rarely cover the same tokens
    tokens = " to ".join(f"{n:,}" for n in sorted({min(counts), max(counts)}))
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        title=f"perplexity, {rows[0].protocol}: {tokens} tokens of {rows[0].documents} documents",
        caption=caption(rows[0].protocol, rows[0].stride),
        title_justify="left",
        title_style="bold",
        caption_justify="left",
    )
    table.add_column("scaling", no_wrap=True)
    for row in columns:
        heading = f"{row.first_position}-{row.last_position}" if by_position else f"{row.length}"
        table.add_column(heading, justify="right", no_wrap=True)
    has_summary = rows[0].protocol == "same_tokens" and about["curves"]
    if has_summary:
        table.add_column("usable", justify="right", no_wrap=True)
    for name in names:
        cells = [_cell(row) for row in rows if row.name == name]
        if has_summary:
            cells.append(_usable(about["curves"][name]))
        table.add_row(name, *cells)
    if has_summary:
        # dropping all but the last window of the text gives this, whatever its length
        kept = f"{about['perplexity_at_window']:.2f}"
        cells = [kept if row.length >= about["window"] else "" for row in columns]
        table.add_row("truncation", *cells, "", style="dim")
    return table


def _by_step(rows: Sequence[Row]) -> Table:
    """Perplexity of one protocol: a row a checkpoint, by scaling."""
    lengths = sorted({row.last_position for row in rows})
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        title=f"perplexity by training step, {rows[0].protocol}",
        title_justify="left",
        title_style="bold",
    )
    for heading in ("scaling", "step", *(f"{n}" for n in lengths)):
        table.add_column(heading, justify="left" if heading == "scaling" else "right", no_wrap=True)
    for name in dict.fromkeys(row.name for row in rows):
        steps = sorted({row.step for row in rows if row.name == name})
        for step in steps:
            found = {r.last_position: r.nll for r in rows if (r.name, r.step) == (name, step)}
            cells = [perplexity_text(found[n]) if n in found else "" for n in lengths]
            table.add_row(name if step == steps[0] else "", f"{step}", *cells)
    return table


def _cell(row: Row) -> str:
    half = ""
    if math.isfinite(row.ci_low):
        half = f"±{(math.exp(min(row.ci_high, 700)) - math.exp(min(row.ci_low, 700))) / 2:.2g}"
    bits = "" if row.bpb is None else f"\n[dim]{row.bpb:.3f}[/]"
    return f"{perplexity_text(row.nll)}\n[dim]{half}[/]\n[dim]{row.nll:.3f}[/]{bits}"


def perplexity_text(nll: float) -> str:
    """As a power of e where it is too large to read."""
    if nll > math.log(1e5):
        return f"e^{nll:.1f}"
    return f"{math.exp(nll):.2f}" if nll < math.log(100) else f"{math.exp(nll):,.0f}"


def usable_text(length: int | None, is_last: bool, is_known: bool) -> str:
    """A usable length; "–" where there is no interval at the window, so that nothing is known."""
    if length is None:
        return "none" if is_known else "–"
    return f"{'≥ ' if is_last or not is_known else ''}{length:,}"


def _usable(curve: dict[str, Any]) -> str:
    keys = "usable_length", "usable_length_is_last_tested", "usable_length_is_known"
    return usable_text(*(curve[key] for key in keys))
