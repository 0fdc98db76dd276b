"""Scalings pair by pair, and decay by distance, in the terminal."""

from collections.abc import Mapping, Sequence

import numpy as np
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from rope_jax.inspection.curves import Curve, number
from rope_jax.rope.pairs import Array, octaves, over_octaves

Cells = tuple[str, ...]

_HEADING = 12  # how wide a heading alone may make a column


def scaling_tables(console: Console, curves: Sequence[Curve]) -> None:
    """By pair a table a quantity, then a row a scaling."""
    pairs = [curve.pairs for curve in curves]
    by_title = {
        "wavelength 2π/θ', tokens": [[number(x) for x in p.wavelengths] for p in pairs],
        "turns in the training window, L·θ'/(2π)": [[_turns(x) for x in p.turns] for p in pairs],
        "scale against none, θ'/θ": [[_scale(x) for x in p.scale] for p in pairs],
        "unseen: share of the circle that the text meets and training did not": [
            [_share(x) for x in p.unseen] for p in pairs
        ],
    }
    for title, columns in by_title.items():
        rows = _runs(list(zip(*columns, strict=True)))
        console.print(title, style="bold")
        _folded(console, "pair", [curve.name for curve in curves], rows)
    console.print("summary", style="bold")
    console.print(_summary(curves))
    console.print(
        "m: on queries and keys, so m² on a score\n"
        "queries: a factor on whole queries, from the first to the last\n"
        "< 1 turn: pairs that complete no turn in the training window; unseen: mean of all pairs\n",
        style="dim",
    )


def decay_tables(console: Console, scores: Mapping[str, Array]) -> None:
    """Mean and largest score by octave of distance; scores: at distances 0 … n−1, by curve."""
    length = next(iter(scores.values())).size
    names = [f"{a:,}–{b:,}" if a < b else f"{a:,}" for a, b in octaves(length)]
    both = [over_octaves(score) for score in scores.values()]
    for place, title in enumerate(("mean score", "largest |score|")):
        columns = [[f"{x:z.2f}" for x in values[place]] for values in both]
        console.print(title, style="bold")
        rows = list(zip(names, zip(*columns, strict=True), strict=True))
        _folded(console, "distance", list(scores), rows)


def _runs(rows: Sequence[Cells]) -> list[tuple[str, Cells]]:
    """Pairs and their cells; neighbours that read alike share a row."""
    made: list[tuple[str, Cells]] = []
    first = 0
    for last, cells in enumerate(rows):
        if last + 1 == len(rows) or rows[last + 1] != cells:
            made.append((f"{first}" if first == last else f"{first}–{last}", cells))
            first = last + 1
    return made


def _folded(
    console: Console, index: str, names: Sequence[str], rows: Sequence[tuple[str, Cells]]
) -> None:
    """As many columns as fit; where all do, the rows in as many parts beside one another."""
    anywhere = console.options.update(max_width=10_000)

    def fits(table: Table) -> bool:
        return console.measure(table, options=anywhere).maximum <= console.width

    first = 0
    while first < len(names):
        last = len(names)
        while last > first + 1 and not fits(_columns(index, names, rows, first, last, 1, 0)):
            last -= 1
        # a short table stays whole
        most = max(1, min(len(rows) // 8, 4)) if last - first == len(names) else 1
        layouts = [(parts, padding) for parts in range(most, 0, -1) for padding in (1, 0)]
        tables = (_columns(index, names, rows, first, last, *layout) for layout in layouts)
        table = next((table for table in tables if fits(table)), None)
        console.print(table or _columns(index, names, rows, first, last, 1, 0))
        console.print()
        first = last


def _columns(
    index: str,
    names: Sequence[str],
    rows: Sequence[tuple[str, Cells]],
    first: int,
    last: int,
    parts: int,
    padding: int,
) -> Table:
    """Columns first to last, the rows cut into `parts` that stand beside one another."""
    table = _table(padding)
    height = -(-len(rows) // parts)
    starts = range(0, len(rows), height)
    for start in starts:
        if start:
            table.add_column("", width=2)
        table.add_column(index, justify="right", no_wrap=True, style="dim")
        for place in range(first, last):
            heading = _heading(names[place])
            longest = max(len(cells[place]) for _, cells in rows)
            width = max(longest, *(min(len(line), _HEADING) for line in heading.split("\n")))
            table.add_column(escape(heading), justify="right", overflow="fold", width=width)
    for row in range(height):
        line: list[Text | str] = []
        for start in starts:
            line += [""] if start else []
            if start + row < len(rows):
                name, cells = rows[start + row]
                line += [name, *map(_cell, cells[first:last])]
        table.add_row(*line)
    return table


def _heading(name: str) -> str:
    """In two lines where it is long and has no space to break at."""
    return name.replace("-", "-\n", 1) if len(name) > 9 and " " not in name else name


def _cell(text: str) -> Text:
    """What is exactly 0 steps back."""
    return Text(text, "dim" if text == "0" else "")


def _summary(curves: Sequence[Curve]) -> Table:
    table = _table(1)
    table.add_column("scaling", overflow="fold", max_width=30)
    for heading in ("wavelengths", "θ'/θ", "m", "queries", "< 1 turn", "unseen"):
        table.add_column(heading, justify="right", no_wrap=True)
    for curve in curves:
        pairs = curve.pairs
        query = "1"
        if curve.scaling.query_scale is not None:
            last = curve.scaling.query_scale_at(curve.geometry, np.array([pairs.length - 1]))[0]
            query = f"1 … {last:.3g}"
        table.add_row(
            escape(curve.name),
            _range(pairs.wavelengths.min(), pairs.wavelengths.max()),
            _range(pairs.scale.max(), pairs.scale.min()),
            f"{pairs.m:.4g}",
            query,
            f"{(pairs.turns < 1).sum()} of {pairs.theta.size}",
            _share(pairs.unseen.mean()),
        )
    return table


def _table(padding: int) -> Table:
    return Table(box=box.SIMPLE_HEAD, padding=(0, padding, 0, 0), pad_edge=False, show_edge=False)


def _range(first: float, last: float) -> str:
    return number(first) if np.isclose(first, last) else f"{number(first)} … {number(last)}"


def _share(value: float) -> str:
    """0 alone is written 0."""
    if value == 0:
        return "0"
    return "<0.001" if value < 0.0005 else f"{value:.3f}"


def _scale(value: float) -> str:
    # first of all digits but the last, which are rounding's: neighbours are to read alike
    return f"{float(f'{value:.9g}'):.3g}"


def _turns(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else number(value)
