"""Terminal output: text as it is, lines broken between words, tables whose numbers stay whole."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.segment import Segment
from rich.status import Status
from rich.table import Column as TableColumn
from rich.text import Text

from rope_jax.errors import printable


class _PlainConsole(Console):
    """A console that escapes what a terminal would obey, whatever is printed.

    Only line breaks pass. Where one may be part of a name, call `printable` on the name first.
    """

    def status(self, status: RenderableType, **options: Any) -> Status:
        # Rich's Status takes every string for markup, whatever the console says
        plain = Text(printable(status)) if isinstance(status, str) else status
        return super().status(plain, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        # before Rich makes it a Text, which drops some control characters silently
        return super().render_str(_escaped(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(_escaped(segment.text), segment.style)


def _escaped(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))


def plain_console(**options: Any) -> Console:
    """Return Rich's console without markup, emoji codes and highlighting: `[red]` may be a name."""
    return _PlainConsole(markup=False, emoji=False, highlight=False, **options)


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


def signed_text(value: float, decimals: int = 3) -> str:
    """Return a number with its sign, if it does not round to zero; minus is U+2212."""
    text = f"{value:+.{decimals}f}".replace("-", "−")
    return text if text.strip("+−0.") else text[1:]


class _TimeLeftColumn(ProgressColumn):
    """Rich's estimate of the time left, counted down until more is done and there is another."""

    _estimated: tuple[float, float] | None = None  # what was done then, and when

    def render(self, task: Task) -> Text:
        if self._estimated is None or self._estimated[0] != task.completed:
            self._estimated = task.completed, task.get_time()
        if task.time_remaining is None:
            return Text("-:--:--", "progress.remaining")
        left = max(0, task.time_remaining - (task.get_time() - self._estimated[1]))
        return Text(str(timedelta(seconds=math.ceil(left))), "progress.remaining")


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
        _TimeLeftColumn(TableColumn(no_wrap=True)),
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


class Column(NamedTuple):
    """A column of a table: a heading and one cell per row."""

    heading: str
    cells: Sequence[Text]
    justify: str = "right"

    @property
    def width(self) -> int:
        return max(cell_len(self.heading), *(cell.cell_len for cell in self.cells))


def print_columns(console: Console, columns: Sequence[Column], *, gap: int = 2) -> None:
    """Print a table with a line per row, in which no cell is cut or folded.

    Where they do not fit beside each other, they are divided evenly among several tables, each
    with the first column, which names the rows.
    """
    names, *rest = columns
    for count in range(1, len(rest) + 1):
        size = math.ceil(len(rest) / count)
        panels = [[names, *rest[at : at + size]] for at in range(0, len(rest), size)]
        if all(sum(c.width + gap for c in panel) - gap <= console.width for panel in panels):
            break
    for number, panel in enumerate(panels):
        if number:
            console.print()
        headings = [Text(column.heading, "bold") for column in panel]
        for cells in (headings, *zip(*(column.cells for column in panel), strict=True)):
            line = Text()
            for column, cell in zip(panel, cells, strict=True):
                padding = " " * (column.width - cell.cell_len)
                parts = (padding, cell) if column.justify == "right" else (cell, padding)
                line = Text.assemble(line, *parts, " " * gap)
            line.rstrip()
            console.print(line, soft_wrap=True)


def print_overview(console: Console, title: str, facts: Mapping[str, str | Sequence[str]]) -> None:
    """Print a titled list of named facts; one of several lines may stand below its name."""
    console.print(Text(printable(title), style="bold"), soft_wrap=True)
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
