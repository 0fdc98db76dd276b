"""Tables of scalings pair by pair, and of decay by distance, for the terminal."""

from collections.abc import Mapping, Sequence

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rope_jax.inspection.curves import Curve
from rope_jax.inspection.model import short_number
from rope_jax.rope.decay import Scores, mean_and_peak_by_octave, octaves

Cells = tuple[str, ...]

_MAX_HEADING = 12  # characters to which a heading alone may widen a column


def print_scaling_tables(console: Console, curves: Sequence[Curve]) -> None:
    """Print one table per quantity, indexed by pair; then a summary with one row per curve."""
    pairs = [curve.pairs for curve in curves]
    by_title = {
        "wavelength 2π/θ', tokens": [[short_number(x) for x in p.wavelengths] for p in pairs],
        "turns in the training window, L·θ'/(2π)": [[_turns(x) for x in p.turns] for p in pairs],
        "scale against none, θ'/θ": [[_scale(x) for x in p.scale] for p in pairs],
        "unseen: share of the circle that the text meets and training did not": [
            [_share(x) for x in p.unseen] for p in pairs
        ],
    }
    for title, columns in by_title.items():
        rows = _merged_rows(list(zip(*columns, strict=True)))
        console.print(title, style="bold")
        _print_folded(console, "pair", [curve.name for curve in curves], rows)
    console.print("summary", style="bold")
    console.print(_summary(curves))
    console.print(
        "m: factor on queries and keys, so m² on a score\n"
        "queries: factor on whole queries, from the first position to the last\n"
        "< 1 turn: pairs that complete no turn in the training window; unseen: mean over pairs\n",
        style="dim",
    )


def print_decay_tables(console: Console, scores: Mapping[str, Scores]) -> None:
    """Print the mean and the largest score by octave of distance.

    scores: at distances 0 … n − 1, by curve.
    """
    length = next(iter(scores.values())).size
    names = [f"{a:,}–{b:,}" if a < b else f"{a:,}" for a, b in octaves(length)]
    both = [mean_and_peak_by_octave(score) for score in scores.values()]
    for place, title in enumerate(("mean score", "largest |score|")):
        columns = [[f"{x:z.2f}" for x in values[place]] for values in both]
        console.print(title, style="bold")
        rows = list(zip(names, zip(*columns, strict=True), strict=True))
        _print_folded(console, "distance", list(scores), rows)


def _merged_rows(rows: Sequence[Cells]) -> list[tuple[str, Cells]]:
    """Return row names and cells; neighbouring pairs with the same cells share a row."""
    made: list[tuple[str, Cells]] = []
    first = 0
    for last, cells in enumerate(rows):
        if last + 1 == len(rows) or rows[last + 1] != cells:
            made.append((f"{first}" if first == last else f"{first}–{last}", cells))
            first = last + 1
    return made


def _print_folded(
    console: Console, index: str, names: Sequence[str], rows: Sequence[tuple[str, Cells]]
) -> None:
    """Print as many columns at a time as fit; if all fit, fold the rows into parts side by side."""
    anywhere = console.options.update(max_width=10_000)

    def fits(table: Table) -> bool:
        return console.measure(table, options=anywhere).maximum <= console.width

    first = 0
    while first < len(names):
        last = len(names)
        while last > first + 1 and not fits(_columns(index, names, rows, first, last, 1, 0)):
            last -= 1
        # a short table is not folded
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
    """Return a table of columns first to last, its rows folded into `parts` side by side."""
    table = _table(padding)
    height = -(-len(rows) // parts)
    starts = range(0, len(rows), height)
    for start in starts:
        if start:
            table.add_column("", width=2)
        table.add_column(index, justify="right", no_wrap=True, style="dim")
        for place in range(first, last):
            heading = _heading(names[place])
            widths = [len(cells[place]) for _, cells in rows]
            widths += [min(len(line), _MAX_HEADING) for line in heading.split("\n")]
            table.add_column(Text(heading), justify="right", overflow="fold", width=max(widths))
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
    """Break a long name without spaces at its first hyphen."""
    return name.replace("-", "-\n", 1) if len(name) > 9 and " " not in name else name


def _cell(text: str) -> Text:
    """Dim a cell that is exactly 0."""
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
            Text(curve.name),
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
    if np.isclose(first, last):
        return short_number(first)
    return f"{short_number(first)} … {short_number(last)}"


def _share(value: float) -> str:
    """Format a share; only exactly 0 reads 0."""
    if value == 0:
        return "0"
    return "<0.001" if value < 0.0005 else f"{value:.3f}"


def _scale(value: float) -> str:
    # drop digits that only differ by rounding, so that neighbours read alike
    return f"{float(f'{value:.9g}'):.3g}"


def _turns(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else short_number(value)
