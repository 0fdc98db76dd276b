"""Validate a raw config, and explain the first error in one line.

A path is the sequence of keys and list indices that leads to a value of the raw config.
"""

import contextlib
import difflib
import functools
import re
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from rope_jax.config.keys import given_tag, is_list, models_in, sections, tag_key, type_tag
from rope_jax.errors import UserError
from rope_jax.rope.messages import (
    alternatives,
    explain_error,
    explain_type,
    requirement,
    shorten,
    show_value,
)

Model = TypeVar("Model", bound=BaseModel)
KeyPath = list[str | int]


def validate(schema: type[Model], raw: Any, origin: str) -> Model:
    """Validate `raw`; a UserError names its origin, the first wrong key and what would be right."""
    try:
        return schema.model_validate(raw)
    except ValidationError as error:
        errors = error.errors()
        # A missing key is often one that is misspelt: report unknown keys first.
        errors.sort(key=lambda e: e["type"] not in ("extra_forbidden", "invalid_key"))
        first, *rest = (tuple(_path(schema, raw, error)) for error in errors)
        # Every member of a union reports its own error at the same key, or at the section above
        # it: count these once.
        others = {*rest} - {first[:n] for n in range(len(first) + 1)}
        more = f" (and {len(others)} more)" if others else ""
        raise UserError(f"{origin}: {_explain(schema, raw, errors[0])}{more}") from None


def _explain(schema: type[BaseModel], raw: Any, error: ErrorDetails) -> str:
    kind, given = error["type"], error["input"]
    path = _path(schema, raw, error)
    key = ".".join(str(part) or "''" for part in path)
    if kind == "extra_forbidden":
        return f"{key}: unknown key; {_suggest_key(schema, path, raw)}"
    in_key = error["loc"][-1:] == ("[key]",)  # of a mapping
    if kind == "invalid_key" or (in_key and kind == "string_type"):
        up = 2 if in_key else 1  # pydantic's path has the key itself, then "[key]"
        parents = _path(schema, raw, error | {"loc": error["loc"][:-up]})  # type: ignore[arg-type]
        key = ".".join([*map(str, parents), show_value(given)])
        return f"{key}: every key must be text"
    if in_key:  # the keys are a Literal
        names = re.findall(r"'(\w+)'", str(error["ctx"]["expected"]))
        close = difflib.get_close_matches(str(given), names, n=1)
        advice = f"did you mean {close[0]}?" if close else f"the keys here are {', '.join(names)}"
        return f"{key}: unknown key; {advice}"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        models = [model for model in _models_at(schema, path, raw) if tag_key(model)]
        types, wrong = [str(type_tag(model)) for model in models], given_tag(given)
        tag, listed = f"{key}.{tag_key(models[0])}", ", ".join(types)
        if kind == "union_tag_not_found":
            return f"{tag}: is required; it is one of {listed}"
        if elsewhere := _same_type_elsewhere(schema, path, wrong, types):
            advice = f"did you mean {elsewhere}={wrong}?"
            return f"{tag}: {show_value(wrong)} is not one of {listed}; {advice}"
        return f"{tag}: {explain_type(wrong, types)}"
    if kind == "value_error":  # raised by our own checks; the message contains the values
        return _join(key, requirement(error), _models_at(schema, path, raw))
    return explain_error(error, key) + _hint(schema, path, raw, error)


def _same_type_elsewhere(
    schema: type[BaseModel], path: KeyPath, wrong: Any, types: Sequence[str]
) -> str | None:
    """Return the nearest `type` key of another union, of which `wrong` is a member, if any.

    None if `wrong` also belongs to a union like that of `types`, where it is only not allowed here.
    """
    tags = {key: [*filter(None, map(type_tag, m))] for key, m in sections(schema).items()}
    found = [key for key, members in tags.items() if wrong in members]
    if any({*tags[key]} & {*types} for key in found):
        return None
    return _nearest([f"{key}.{tag_key(sections(schema)[key][0])}" for key in found], path)


def _join(key: str, message: str, models: Sequence[type[BaseModel]]) -> str:
    """Put a section's key before a check's message, which may itself begin with keys of it."""
    names = {name for model in models for name in model.model_fields}
    begins_with_key = re.match(r"(\w+)(\.\w+)*(, \w+)*: ", message)
    between = "." if begins_with_key and begins_with_key[1] in names else ": "
    return f"{key}{between}{message}" if key else message


