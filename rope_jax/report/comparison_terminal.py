"""A comparison in the terminal."""

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from rope_jax.comparison.curves import Comparison, Curve
from rope_jax.comparison.differences import describe_settings
from rope_jax.console import print_wrapped
from rope_jax.errors import printable
from rope_jax.report.comparison_cells import (
    BELOW_TRUNCATION,
    BEST,
    EMPTY,
    best_at,
    cell,
    gain_text,
    has_single_seeds,
    sampling_text,
)
from rope_jax.report.comparison_report import PlottedCurve, format_usable, points_of
from rope_jax.report.text import QUANTITIES

_NARROWEST_NAMES = 12  # where names are folded


# How a value and its interval stand in a column: "4.08 ±0.57", "4.08±0.57", "4.08±0.6", "4.08". An
# interval that is wider than its value is shown by its ends, or not at all from the second on.
_Layout = Literal["wide", "close", "closest", "values"]


class _Column(NamedTuple):
    """A column of numbers, with a text for each curve."""

    heading: str
    texts: Sequence[str]
    best: Sequence[bool]
    gap: str = "  "
    """What stands before the column."""

    @property
    def width(self) -> int:
        """The width of the texts, without the gap."""
        return max(map(cell_len, (self.heading, *self.texts)))


def print_comparison(console: Console, comparison: Comparison) -> None:
    """Print a line per curve with the values of the first protocol, then the notes.

    A table that is too wide for the terminal is set closer, then folds its names, then leaves out
    the intervals, then goes on below itself. Where there is room, it has usable lengths, gains and
    settings.
    """
    curves = [curve for curve in comparison.curves if curve.is_newest]
    protocol = curves[0].points[0].protocol
    plotted = points_of(protocol, curves)
    curves = [one.curve for one in plotted]
    names = _names(curves)
    columns, layout = _fitting(plotted, comparison, protocol, names, console.width)
    settings = [describe_settings(curve.group.settings, briefly=True) for curve in curves]
    headings = _group_headings(curves)
    listed = [*columns]
    for extra in _extras(plotted, [] if any(headings) else settings):
        if _width([*listed, extra]) + max(map(cell_len, names)) <= console.width:
            listed.append(extra)
    has_settings = len(listed) > len(columns) and listed[-1].texts == settings
    print_wrapped(console, _title(comparison, curves, protocol), "bold")
    for part in _parts(listed, console.width - _folded_width(names)):
        _print_part(console, part, names, headings, settings, has_settings)
    if not has_settings and not any(headings):
        for label, text in dict(
            zip([c.group.label for c in curves], settings, strict=True)
        ).items():
            if text:
                console.print(Text.assemble(printable(label), (f": {text}", "dim")))
    if legend := _legend(listed, plotted, comparison, layout):
        print_wrapped(console, "; ".join(legend), "dim")
    for remark in comparison.remarks:
        print_wrapped(console, remark, "dim")
    for note in comparison.notes:
        print_wrapped(console, note, "yellow")


def _names(curves: Sequence[Curve]) -> list[str]:
    """Return what tells each curve from the others: its scaling, its group, or both.

    Where groups have several curves each, scalings are indented below the group's heading.
    """
    groups = list(dict.fromkeys(curve.group for curve in curves))
    if any(_group_headings(curves)):
        return [f"  {printable(curve.name)}" for curve in curves]
    if len(groups) == 1:
        return [printable(curve.name) for curve in curves]
    alike = len({curve.name for curve in curves}) == 1
    return [printable(curve.group.label if alike else curve.label) for curve in curves]


def _group_headings(curves: Sequence[Curve]) -> list[str]:
    """Return the group's label before the first of its curves, "" before the others.

    All are "" where a heading would say nothing: with one group, or one curve per group.
    """
    groups = list(dict.fromkeys(curve.group for curve in curves))
    if len(groups) in (1, len(curves)):
        return [""] * len(curves)
    before = [None, *(curve.group for curve in curves[:-1])]
    return [
        "" if curve.group is previous else printable(curve.group.label)
        for curve, previous in zip(curves, before, strict=True)
    ]


