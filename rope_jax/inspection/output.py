"""Numbers, tables and CSV files of the inspection scripts."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from rope_jax.console import print_table as console_table
from rope_jax.errors import UserError
from rope_jax.runs.tables import format_csv
from rope_jax.sealed import replacing

Row = tuple[str, ...]


def short_number(value: float | int) -> str:
    """Format a number for reading: whole from 1,000 to 999,999, else with four digits."""
    if not math.isfinite(value):
        return "∞"
    if 1000 <= value < 999_999.5:
        return f"{value:,.0f}"
    return f"{value:.4g}".replace("e+0", "e").replace("e+", "e")


def print_table(
    console: Console, headings: Sequence[str], rows: Sequence[Row], *, left: int = 1
) -> None:
    """Print a table with `left` columns of text; the others are of numbers, in which 0 is dim."""
    lines = [[Text(cell, "dim" if cell == "0" else "") for cell in row] for row in rows]
    console_table(console, headings, lines, left=left)
    console.print()


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a table. UserError: the file cannot be written."""
    try:
        with replacing(path) as temporary:
            temporary.write_text(format_csv(header, rows), encoding="utf-8", newline="")
    except OSError as error:
        raise UserError(f"output: {path} cannot be written ({error.strerror or error})") from None
