"""Numbers, tables, CSV files and figures of the inspection scripts."""

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.columns import Columns
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rope_jax.errors import UserError
from rope_jax.runs.tables import format_csv
from rope_jax.sealed import replacing

if TYPE_CHECKING:  # matplotlib is slow to import, and a CSV does not need it
    from matplotlib.figure import Figure

Row = tuple[str, ...]

_WIDEST = 12  # characters of a heading above numbers; a longer one is folded


def short_number(value: float) -> str:
    """Format a number for reading: whole from 1,000 to 999,999, else with four digits."""
    if not math.isfinite(value):
        return "∞"
    if 1000 <= value < 999_999.5:
        return f"{value:,.0f}"
    return f"{value:.4g}".replace("e+0", "e").replace("e+", "e")


def make_table(
    headings: Sequence[str], rows: Sequence[Row], *, left: int = 1, padding: int = 1
) -> Table:
    """Return a table with `left` columns of text; the others are of numbers, in which 0 is dim.

    padding: spaces between columns, beside the one that is always there.
    """
    table = Table(box=box.SIMPLE_HEAD, padding=(0, padding, 0, 0), pad_edge=False, show_edge=False)
    for place, heading in enumerate(headings):
        if place < left:
            table.add_column(Text(heading), overflow="fold")
        else:
            width = _column_width(heading, [row[place] for row in rows])
            # of exactly this width, so that numbers stay whole
            table.add_column(Text(heading), justify="right", overflow="fold", width=width)
    for row in rows:
        table.add_row(*(Text(cell, "dim" if cell == "0" else "") for cell in row))
    return table


def print_columns(
    console: Console, index: str, names: Sequence[str], rows: Sequence[tuple[str, Row]]
) -> None:
    """Print a table with a column for each name, and more tables for those that do not fit.

    Rows are in parts side by side if there is room. rows: each with its name in the index.
    """
    indices = max(len(index), *(len(name) for name, _ in rows)) + 1
    widths = [
        _column_width(name, [cells[i] for _, cells in rows]) + 1 for i, name in enumerate(names)
    ]
    first = 0
    while first < len(names):
        last = first + 1
        while last < len(names) and indices + sum(widths[first : last + 1]) <= console.width + 1:
            last += 1
        # a short table is not divided
        parts = (console.width + 2) // (indices + sum(widths[first:last]) + 1)
        height = -(-len(rows) // max(1, min(parts, len(rows) // 8)))
        tables = [
            make_table(
                [index, *names[first:last]],
                [(name, *cells[first:last]) for name, cells in rows[start : start + height]],
                left=0,
                padding=0,
            )
            for start in range(0, len(rows), height)
        ]
        console.print(Columns(tables, padding=(0, 2)))
        console.print()
        first = last


def _column_width(heading: str, cells: Iterable[str]) -> int:
    return max(min(len(heading), _WIDEST), *map(len, cells))


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a table. UserError: the file cannot be written."""
    with _naming(path), replacing(path) as temporary:
        temporary.write_text(format_csv(header, rows), encoding="utf-8", newline="")


def write_figure(figure: "Figure", path: Path) -> None:
    """Write a figure; a .png has the same figure as .pdf and .svg beside it.

    UserError: a file cannot be written.
    """
    from rope_jax.plots.saving import save_figure

    with _naming(path):
        save_figure(figure, path)


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Make one line of an error of the file system."""
    try:
        yield
    except OSError as error:
        raise UserError(f"output: {path} cannot be written ({error.strerror or error})") from None