def _fitting(
    plotted: Sequence[PlottedCurve],
    comparison: Comparison,
    protocol: str,
    names: Sequence[str],
    width: int,
) -> tuple[list[_Column], _Layout]:
    """Return the widest columns that fit beside the names, and how they are laid out."""
    whole, folded = max(map(cell_len, names)), _folded_width(names)
    layouts: list[tuple[_Layout, int]] = [
        *(("wide", whole), ("close", whole), ("closest", whole), ("close", folded)),
        ("closest", folded),
    ]
    for layout, beside in layouts:
        columns = _columns(plotted, comparison, protocol, layout)
        if _width(columns) <= width - beside:
            return columns, layout
    return _columns(plotted, comparison, protocol, "values"), "values"


def _columns(
    plotted: Sequence[PlottedCurve], comparison: Comparison, protocol: str, layout: _Layout
) -> list[_Column]:
    """Return a column for each length."""
    best = best_at([one.curve for one in plotted], protocol, comparison.show)
    columns = []
    for n in sorted({length for one in plotted for length in one.points}):
        cells = [
            cell(one.points[n], comparison.show) if n in one.points else EMPTY for one in plotted
        ]
        is_best = [
            bool(found.value) and found.value == best.get(n) and not one.curve.group.marked
            for found, one in zip(cells, plotted, strict=True)
        ]
        marks = [
            BEST * best + BELOW_TRUNCATION * found.is_below_truncation
            for best, found in zip(is_best, cells, strict=True)
        ]
        room = max(map(len, marks))
        if layout == "wide":  # intervals begin below each other, and so do the values
            after = [f" {found.interval}{mark}" for found, mark in zip(cells, marks, strict=True)]
            width = max(map(cell_len, after))
        else:
            part = {"close": 0, "closest": 1}.get(layout)
            after = [
                f"{'' if part is None else found.halves[part]}{mark:<{room}}"
                for found, mark in zip(cells, marks, strict=True)
            ]
            width = 0
        texts = [f"{found.value}{end:<{width}}" for found, end in zip(cells, after, strict=True)]
        gap = "  " if layout in ("wide", "values") else " "
        columns.append(_Column(f"{n:,}{' ' * room}", texts, is_best, gap))
    return columns


def _extras(plotted: Sequence[PlottedCurve], settings: Sequence[str]) -> list[_Column]:
    """Return the columns that are shown only where there is room."""
    longest = max(length for one in plotted for length in one.points)
    gains = [gain_text(one.points[longest]) if longest in one.points else "" for one in plotted]
    texts = {
        "usable": [format_usable(one.curve) for one in plotted],
        f"gain at {longest:,} (nats)": gains,
        "differs in": settings,
    }
    return [_Column(heading, t, [False] * len(t)) for heading, t in texts.items() if any(t)]


def _title(comparison: Comparison, curves: Sequence[Curve], protocol: str) -> str:
    """Return what the table shows, with what all of its lines have in common."""
    title = QUANTITIES[comparison.show]
    if len({curve.group for curve in curves}) == 1:
        title += f" of {printable(curves[0].group.label)}"
    elif len({curve.name for curve in curves}) == 1:
        title += f" of {printable(curves[0].name)}"
    return f"{title}; {protocol}"


def _width(columns: Sequence[_Column]) -> int:
    return sum(len(column.gap) + column.width for column in columns)


