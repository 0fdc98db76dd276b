"""A sweep in the terminal: one table per protocol, one line per curve, one column per length."""

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from types import TracebackType
from typing import NamedTuple

from rich.console import Console
from rich.progress import TaskProgressColumn
from rich.text import Text

from rope_jax.config.presentation import Show
from rope_jax.console import (
    Column,
    describe_duration,
    print_columns,
    print_warning,
    print_wrapped,
    progress_bar,
    table_width,
)
from rope_jax.protocols import BASELINE, PROTOCOLS
from rope_jax.report.text import (
    QUANTITIES,
    caption,
    half_width,
    half_width_text,
    interval_text,
    usable_text,
    value_text,
)
from rope_jax.results.rows import Row
from rope_jax.results.statistics import RELIABLE_UNITS, Estimate, perplexity
from rope_jax.results.summary import CheckpointSummary, CurveSummary, SweepSummary

_BEST, _BELOW = "•", "*"
# Tried in this order until a table fits: how intervals are written (" ±0.57", "±0.57", "±0.6"), and
# how many of usable length, gain and blow-up follow.
_FORMS = ((0, 3), (0, 2), (0, 1), (1, 1), (0, 0), (1, 0), (2, 0))


_SECONDS_BETWEEN_LINES = 60


class SweepProgress:
    """A progress bar with the time left, over all checkpoints of a sweep."""

    def __init__(self, console: Console, steps: Sequence[int]) -> None:
        self._bar = progress_bar(console, TaskProgressColumn())
        self._task = self._bar.add_task("sweeping", total=None, now="")
        self._console, self._steps = console, steps
        self._began = self._printed = time.perf_counter()

    def __enter__(self) -> "SweepProgress":
        return self  # the bar appears once there is something to measure

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:  # fill the bar even if the last checkpoint was skipped
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
            if not self._console.is_terminal and 0 < done < total:
                self._print(label, float(before + done), float(before + total * left))
            if done < total and not self._bar.live.is_started:
                self._bar.start()
            self._bar.update(
                self._task, completed=before + done, total=before + total * left, now=label
            )

        return update

    def _print(self, label: str, done: float, total: float) -> None:
        """Print a line a minute where the bar cannot be redrawn, such as in a file."""
        now = time.perf_counter()
        if now - self._printed < _SECONDS_BETWEEN_LINES:
            return
        self._printed = now
        left = describe_duration((now - self._began) * (total - done) / done)
        self._console.print(f"{label}: {done / total:.0%} of the tokens read, {left} left")


def print_tables(
    console: Console, rows: Sequence[Row], summary: SweepSummary, show: Show = "perplexity"
) -> None:
    """Print one table per protocol with one line per curve, and what explains them.

    The best value of a column is bold and has a mark, and so has what is below truncation by more
    than its interval. A wide console also gets each curve's usable length, gain and blow-up; in a
    narrow one, intervals are written more briefly, and left out where there is no room.

    rows: those of all checkpoints. Only the newest gets intervals and marks. show: what is listed;
    without the bytes per token, bits per byte turn into nats per token.
    """
    if show == "bits_per_byte" and any(row.bpb is None for row in rows):
        show = "nats"
    newest = summary.newest
    notes: dict[str, None] = {}
    for protocol in dict.fromkeys(row.protocol for row in rows):
        own = [row for row in rows if row.protocol == protocol]
        if summary.earlier:
            _print_by_step(console, own, show)
        of_newest = [row for row in own if row.step == newest.step]
        notes |= dict.fromkeys(_print_protocol(console, of_newest, newest, show))
        console.print()
    if notes:
        print_wrapped(console, "; ".join(notes), "dim")
    if newest.unit_kind == "blocks":
        counts = [row.units for row in rows if row.step == newest.step]
        blocks = describe_blocks(min(counts), max(counts), newest.documents, newest.distance)
        print_wrapped(console, blocks, "dim")
    if not newest.is_reliable:
        print_wrapped(
            console,
            f"intervals are unreliable below {RELIABLE_UNITS} {newest.unit_kind}; this sweep has "
            f"{newest.units}: a larger max_documents, more test text or shorter lengths give more",
            "yellow",
        )


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


def describe_blocks(fewest: int, most: int, documents: int, distance: int) -> str:
    """Say that intervals resample blocks, because too few documents are long enough.

    fewest, most: blocks, over the protocols. distance: in tokens. Blocks of one document are
    further apart than that.
    """
    whose = f"{documents:,} documents" if documents != 1 else "1 document"
    blocks = f"{most:,}" if fewest == most else f"{fewest:,} to {most:,}"
    these = "these documents" if documents != 1 else "this document"
    return (
        f"intervals resample {blocks} blocks of {whose}, more than {distance:,} tokens apart: "
        f"they hold for {these}, not for others"
    )


class _Cell(NamedTuple):
    """A curve's value at one length."""

    value: str
    intervals: tuple[str, str, str]
    """Texts for its interval, the widest first."""
    marks: str = ""

    def text(self, form: int | None, room: int) -> Text:
        """Return the cell with its interval in one form, and room for marks; None: without."""
        interval = "" if form is None else self.intervals[form]
        style = "bold" if _BEST in self.marks else ""
        return Text.assemble((self.value, style), (interval, "dim"), self.marks.ljust(room))


