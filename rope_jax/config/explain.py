"""Validate a raw config, and explain the first error in one line.

A path is the sequence of keys and list indices that leads to a value of the raw config.
"""

import difflib
import functools
import operator
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
    requirement,
    shorten,
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
    if kind == "union_tag_not_found":
        models = [model for model in _models_at(schema, path, raw) if tag_key(model)]
        types = ", ".join(str(type_tag(model)) for model in models)
        return f"{key}.{tag_key(models[0])}: is required; it is one of {types}"
    if kind == "value_error":  # raised by our own checks; the message contains the values
        message = requirement(error)
        names = {name for model in _models_at(schema, path, raw) for name in model.model_fields}
        begins_with_key = re.match(r"(\w+)(\.\w+)*(, \w+)*: ", message)
        between = "." if begins_with_key and begins_with_key[1] in names else ": "
        return f"{key}{between}{message}" if key else message
    hint = ""
    if kind == "string_type" and isinstance(given, int | float) and error["loc"][-1] != "[key]":
        hint = f"""; quote text: "{key}='...'" on the command line, '...' in a file"""
    elif kind in ("tuple_type", "list_type") and isinstance(given, str):
        hint = f"; a list of one element is [{shorten(given)}]"
    elif kind == "model_attributes_type" and isinstance(given, str):
        types = [tag for tag in map(type_tag, _models_at(schema, path, raw)) if tag]
        if close := difflib.get_close_matches(given, types, n=1):
            hint = f"; did you mean {key}.type={close[0]}?"
    return explain_error(error, key) + hint


def _path(schema: type[BaseModel], raw: Any, error: ErrorDetails) -> KeyPath:
    """Return pydantic's path to an error without the union members that it passes through."""
    path: KeyPath = []
    node, loc = raw, error["loc"]
    ends_with_key = error["type"] in ("missing", "extra_forbidden", "invalid_key")
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
    section = functools.reduce(operator.getitem, parents, raw)
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
    for elsewhere, models in sections(schema).items():
        if elsewhere and any(wrong in model.model_fields for model in models):
            return f"did you mean {elsewhere}.{wrong}?"
    return f"the keys here are {', '.join(fields)}"