def _folded_width(names: Sequence[str]) -> int:
    """Return the width to which names may be folded: half of the longest, or a dozen letters."""
    longest = max(map(cell_len, names))
    return min(longest, max(_NARROWEST_NAMES, -(-longest // 2)))


def _parts(columns: Sequence[_Column], room: int) -> list[list[_Column]]:
    """Divide columns into tables that fit."""
    parts: list[list[_Column]] = [[]]
    for column in columns:
        if parts[-1] and _width([*parts[-1], column]) > room:
            parts.append([])
        parts[-1].append(column)
    return parts


def _print_part(
    console: Console,
    columns: Sequence[_Column],
    names: Sequence[str],
    headings: Sequence[str],
    settings: Sequence[str],
    has_settings: bool,
) -> None:
    """Print a heading line and a line per curve, below a heading per group if there are several."""
    room = max(console.width - _width(columns), _NARROWEST_NAMES)
    width = min(max(map(cell_len, names)), room)
    line = Text(" " * width, style="dim")
    for column in columns:
        line.append(column.gap + _padded(column, column.heading))
    line.rstrip()
    console.print(line, no_wrap=True, overflow="ignore", crop=False)
    for row, name in enumerate(names):
        if headings[row]:
            more = "" if has_settings else settings[row]
            console.print(Text.assemble(headings[row], (f"  {more}", "dim") if more else ""))
        first, *others = _fold(name, width)
        line = Text(first + " " * (width - cell_len(first)))
        for column in columns:
            text = _padded(column, column.texts[row])
            line.append(column.gap)
            line.append(text, style="bold" if column.best[row] else "")
        line.rstrip()
        console.print(line, no_wrap=True, overflow="ignore", crop=False)
        for more in others:
            console.print(Text(more), no_wrap=True, overflow="ignore", crop=False)


def _padded(column: _Column, text: str) -> str:
    """Return a text as wide as its column: to the right, or to the left in the last column."""
    space = " " * (column.width - cell_len(text))
    return text + space if column.heading == "differs in" else space + text


def _fold(name: str, width: int) -> list[str]:
    """Return a name as lines of at most `width`, which break after -, _, ., a comma or a space."""
    indent = " " * (len(name) - len(name.lstrip()))
    lines = [indent]
    for piece in re.findall(r"[^-_., ]*[-_., ]?", name.lstrip()):
        if cell_len(lines[-1] + piece.rstrip()) > width and lines[-1] != indent:
            lines.append(indent)
        lines[-1] += piece
        while cell_len(lines[-1].rstrip()) > width:  # a piece that is longer than a line
            end = next(n for n in range(len(lines[-1]), 0, -1) if cell_len(lines[-1][:n]) <= width)
            lines[-1:] = [lines[-1][:end], indent + lines[-1][end:]]
    return [line.rstrip() for line in lines if line.strip()]


def _legend(
    columns: Sequence[_Column],
    plotted: Sequence[PlottedCurve],
    comparison: Comparison,
    layout: _Layout,
) -> list[str]:
    """Return what the marks mean, and where the intervals are that the columns leave out."""
    texts = [text for column in columns for text in column.texts]
    cells = [cell(p, comparison.show) for one in plotted for p in one.points.values()]
    by_ends = any(found.interval.startswith("[") for found in cells)
    marks = []
    if any(BEST in text for text in texts):
        marks.append(f"{BEST} best of its column")
    if any(BELOW_TRUNCATION in text for text in texts):
        marks.append(
            f"{BELOW_TRUNCATION} below truncation by more than the interval of the difference"
        )
    has_halves = any("±" in text for text in texts)
    if has_halves:
        marks.append(f"± half of the 95% interval over {sampling_text(comparison)}")
    if by_ends and layout == "wide":
        over = "" if has_halves else f" over {sampling_text(comparison)}"
        marks.append(f"[ ] the ends of the 95% interval{over}, where it is wider than the value")
    elif layout == "values":
        if any(found.interval for found in cells):
            marks.append("intervals without room: in comparison.md")
    elif by_ends:
        marks.append("intervals that are wider than the value: in comparison.md")
    if has_single_seeds(comparison) and (has_halves or (by_ends and layout == "wide")):
        marks.append("one seed says nothing about other seeds")
    return marks