class _Length(NamedTuple):
    """A column before its form is chosen: one cell per line; None: there is nothing."""

    heading: str
    cells: Sequence[_Cell | None]

    @property
    def widest_interval(self) -> int:
        """The width of its widest interval in the shortest form."""
        return max(len(cell.intervals[-1]) for cell in self.cells if cell)

    def column(self, form: int | None) -> Column:
        """Return the column with intervals in one form; None: without."""
        room = max(len(cell.marks) for cell in self.cells if cell)
        texts = [cell.text(form, room) if cell else Text() for cell in self.cells]
        return Column(self.heading + " " * room, texts)


def _print_protocol(
    console: Console, rows: Sequence[Row], checkpoint: CheckpointSummary, show: Show
) -> list[str]:
    """Print the table of one protocol, and return what explains its signs."""
    names = list(dict.fromkeys(row.name for row in rows))
    # curves are compared with truncation on the same tokens
    curves = checkpoint.curves if rows[0].protocol == BASELINE else {}
    lengths = _lengths(rows, names, checkpoint, curves, show)
    last_line = ["truncation"] if curves else []
    labels = Column("scaling", [Text(name) for name in (*names, *last_line)], "left")
    details = _details(list(curves.values()))

    def columns_of(form: int, count: int, bare: Collection[int]) -> list[Column]:
        shown = (length.column(None if i in bare else form) for i, length in enumerate(lengths))
        return [labels, *shown, *details[:count]]

    for form, count in _FORMS:
        columns, gap = columns_of(form, count, ()), 1 if form else 2
        if table_width(columns, gap) <= console.width:
            break
    bare: list[int] = []  # without intervals, because the console is too narrow for them
    while table_width(columns, gap) > console.width and len(bare) < len(lengths):
        left = [i for i in range(len(lengths)) if i not in bare]
        bare.append(max(left, key=lambda i: lengths[i].widest_interval))  # of several, the first
        columns = columns_of(form, count, bare)
    print_wrapped(console, _title(rows, show), "bold")
    print_columns(console, columns, gap=gap)
    if curves and not count:
        print_wrapped(console, f"usable: {_usable(curves)}")
    return _notes(lengths, bare, checkpoint, curves, count)


def _title(rows: Sequence[Row], show: Show) -> str:
    protocol = rows[0].protocol
    counts = [row.tokens for row in {row.last_position: row for row in rows}.values()]
    if PROTOCOLS[protocol].by_position:  # the positions divide the windows' tokens among them
        counts = [sum(counts)]
    # whole windows of different lengths rarely cover the same tokens
    tokens = " to ".join(f"{n:,}" for n in sorted({min(counts), max(counts)}))
    documents = f"{rows[0].documents:,} document{'s' * (rows[0].documents != 1)}"
    what = f"{QUANTITIES[show]} by {caption(protocol, rows[0].stride)}"
    return f"{what}; {protocol}, {tokens} tokens of {documents}"


def _lengths(
    rows: Sequence[Row],
    names: Sequence[str],
    checkpoint: CheckpointSummary,
    curves: Mapping[str, CurveSummary],
    show: Show,
) -> list[_Length]:
    """Return one column per length; its last line is truncation if there are `curves`."""
    lengths = []
    for last in sorted({row.last_position for row in rows}):
        own = {row.name: row for row in rows if row.last_position == last}
        first = next(iter(own.values()))
        heading = f"{last:,}"
        if PROTOCOLS[first.protocol].by_position:
            heading = f"{first.first_position:,}-{last:,}"
        values = {name: value_text(row.nll, row.bpb, show) for name, row in own.items()}
        best = value_text(*min((row.nll, row.bpb) for row in own.values()), show)
        is_best = {name: value == best for name, value in values.items()}
        if sum(is_best.values()) > len(own) / 2:  # it distinguishes none of them
            is_best = {}
        cells: list[_Cell | None] = []
        for name in names:
            if name not in own:
                cells.append(None)
                continue
            marks = _BEST if is_best.get(name) else ""
            if _is_below_truncation(checkpoint, curves.get(name), last):
                marks += _BELOW
            cells.append(_Cell(values[name], _intervals(own[name], show), marks))
        if curves:
            cells.append(_truncation(checkpoint, show) if last >= checkpoint.window else None)
        lengths.append(_Length(heading, cells))
    return lengths


def _is_below_truncation(
    checkpoint: CheckpointSummary, curve: CurveSummary | None, length: int
) -> bool:
    """Whether a curve is below truncation by more than the difference's interval, if it has one."""
    if curve is None or length <= checkpoint.window or not checkpoint.is_reliable:
        return False
    return bool(curve.gain_over_truncation[length].low > 0)


def _truncation(checkpoint: CheckpointSummary, show: Show) -> _Cell | None:
    """Return what dropping all but the last window gives, however long the text."""
    if checkpoint.nll_at_window is None:
        return None
    value = value_text(checkpoint.nll_at_window, checkpoint.bpb_at_window, show)
    return _Cell(value, ("", "", ""))


