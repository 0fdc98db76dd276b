"""Validate a raw config, and explain its first error in one line."""

import difflib
import functools
import re
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rope_jax.config.keys import cut_short, fields, is_list, models_in, shown, type_of
from rope_jax.errors import UserError

Model = TypeVar("Model", bound=BaseModel)


def validate(schema: type[Model], raw: Any, origin: str) -> Model:
    """`raw` as a `schema`; a UserError names the first wrong key and the nearest valid choice."""
    try:
        return schema.model_validate(raw)
    except ValidationError as error:
        errors = error.errors()
        # An unknown key is often the cause of another's absence: say it first.
        errors.sort(key=lambda e: e["type"] not in ("extra_forbidden", "invalid_key"))
        first = _path(schema, raw, errors[0])
        # a union's members each complain at one key, and its parents of what is missing then
        others = {tuple(_path(schema, raw, e)) for e in errors[1:]}
        others -= {tuple(first[:n]) for n in range(len(first) + 1)}
        more = f" (and {len(others)} more)" if others else ""
        raise UserError(f"{origin}: {_explain(schema, raw, errors[0])}{more}") from None


_SHOULD = {
    "int_type": "should be a whole number",
    "float_type": "should be a number",
    "bool_type": "should be true or false",
    "string_type": "should be text",
    "list_type": "should be a list",
    "tuple_type": "should be a list",
    "dict_type": "should be a list or a mapping",
    "too_short": "should have at least one element",
    # the one pattern there is: a folder's name
    "string_pattern_mismatch": "should be of letters, digits and ._=+-, a letter or digit first",
    "model_type": "should hold keys of its own",
    "model_attributes_type": "should hold keys of its own",
}


def _explain(schema: type[BaseModel], raw: Any, error: ErrorDetails) -> str:
    kind, given = error["type"], error["input"]
    path = _path(schema, raw, error)
    key = ".".join(str(part) or "''" for part in path)
    if kind == "extra_forbidden":
        return f"{key}: unknown key{_nearest(schema, path, raw)}"
    if kind == "invalid_key":
        path = _path(schema, raw, error | {"loc": error["loc"][:-1]})  # type: ignore[arg-type]
        return f"{'.'.join([*map(str, path), shown(given)])}: is not text; every key is"
    if error["loc"][-1:] == ("[key]",):  # of a mapping whose keys are listed
        names = re.findall(r"'(\w+)'", str(error["ctx"]["expected"]))
        close = difflib.get_close_matches(str(given), names, n=1)
        near = f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}"
        return f"{key}: unknown key; {near}"
    if kind == "missing":
        return f"{key}: is required and was not given"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        tags = _types_at(schema, path, raw)
        if kind == "union_tag_not_found":
            return f"{key}.type: is required; it is one of {', '.join(tags)}"
        tag = given["type"]
        close = _close_types(tag, tags) if isinstance(tag, str) else []
        near = f"; did you mean {' or '.join(close)}?" if close else ""
        return f"{key}.type: {shown(tag)} is not one of {', '.join(tags)}{near}"
    message = error["msg"].removeprefix("Value error, ").removeprefix("Input ")
    message = _SHOULD.get(kind, message[:1].lower() + message[1:])
    if kind == "value_error":  # a check of ours, which names the values itself
        keys = {name for model in _models_at(schema, path, raw) for name in model.model_fields}
        begins = re.match(r"(\w+)(\.\w+)*(, \w+)*: ", message)
        between = "." if begins and begins[1] in keys else ": "
        return f"{key}{between}{message}" if key else message
    return f"{key}: {message}, not {shown(given)}{_hint(schema, path, raw, error)}"


