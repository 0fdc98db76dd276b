"""A table in the terminal: as wide as the console allows, and never with a number cut."""

import textwrap
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from rope_jax.console import Column
from rope_jax.errors import printable
from rope_jax.report.table import BELOW_TRUNCATION, Cell, Table

BEST = "•"
_NARROWEST_NAMES = 12  # where names are folded


def print_table(
    console: Console, table: Table, *, file: str, over: str = ""
) -> tuple[list[str], tuple[str, ...]]:
    """Print one line per curve. Return what explains its signs, and the details that have room.

    A table that is too wide leaves out details, from the last one on, then writes its intervals
    more briefly ("4.08 ±0.57", "4.08±0.57", "4.08±0.6", and their ends not at all), folds its
    names, leaves out the widest intervals, and goes on below itself.

    file: where intervals without room are. over: what they are over, such as " over documents".
    """
    lines = (*table.lines, *table.below)
    names = [printable(line.labels[-1]) for line in lines]
    cells = list(zip(*(line.cells for line in lines), strict=True))
    details = [
        Column(heading, [_text(line.details[i], 0) for line in map(table.complete, lines)], justify)
        for i, heading in enumerate(table.details)
        for justify in ["left" if heading == "differs in" else "right"]
    ]
    bare: set[int] = set()  # columns without intervals

    def columns(form: int, count: int) -> list[Column]:
        headings = enumerate(zip(table.columns, cells, strict=True))
        measured = [_column(text, own, 3 if i in bare else form) for i, (text, own) in headings]
        return [*measured, *details[:count]]

    whole = max(map(cell_len, (table.labels[-1], *names)))
    folded = min(whole, max(_NARROWEST_NAMES, -(-whole // 2)))
    few = min(1, len(details))
    forms = [(0, count, whole) for count in range(len(details), -1, -1)]
    forms += [(1, few, whole), (1, 0, whole), (2, 0, whole), (1, 0, folded), (2, 0, folded)]
    for form, count, beside in forms:
        shown, gap = columns(form, count), 1 if form else 2
        if beside + _width(shown, gap) <= console.width:
            break
    while folded + _width(shown, gap) > console.width and len(bare) < len(cells):
        left = [i for i in range(len(cells)) if i not in bare]
        bare.add(max(left, key=lambda i: max(len(cell.brief) for cell in cells[i])))
        shown = columns(form, count)
    parts: list[list[Column]] = [[]]
    for column in shown:
        if parts[-1] and folded + _width([*parts[-1], column], gap) > console.width:
            parts.append([])
        parts[-1].append(column)
    for part in parts:
        width = max(console.width - _width(part, gap), _NARROWEST_NAMES)
        _print_part(console, table, names, part, gap, min(whole, width))
    of_cells = [cell for own in cells for cell in own]
    printed = [text.plain for column in shown[: len(cells)] for text in column.cells]
    in_room = sum("±" in text or "[" in text for text in printed)
    notes = {
        f"± half of the 95% interval{over}": any("±" in text for text in printed),
        f"[ ] the ends of the 95% interval{over}, where it is wider than the value": any(
            "[" in text for text in printed
        ),
        f"intervals without room: in {file}": in_room < sum(bool(c.interval) for c in of_cells),
        f"{BEST} best of its column": any(cell.is_best for cell in of_cells),
        f"{BELOW_TRUNCATION} below truncation by more than the interval of the difference": any(
            cell.is_below for cell in of_cells
        ),
    }
    return [note for note, is_needed in notes.items() if is_needed], table.details[:count]


def _column(heading: str, cells: Sequence[Cell], form: int) -> Column:
    room = max(len(_marks(cell)) for cell in cells)
    return Column(heading + " " * room, [_text(cell, form, room) for cell in cells])


def _text(cell: Cell, form: int, room: int = 0) -> Text:
    """Return a cell with room for marks behind it; form: see `print_table`."""
    forms = (cell.interval and f" {cell.interval}", cell.brief and cell.interval, cell.brief, "")
    interval = forms[form]
    marks = _marks(cell).ljust(room)
    if cell.is_best:
        return Text(cell.value + interval + marks, "bold")
    return Text.assemble(cell.value, (interval, "dim"), marks)


def _marks(cell: Cell) -> str:
    return BEST * cell.is_best + BELOW_TRUNCATION * cell.is_below


def _width(columns: Sequence[Column], gap: int) -> int:
    return sum(gap + column.width for column in columns)


def _print_part(
    console: Console,
    table: Table,
    names: Sequence[str],
    columns: Sequence[Column],
    gap: int,
    width: int,
) -> None:
    """Print a heading line and a line per curve, with the names folded to `width`."""

    def printed(name: str, cells: Sequence[Text], style: str = "") -> None:
        indent = " " * (len(name) - len(name.lstrip()))
        first, *others = textwrap.wrap(name, width, subsequent_indent=indent) or [""]
        line = Text(first.ljust(width - cell_len(first) + len(first)), style=style)
        for column, cell in zip(columns, cells, strict=True):
            space = " " * (column.width - cell.cell_len)
            parts = (cell, space) if column.justify == "left" else (space, cell)
            line = Text.assemble(line, " " * gap, *parts)
        line.rstrip()
        console.print(line, soft_wrap=True)
        for more in others:
            console.print(Text(more), soft_wrap=True)

    printed(table.labels[-1], [Text(column.heading, "dim") for column in columns], "dim")
    for place, line in enumerate((*table.lines, *table.below)):
        if line.heading:
            about = (f"  {line.about}", "dim") if line.about else ""
            console.print(Text.assemble(line.heading, about))
        printed(names[place], [column.cells[place] for column in columns])