def _intervals(row: Row, show: Show) -> tuple[str, str, str]:
    """Return the texts for a row's interval; empty if it has none."""
    nll = Estimate(value=row.nll, low=row.ci_low, high=row.ci_high)
    if show == "perplexity":
        wide = interval_text(nll)
        half = (perplexity(nll.high) - perplexity(nll.low)) / 2
    else:
        half = half_width(row, show)
        wide = half_width_text(half) if half >= 0 else ""
    if not wide.startswith("±"):
        return (f" {wide}", f" {wide}", f" {wide}") if wide else ("", "", "")
    return f" {wide}", wide, half_width_text(half, digits=1)


def _details(curves: Sequence[CurveSummary]) -> list[Column]:
    """Return the columns after the lengths: usable length, gain and blow-up at the longest."""
    if not curves:
        return []
    blank = [Text()]  # the line of truncation
    longest = max(length for curve in curves for length in curve.gain_over_truncation)
    gains = [curve.gain_over_truncation.get(longest) for curve in curves]
    ratios = [curve.blow_up.get(longest) for curve in curves]
    usable = [Text(usable_text(**curve.usable._asdict())) for curve in curves]
    return [
        Column("usable", usable + blank),
        Column("gain", [_with_half(gain, "+.3f") for gain in gains] + blank),
        Column("blow-up", [_with_half(ratio, ".3g") for ratio in ratios] + blank),
    ]


def _with_half(estimate: Estimate | None, digits: str) -> Text:
    if estimate is None:
        return Text()
    half = (estimate.high - estimate.low) / 2
    interval = f" {half_width_text(half)}" if math.isfinite(half) else ""
    value = f"{estimate.value:{digits}}"
    if not float(value):  # no sign: what rounds to zero is neither a gain nor a loss
        value = value.lstrip("+-")
    return Text.assemble(value, (interval, "dim"))


def _usable(curves: Mapping[str, CurveSummary]) -> str:
    """List the curves by usable length, such as "yarn-auto 512; all others 128"."""
    by_text: dict[str, list[str]] = {}
    for name, curve in curves.items():
        by_text.setdefault(usable_text(**curve.usable._asdict()), []).append(name)
    most = max(by_text, key=lambda text: len(by_text[text]))
    shown = [f"{', '.join(own)} {text}" for text, own in by_text.items() if text != most]
    return "; ".join([*shown, f"{'all others' if shown else 'all curves'} {most}"])


def _notes(
    lengths: Sequence[_Length],
    bare: Collection[int],
    checkpoint: CheckpointSummary,
    curves: Mapping[str, CurveSummary],
    details: int,
) -> list[str]:
    """Return what explains a table's signs. details: how many columns follow the lengths."""
    cells = [(i, cell) for i, length in enumerate(lengths) for cell in length.cells if cell]
    marks = "".join(cell.marks for _, cell in cells)
    notes = []
    shown = "".join(cell.intervals[0] for i, cell in cells if i not in bare)
    if "±" in shown:
        notes.append("± half of the 95% interval")
    if "[" in shown:
        notes.append("[ ] the interval, where it is wider than the value")
    if bare:
        notes.append("intervals without room: in results.csv")
    if _BEST in marks:
        notes.append(f"{_BEST} best of its column")
    if _BELOW in marks:
        notes.append(f"{_BELOW} below truncation by more than the interval of the difference")
    if curves:
        notes.append(f"truncation: only the last {checkpoint.window:,} tokens are kept")
        notes.append(f"usable: within {checkpoint.tolerance:g} nats of truncation")
    if not all(curve.usable.is_known for curve in curves.values()):
        kind = checkpoint.unit_kind
        notes.append(
            f"no interval: too few {kind} for one at the next length"
            if checkpoint.is_reliable
            else f"no interval: by the values alone, with fewer than {RELIABLE_UNITS} {kind}"
        )
    if curves and details > 1:
        notes.append("gain: nats below truncation at the longest")
    if curves and details > 2:
        notes.append("blow-up: perplexity there over that of truncation")
    return notes


def _print_by_step(console: Console, rows: Sequence[Row], show: Show) -> None:
    """Print one protocol's values with one line per curve and checkpoint."""
    print_wrapped(console, f"{QUANTITIES[show]} by training step; {rows[0].protocol}", "bold")
    lines = [
        (name, step)
        for name in dict.fromkeys(row.name for row in rows)
        for step in sorted({row.step for row in rows if row.name == name})
    ]
    by_place = {(row.name, row.step, row.last_position): row for row in rows}
    names = [name if i == 0 or lines[i - 1][0] != name else "" for i, (name, _) in enumerate(lines)]
    columns = [
        Column("scaling", [Text(name) for name in names], "left"),
        Column("step", [Text(f"{step:,}") for _, step in lines]),
    ]
    for length in sorted({row.last_position for row in rows}):
        found = [by_place.get((*line, length)) for line in lines]
        cells = [Text(value_text(row.nll, row.bpb, show) if row else "") for row in found]
        columns.append(Column(f"{length:,}", cells))
    print_columns(console, columns, repeated=2)
    console.print()
