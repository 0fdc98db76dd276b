"""Values of a config as short text for a reader."""

from typing import Any

_MAX_CHARACTERS = 60


def show_value(value: Any) -> str:
    """Return a value as a reader of YAML knows it, shortened."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    try:
        return shorten(repr(value))
    except ValueError:  # Python does not print numbers of more than 4300 digits
        return "a number of thousands of digits"


def shorten(text: str) -> str:
    """Return `text`, cut to 60 characters, the last three of which then are an ellipsis."""
    return text if len(text) <= _MAX_CHARACTERS else text[: _MAX_CHARACTERS - 3] + "..."


def alternatives(names: list[str]) -> str:
    """Return "a", "a or b", "a, b or c"."""
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last