def _hint(schema: type[BaseModel], path: list[str | int], raw: Any, error: ErrorDetails) -> str:
    """How a value of the wrong kind was probably meant."""
    kind, given, key = error["type"], error["input"], ".".join(map(str, path))
    if kind == "string_type" and isinstance(given, int | float):
        return f"""; in quotes it is text: "{key}='...'" on a command line, '...' in a file"""
    if kind in ("int_type", "float_type") and isinstance(given, str) and _is_number(given):
        return "; without quotes it is a number"
    if kind == "float_type" and isinstance(given, int) and not isinstance(given, bool):
        return ", which is too large for one"
    if kind in ("tuple_type", "list_type") and isinstance(given, str):
        return f"; a list of one is [{cut_short(given)}]"
    if kind == "tuple_type" and isinstance(given, dict) and "".join(map(str, given)).isdecimal():
        return f"; to change one element by number, give the whole list first, {key}=[...]"
    if kind == "model_attributes_type" and isinstance(given, str):
        close = difflib.get_close_matches(given, _types_at(schema, path, raw), n=1)
        return f"; did you mean {key}.type={close[0]}?" if close else ""
    return ""


def _close_types(tag: str, tags: Sequence[str]) -> list[str]:
    """The types that a wrong one is the beginning of, or else the one it is most like."""
    begun = [known for known in tags if tag and known.startswith(tag)]
    return begun or difflib.get_close_matches(tag, tags, n=1)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _path(schema: type[BaseModel], raw: Any, error: ErrorDetails) -> list[str | int]:
    """pydantic's path to an error, without the names of the union members it passed through."""
    path: list[str | int] = []
    node, loc = raw, error["loc"]
    names_a_key = error["type"] in ("missing", "extra_forbidden")
    for place, part in enumerate(loc):
        keys = node.keys() if isinstance(node, dict) else range(len(node)) if _is_seq(node) else ()
        if part in keys:
            node = node[part]
        elif isinstance(part, int) or part in _names(schema):
            node = None  # of a value that `raw` does not hold: it was read from a file
        elif place + 1 < len(loc) or not names_a_key:
            continue
        path.append(part)
    return path


def _is_seq(node: Any) -> bool:
    return isinstance(node, list | tuple)


@functools.cache
def _names(schema: type[BaseModel]) -> frozenset[str]:
    """The last part of every key."""
    return frozenset(key.rpartition(".")[2] for key, *_ in fields(schema))


def _models_at(schema: type[BaseModel], path: Sequence[str | int], raw: Any) -> list[Any]:
    """The config models that may stand at a place, whatever its type."""
    models, node = [schema], raw
    for part in path:
        kind = node.get("type") if isinstance(node, dict) else None
        node = node[part]
        if isinstance(part, int):
            continue
        models = _of_type(models, kind)
        found = [m.model_fields[part].annotation for m in models if part in m.model_fields]
        models = [model for annotation in found for model in models_in(annotation)]
    return models


def _types_at(schema: type[BaseModel], path: Sequence[str | int], raw: Any) -> list[str]:
    return [kind for kind in map(type_of, _models_at(schema, path, raw)) if kind]


def _of_type(models: list[type[BaseModel]], kind: Any) -> list[type[BaseModel]]:
    return [m for m in models if kind is None or type_of(m) in (None, kind)] or models


def _nearest(schema: type[BaseModel], path: Sequence[str | int], raw: Any) -> str:
    """The valid keys beside an unknown one, nearest first."""
    *parents, wrong = path
    node = raw
    for part in parents:
        node = node[part]
    every = _models_at(schema, parents, raw)
    here = {
        name: f for m in _of_type(every, node.get("type")) for name, f in m.model_fields.items()
    }
    for name, field in here.items():
        if any(wrong in model.model_fields for model in models_in(field.annotation)):
            below = f"{name}.N" if is_list(field.annotation) else name
            return f"; did you mean {'.'.join([*map(str, parents), below, str(wrong)])}?"
    owners = [str(type_of(model)) for model in every if wrong in model.model_fields]
    if owners:
        return f"; it goes with {'.'.join(map(str, parents))}.type {' or '.join(owners)}"
    close = difflib.get_close_matches(str(wrong), here, n=1)
    if close:
        return f"; did you mean {'.'.join([*map(str, parents), close[0]])}?"
    elsewhere = [key for key, *_ in fields(schema) if key.rpartition(".")[2] == str(wrong)]
    if elsewhere:
        place = ["N" if isinstance(part, int) else part for part in parents]
        around = [key for key in elsewhere if key.split(".")[:-1] == place[: key.count(".")]]
        return f"; did you mean {max(around, key=len, default=elsewhere[0])}?"
    return f"; there are {', '.join(here)}"