def _hint(schema: type[BaseModel], path: KeyPath, raw: Any, error: ErrorDetails) -> str:
    kind, given, key = error["type"], error["input"], ".".join(map(str, path))
    if kind == "string_type" and isinstance(given, int | float):
        return f"""; quote text: "{key}='...'" on the command line, '...' in a file"""
    if kind in ("int_type", "float_type") and isinstance(given, str):
        with contextlib.suppress(ValueError):
            float(given)
            return "; without quotes it is a number"
    if kind == "float_type" and isinstance(given, int) and not isinstance(given, bool):
        return ", which is too large for a float"
    if kind in ("tuple_type", "list_type") and isinstance(given, str):
        return f"; a list of one element is [{shorten(given)}]"
    if kind == "tuple_type" and isinstance(given, dict) and "".join(map(str, given)).isdecimal():
        return f"; to change one element by number, give the whole list first, {key}=[...]"
    if kind == "model_attributes_type" and isinstance(given, str):
        types = [tag for tag in map(type_tag, _models_at(schema, path, raw)) if tag]
        close = difflib.get_close_matches(given, types, n=1)
        return f"; did you mean {key}.type={close[0]}?" if close else ""
    return ""


def _path(schema: type[BaseModel], raw: Any, error: ErrorDetails) -> KeyPath:
    """Return pydantic's path to an error without the union members that it passes through."""
    path: KeyPath = []
    node, loc = raw, error["loc"]
    ends_with_key = error["type"] in ("missing", "extra_forbidden")
    for place, part in enumerate(loc):
        is_list = isinstance(node, list | tuple)
        keys = range(len(node)) if is_list else node if isinstance(node, dict) else ()
        if part in keys:
            node = node[part]
        elif isinstance(node, dict) and part == given_tag(node):
            continue  # a member of a union, whose name may be that of a key elsewhere
        elif isinstance(part, int) or part in _key_names(schema):
            node = None  # below a value that is not in `raw`: it was read from a file
        elif place + 1 < len(loc) or not ends_with_key:
            continue
        path.append(part)
    return path


@functools.cache
def _key_names(schema: type[BaseModel]) -> frozenset[str]:
    models = (model for several in sections(schema).values() for model in several)
    return frozenset(name for model in models for name in model.model_fields)


def _models_at(
    schema: type[BaseModel], path: Sequence[str | int], raw: Any
) -> list[type[BaseModel]]:
    models, node = [schema], raw
    for part in path:
        type_ = given_tag(node)
        node = node[part]
        if isinstance(part, int):
            continue
        fields = [m.model_fields[part] for m in _of_type(models, type_) if part in m.model_fields]
        models = [model for field in fields for model in models_in(field.annotation)]
    return models


def _of_type(models: list[type[BaseModel]], type_: Any) -> list[type[BaseModel]]:
    """Return the models of this type; all models if none has it or the type is not given."""
    return [m for m in models if type_ is None or type_tag(m) in (None, type_)] or models


def _suggest_key(schema: type[BaseModel], path: KeyPath, raw: Any) -> str:
    *parents, wrong = path
    section = raw
    for part in parents:
        section = section[part]
    prefix = "".join(f"{part}." for part in parents)
    models = _models_at(schema, parents, raw)
    fields: dict[str, FieldInfo] = {}
    for model in _of_type(models, given_tag(section)):
        fields |= model.model_fields
    for name, field in fields.items():
        if any(wrong in model.model_fields for model in models_in(field.annotation)):
            deeper = f"{name}.N" if is_list(field.annotation) else name
            return f"did you mean {prefix}{deeper}.{wrong}?"
    if owners := [model for model in models if wrong in model.model_fields]:
        types = [str(type_tag(model)) for model in owners]
        return f"it belongs to {prefix}{tag_key(owners[0])} {alternatives(types)}"
    close = difflib.get_close_matches(str(wrong), fields, n=1)
    if close:
        return f"did you mean {prefix}{close[0]}?"
    found = [
        f"{section}.{wrong}"
        for section, models in sections(schema).items()
        if section and any(wrong in model.model_fields for model in models)
    ]
    elsewhere = _nearest(found, parents)
    return f"did you mean {elsewhere}?" if elsewhere else f"the keys here are {', '.join(fields)}"


def _nearest(keys: Sequence[str], parents: KeyPath) -> str | None:
    """Return the key in the section `parents` or the deepest one around it, or else the first."""
    place = ["N" if isinstance(part, int) else part for part in parents]
    around = [key for key in keys if key.split(".")[:-1] == place[: key.count(".")]]
    return max(around, key=len, default=keys[0]) if keys else None
