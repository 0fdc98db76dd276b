"""Errors in settings as one line: the key, what is wrong with it, and what would be right."""

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

_MAX_CHARACTERS = 60
_REQUIREMENTS = {
    "int_type": "should be a whole number",
    "float_type": "should be a number",
    "bool_type": "should be true or false",
    "string_type": "should be text",
    "list_type": "should be a list",
    "tuple_type": "should be a list",
    "dict_type": "should be a list or a mapping",
    "too_short": "should have at least one element",
    # only folder names have a pattern
    "string_pattern_mismatch": "should consist of letters, digits and ._=+-, "
    "starting with a letter or digit",
    "model_type": "should be a section with keys",
    "model_attributes_type": "should be a section with keys",
}


def first_error(error: ValidationError, settings: Any = None) -> str:
    """Return the first validation error as one line that begins with the field's name.

    settings: what was validated, if its sections have types (see `key_path`).
    """
    first = first_details(error)
    if first["type"] == "value_error":  # raised by our own validators, which name the fields
        return requirement(first)
    return explain_error(first, ".".join(key_path(first["loc"], settings)))


def explain_error(error: ErrorDetails, key: str) -> str:
    """Return what is wrong at a key and what would be right, in one line that begins with it."""
    if error["type"] == "missing":
        return f"{key}: is required but was not given"
    if error["type"] == "union_tag_not_found":
        return f"{key}.type: is required but was not given"
    if error["type"] == "union_tag_invalid":
        given, context = error["input"], error["ctx"]
        tag, types = context["discriminator"].strip("'"), context["expected_tags"][1:-1]
        wrong = given.get(tag) if isinstance(given, Mapping) else context["tag"]
        says = explain_type(wrong, types.split("', '"))
        return f"{key}.{tag}: {says}"
    return f"{key}: {requirement(error)}, not {show_value(error['input'])}"


def first_details(error: ValidationError) -> ErrorDetails:
    """Return the first error, or the first unknown key: a missing key is often one misspelt."""
    return min(error.errors(), key=lambda details: details["type"] != "extra_forbidden")


def key_path(loc: Sequence[str | int], settings: Any) -> list[str]:
    """Return pydantic's path to an error without the types of the sections of `settings`."""
    keys, node = [], settings
    for part in loc:
        if isinstance(node, Mapping) and part not in node and part == node.get("type"):
            continue
        keys.append(str(part))
        if isinstance(node, Mapping):
            node = node.get(part)
        elif isinstance(node, list | tuple) and isinstance(part, int):
            node = node[part]
        else:
            node = None
    return keys


def requirement(error: ErrorDetails) -> str:
    """What a value should be, such as "should be a whole number"."""
    message = re.sub("^(Value error, |Input |String )", "", error["msg"])
    return _REQUIREMENTS.get(error["type"], message[:1].lower() + message[1:])


def explain_type(wrong: Any, types: Sequence[str]) -> str:
    """Say that `wrong` is not one of the types, and which of them are most like it."""
    close: Sequence[str] = []
    if isinstance(wrong, str):
        completions = [known for known in types if wrong and known.startswith(wrong)]
        close = completions or difflib.get_close_matches(wrong, types, n=1)
    near = f"; did you mean {alternatives(close)}?" if close else ""
    return f"{show_value(wrong)} is not one of {', '.join(types)}{near}"


def show_value(value: Any) -> str:
    """Return null, true and false as in YAML, any other value as its repr, shortened."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    try:
        return shorten(repr(value))
    except ValueError:  # Python writes no numbers of more than 4,300 digits
        return "a number with thousands of digits"


def shorten(text: str) -> str:
    """Return `text`, cut to 60 characters that end in "..." if it is longer."""
    return text if len(text) <= _MAX_CHARACTERS else text[: _MAX_CHARACTERS - 3] + "..."


def alternatives(names: Sequence[str]) -> str:
    """Return "a", "a or b", "a, b or c"."""
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last
