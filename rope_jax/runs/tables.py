"""CSV whose text stays text in a spreadsheet, which takes a cell that begins with = for a formula.

Such a cell gets an apostrophe in front, which `text_of_cell` removes. What a terminal would obey is
escaped, as everywhere.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from rope_jax.errors import printable

_ACTIVE = ("=", "+", "-", "@")


def format_csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table as CSV; numbers are written to the last digit, None as an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([_cell(value) for value in row] for row in (header, *rows))
    return text.getvalue()


def text_of_cell(cell: str) -> str:
    """Return the text that `format_csv` wrote as this cell."""
    return cell[1:] if cell[:1] == "'" and _is_active(cell[1:]) else cell


def _cell(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if _is_active(text) else text


def _is_active(text: str) -> bool:
    """Whether a spreadsheet may run text, or an apostrophe before it would be taken for ours."""
    if not text.lstrip("'").startswith(_ACTIVE):
        return False
    try:
        float(text)
    except ValueError:
        return True
    return False
