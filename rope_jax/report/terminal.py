"""A table in the terminal: as wide as the console allows, and never with a number cut."""

import textwrap

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from rope_jax.console import Column, print_columns
from rope_jax.errors import printable
from rope_jax.report.table import BELOW_TRUNCATION, Cell, Line, Table

BEST = "•"
_NARROWEST_NAMES = 12  # where names are folded


def print_table(
    console: Console, table: Table, *, file: str, over: str = ""
) -> tuple[list[str], tuple[str, ...]]:
    """Print one line per curve. Return what explains its signs, and the details that have room.

    A table that is too wide leaves out details, from the last one on, then writes its intervals
    more briefly ("4.08 ±0.57", "4.08±0.57", "4.08±0.6", and not at all), folds its names, and goes
    on below itself.

    file: where intervals without room are. over: what they are over, such as " over documents".
    """
    lines = (*table.lines, *table.below)
    names = [printable(name) for line in lines for name in (line.labels[-1], line.heading)]
    whole = max(map(cell_len, (table.labels[-1], *names)))
    folded = min(whole, max(_NARROWEST_NAMES, -(-whole // 2)))
    few = min(1, len(table.details))
    forms = [(0, count, whole) for count in range(len(table.details), -1, -1)]
    forms += [(1, few, whole), (1, 0, whole), (2, 0, whole), (2, 0, folded), (3, 0, folded)]
    for form, count, beside in forms:
        columns, gap = _columns(table, form, count, beside), 1 if form else 2
        if sum(column.width for column in columns) + gap * (len(columns) - 1) <= console.width:
            break
    print_columns(console, columns, gap=gap)
    cells = [cell for line in lines for cell in line.cells]
    printed = [text.plain for c in columns[1 : 1 + len(table.columns)] for text in c.cells]
    in_room = sum("±" in text or "[" in text for text in printed)
    notes = {
        f"± half of the 95% interval{over}": any("±" in text for text in printed),
        f"[ ] the ends of the 95% interval{over}, where it is wider than the value": any(
            "[" in text for text in printed
        ),
        f"intervals without room: in {file}": in_room < sum(bool(c.interval) for c in cells),
        f"{BEST} best of its column": any(cell.is_best for cell in cells),
        f"{BELOW_TRUNCATION} below truncation by more than the interval of the difference": any(
            cell.is_below for cell in cells
        ),
    }
    return [note for note, is_needed in notes.items() if is_needed], table.details[:count]


def _columns(table: Table, form: int, count: int, width: int) -> list[Column]:
    """Return the names, folded to `width`, the columns, and the first `count` details."""
    names: list[Text] = []
    rows: list[Line] = []
    for line in map(table.complete, (*table.lines, *table.below)):
        blank = table.complete(Line((), [Cell()] * len(line.cells)))
        name = printable(line.labels[-1])
        indent = " " * (len(name) - len(name.lstrip()))
        above = textwrap.wrap(printable(line.heading), width)
        pieces = textwrap.wrap(name, width, subsequent_indent=indent) or [""]
        names += map(Text, (*above, *pieces))
        rows += [*[blank] * len(above), line, *[blank] * (len(pieces) - 1)]
    columns = [Column(table.labels[-1], names, "left")]
    for i, heading in enumerate(table.columns):
        cells = [row.cells[i] for row in rows]
        room = max(len(_marks(cell)) for cell in cells)
        texts = [_text(cell, form, room) for cell in cells]
        columns.append(Column(heading + " " * room, texts))
    for i, heading in enumerate(table.details[:count]):
        texts = [_text(row.details[i], 0) for row in rows]
        columns.append(Column(heading, texts))
    return columns


def _text(cell: Cell, form: int, room: int = 0) -> Text:
    """Return a cell with room for marks behind it; form: see `print_table`."""
    forms = (cell.interval and f" {cell.interval}", cell.brief and cell.interval, cell.brief, "")
    marks = _marks(cell).ljust(room)
    if cell.is_best:
        return Text(cell.value + forms[form] + marks, "bold")
    return Text.assemble(cell.value, (forms[form], "dim"), marks)


def _marks(cell: Cell) -> str:
    return BEST * cell.is_best + BELOW_TRUNCATION * cell.is_below
