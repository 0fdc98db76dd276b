"""Terminal output: text as it is, lines broken between words, tables whose numbers stay whole."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Column as TableColumn
from rich.table import Table
from rich.text import Text

from rope_jax.errors import printable


def plain_console(**options: Any) -> Console:
    """Return Rich's console without markup, emoji codes and highlighting: `[red]` may be a name."""
    return Console(markup=False, emoji=False, highlight=False, **options)


def print_warning(console: Console, message: str) -> None:
    print_message(console, message, "yellow")


def print_message(console: Console, message: str, style: str = "") -> None:
    """Print one line, which may name a path; only a terminal breaks it, between words."""
    if console.is_terminal:
        print_wrapped(console, message, style)
    else:
        console.print(Text(printable(message), style=style), soft_wrap=True)


def print_wrapped(console: Console, text: str, style: str = "") -> None:
    """Print a text, broken between words where the console is too narrow for it."""
    for line in wrap(printable(text), console.width):
        console.print(Text(line, style=style), soft_wrap=True)


def describe_duration(seconds: float) -> str:
    """Return a duration as an estimate: "about 40 seconds", "about 3 hours"."""
    for unit, length, most in (("second", 1, 90), ("minute", 60, 90), ("hour", 3600, 48)):
        if seconds < most * length:
            count = max(1, round(seconds / length))
            return f"about {count} {unit}{'s' * (count != 1)}"
    return f"about {round(seconds / 86400):,} days"


def short_number(value: float | int) -> str:
    """Return a number for reading: whole from 1,000 to 999,999, else with four digits."""
    if not math.isfinite(value):
        return "∞"
    if 1000 <= value < 999_999.5:
        return f"{value:,.0f}"
    return f"{value:.4g}".replace("e+0", "e").replace("e+", "e")


def signed_text(value: float, decimals: int = 3) -> str:
    """Return a number with its sign, if it does not round to zero; minus is U+2212."""
    text = f"{value:+.{decimals}f}".replace("-", "−")
    return text if text.strip("+−0.") else text[1:]


def progress_bar(console: Console, counter: type[ProgressColumn]) -> Progress:
    """Return a bar: the task's description, the bar, `counter`, the time left, the field `now`.

    Only a terminal shows it, because it cannot be redrawn elsewhere. The speed is the mean
    over the updates that rich keeps, the last 1,000, however far apart they are; what came before
    the first of them is not counted.
    """
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(max(8, min(40, console.width - 72))),
        counter(table_column=TableColumn(no_wrap=True)),
        TimeRemainingColumn(table_column=TableColumn(no_wrap=True)),
        TextColumn("{task.fields[now]}", markup=False, table_column=TableColumn()),
        console=console,
        speed_estimate_period=math.inf,
        disable=not console.is_terminal,
    )


def time_left(task: Task) -> str:
    """Return ", about 3 minutes left", or nothing before there is an estimate and at the end."""
    left = task.time_remaining
    return f", {describe_duration(float(left))} left" if left else ""


def wrap(text: str, width: int, indent: int = 0) -> list[str]:
    """Break a line wider than `width` cells after "; " or else at spaces; indent later lines."""
    lines = [""]
    for clause in re.split(r"(?<=; )", text):
        fits = indent + cell_len(clause.rstrip()) <= width
        for piece in [clause] if fits else re.findall(r"\s*\S+\s*", clause):
            if lines[-1].strip() and cell_len(lines[-1] + piece.rstrip()) > width:
                lines.append(" " * indent)
            lines[-1] += piece
    return [line.rstrip() for line in lines]


def make_table(
    headings: Sequence[str], rows: Iterable[Sequence[str | Text]], *, left: int = 1, gap: int = 2
) -> Table:
    """Return a table without lines, whose first `left` columns are text and the others numbers."""
    table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style="bold")
    for number, heading in enumerate(headings):
        justify: JustifyMethod = "left" if number < left else "right"
        table.add_column(Text(heading), justify=justify, no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return table


def width_of(console: Console, table: Table) -> int:
    """Return how many cells a table takes if none of its own is cut."""
    return console.measure(table, options=console.options.update(width=2**20)).maximum


def print_table(
    console: Console,
    headings: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    left: int = 1,
    gap: int = 2,
) -> None:
    """Print `make_table`, in which no cell is cut or folded.

    Where the columns do not fit beside each other, they are divided evenly among several tables,
    each with the first column, which names the rows.
    """
    rows = list(rows)
    for parts in range(1, len(headings)):
        size = math.ceil((len(headings) - 1) / parts)
        tables = [
            make_table(
                [headings[0], *headings[first : first + size]],
                [[row[0], *row[first : first + size]] for row in rows],
                left=min(left, 1) + max(0, left - first),
                gap=gap,
            )
            for first in range(1, len(headings), size)
        ]
        if all(width_of(console, table) <= console.width for table in tables):
            break
    for number, table in enumerate(tables):
        if number:
            console.print()
        table.width = width_of(console, table)
        console.print(table, crop=False)


def print_overview(console: Console, title: str, facts: Mapping[str, str | Sequence[str]]) -> None:
    """Print a titled list of named facts; one of several lines may stand below its name."""
    print_wrapped(console, title, "bold")
    short = [cell_len(printable(name)) for name, fact in facts.items() if isinstance(fact, str)]
    margin = 4 + max(short, default=0)
    for name, fact in facts.items():
        indent, hanging, label = margin, 0, f"  {printable(name)}"
        if not isinstance(fact, str) and cell_len(label) + 2 > margin:
            console.print(Text(label, "dim"), soft_wrap=True)
            indent, hanging, label = 4, 2, ""
        for line in [fact] if isinstance(fact, str) else fact:
            for part in wrap(printable(line), console.width - indent, hanging):
                padding = " " * (indent - cell_len(label))
                console.print(Text.assemble((label, "dim"), padding, part), soft_wrap=True)
                label = ""
