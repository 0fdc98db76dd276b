"""Validate a raw config, and explain the first error in one line."""

import difflib
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from rope_jax.config.keys import is_list, models_in, sections, tag_key, type_tag
from rope_jax.errors import UserError
from rope_jax.rope.messages import alternatives, explain_error, requirement, shorten

Model = TypeVar("Model", bound=BaseModel)


def validate(schema: type[Model], raw: Any, origin: str) -> Model:
    """Validate `raw`; a UserError names its origin, the first wrong key and what would be right."""
    try:
        return schema.model_validate(raw)
    except ValidationError as error:
        errors = error.errors()
        # A missing key is often one that is misspelt: report unknown keys first.
        errors.sort(key=lambda e: e["type"] not in ("extra_forbidden", "invalid_key"))
        first, *rest = (_place(schema, raw, error["loc"]).path for error in errors)
        # Every member of a union reports its own error at the same key, or at the section above
        # it: count these once.
        others = {*rest} - {first[:n] for n in range(len(first) + 1)}
        more = f" (and {len(others)} more)" if others else ""
        raise UserError(f"{origin}: {_explain(schema, raw, errors[0])}{more}") from None


class _Place(NamedTuple):
    """A place in a config: the keys and list indices that lead to it, and what it may hold."""

    path: tuple[str | int, ...]
    models: list[type[BaseModel]]  # of a union all members
    given: list[type[BaseModel]]  # the member whose type is written; all of them if none is


def _place(schema: type[BaseModel], raw: Any, loc: Sequence[str | int]) -> _Place:
    """Return the place of pydantic's `loc`, which also names the union members on the way."""
    place, node = _Place((), [schema], [schema]), raw
    for part in loc:
        members = [model for model in place.given if type_tag(model) == part]
        is_key = isinstance(node, dict) and part in node
        if members and len(place.given) > 1:
            place = place._replace(given=members)
        elif place.models or isinstance(part, int) or is_key:
            models = place.models
            if not isinstance(part, int):
                fields = [m.model_fields[part] for m in place.given if part in m.model_fields]
                models = [model for field in fields for model in models_in(field.annotation)]
            place = _Place((*place.path, part), models, models)
            is_index = isinstance(node, list | tuple) and part in range(len(node))
            node = node[part] if is_key or is_index else None
    return place


def _explain(schema: type[BaseModel], raw: Any, error: ErrorDetails) -> str:
    kind, given = error["type"], error["input"]
    place = _place(schema, raw, error["loc"])
    key = ".".join(str(part) or "''" for part in place.path)
    if kind == "extra_forbidden":
        section = _place(schema, raw, error["loc"][:-1])
        return f"{key}: unknown key; {_suggest_key(schema, section, str(error['loc'][-1]))}"
    if kind == "union_tag_not_found":
        one_of = ", ".join(str(type_tag(model)) for model in place.models)
        return f"{key}.{tag_key(place.models[0])}: is required; it is one of {one_of}"
    if kind == "value_error":  # raised by our own checks; the message contains the values
        message = requirement(error)
        names = {name for model in place.models for name in model.model_fields}
        begins_with_key = re.match(r"(\w+)(\.\w+)*(, \w+)*: ", message)
        between = "." if begins_with_key and begins_with_key[1] in names else ": "
        return f"{key}{between}{message}" if key else message
    hint = ""
    if kind == "string_type" and isinstance(given, int | float) and error["loc"][-1] != "[key]":
        hint = f"""; quote text: "{key}='...'" on the command line, '...' in a file"""
    elif kind in ("tuple_type", "list_type") and isinstance(given, str):
        hint = f"; a list of one element is [{shorten(given)}]"
    elif kind == "model_attributes_type" and isinstance(given, str):
        types = [tag for tag in map(type_tag, place.models) if tag]
        if close := difflib.get_close_matches(given, types, n=1):
            hint = f"; did you mean {key}.type={close[0]}?"
    return explain_error(error, key) + hint


def _suggest_key(schema: type[BaseModel], section: _Place, wrong: str) -> str:
    prefix = "".join(f"{part}." for part in section.path)
    fields: dict[str, FieldInfo] = {}
    for model in section.given:
        fields |= model.model_fields
    for name, field in fields.items():
        if any(wrong in model.model_fields for model in models_in(field.annotation)):
            deeper = f"{name}.N" if is_list(field.annotation) else name
            return f"did you mean {prefix}{deeper}.{wrong}?"
    if owners := [model for model in section.models if wrong in model.model_fields]:
        types = [str(type_tag(model)) for model in owners]
        return f"it belongs to {prefix}{tag_key(owners[0])} {alternatives(types)}"
    if close := difflib.get_close_matches(wrong, fields, n=1):
        return f"did you mean {prefix}{close[0]}?"
    for elsewhere, models in sections(schema).items():
        if elsewhere and any(wrong in model.model_fields for model in models):
            return f"did you mean {elsewhere}.{wrong}?"
    return f"the keys here are {', '.join(fields)}"
