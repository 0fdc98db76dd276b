"""Errors in settings as one line: the key, what is wrong with it, and what would be right."""

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Literal, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rope_jax.config.schema import TAG_KEYS, at, models_in, sections, tag_key, type_tag

Schemas = Sequence[type[BaseModel]]
Path = tuple[str | int, ...]
Model = TypeVar("Model", bound=BaseModel)

_MAX_CHARACTERS = 60
_REQUIREMENTS = {
    "int_type": "should be a whole number",
    "float_type": "should be a number",
    "bool_type": "should be true or false",
    "string_type": "should be text",
    "list_type": "should be a list",
    "tuple_type": "should be a list",
    "dict_type": "should be a mapping",
    "too_short": "should have at least one element",
    # only folder names have a pattern
    "string_pattern_mismatch": "should consist of letters, digits and ._=+-, "
    "starting with a letter or digit",
    "model_type": "should be a section with keys",
    "model_attributes_type": "should be a section with keys",
}


def validated(schema: type[Model], settings: object, before: str = "") -> Model:
    """Return the model with some settings. ValueError: the line of `explain`, after `before`."""
    try:
        return schema.model_validate(settings)
    except ValidationError as error:
        raise ValueError(f"{before}{explain(error, settings, schema)}") from None


def explain(error: ValidationError, settings: object, *schemas: type[BaseModel]) -> str:
    """Return the first validation error as one line that begins with its key.

    The line ends with the number of other errors, if there are any. settings: what was validated.
    schemas: the model that it should fit, or the members of a union.
    """
    # A missing key is often one that is misspelt: report unknown keys first.
    unknown = ("extra_forbidden", "invalid_key")
    errors = sorted(error.errors(), key=lambda each: each["type"] not in unknown)
    first, *rest = (_locate(schemas, settings, each["loc"])[0] for each in errors)
    # Every member of a union reports its own error at the same key, or at the section above it:
    # count these once.
    others = {*rest} - {first[:n] for n in range(len(first) + 1)}
    more = f" (and {len(others)} more)" if others else ""
    return _explain(schemas, settings, errors[0]) + more


def _locate(
    schemas: Schemas, settings: object, loc: Sequence[str | int]
) -> tuple[Path, Schemas, Schemas]:
    """Return the keys and indices of pydantic's `loc`, and what is there: all models, those given.

    A `loc` also names the members of unions on the way. Those given are the member of a union whose
    type is written, all of them if none is.
    """
    path: Path = ()
    models, given, node = schemas, schemas, settings
    for part in loc:
        members = [model for model in given if type_tag(model) == part]
        if members and len(given) > 1:
            given = members
        elif models or isinstance(part, int) or (isinstance(node, Mapping) and part in node):
            if not isinstance(part, int):
                fields = [m.model_fields[part] for m in given if part in m.model_fields]
                models = [model for field in fields for model in models_in(field.annotation)]
            path, given, node = (*path, part), models, at(node, part)
    return path, models, given


def _explain(schemas: Schemas, settings: object, error: ErrorDetails) -> str:
    problem, wrong = error["type"], error["input"]
    path, models, _ = _locate(schemas, settings, error["loc"])
    key = ".".join(str(part) or "''" for part in path)
    below = f"{key}." if key else ""
    tag = tag_key(models[0]) if models else None
    types = [str(type_tag(model)) for model in models]
    hint = ""
    match problem:
        case "extra_forbidden":
            section = _locate(schemas, settings, error["loc"][:-1])
            return f"{key}: unknown key; {_suggest_key(schemas, *section, str(error['loc'][-1]))}"
        case "missing":
            field = _locate(schemas, settings, error["loc"][:-1])[2][0].model_fields[str(path[-1])]
            if Literal["auto"] in get_args(field.annotation):
                hint = "; give a number, or auto (length / window), which a bare name means"
            return f"{key}: is required but was not given{hint}"
        case "union_tag_not_found":
            return f"{below}{tag}: is required; it is one of {', '.join(types)}"
        case "union_tag_invalid":
            given = wrong.get(tag) if isinstance(wrong, Mapping) else error["ctx"]["tag"]
            return f"{below}{tag}: {explain_type(given, types)}"
        case "value_error":  # raised by our own checks; the message contains the values
            message = _requirement(error)
            names = {name for model in models for name in model.model_fields}
            begin = re.match(r"(\w+)(\.\w+)*(, \w+)*: ", message)
            between = "." if begin and begin[1] in names else ": "
            return f"{key}{between}{message}" if key else message
        case "string_type" if isinstance(wrong, int | float) and error["loc"][-1] != "[key]":
            hint = f"""; quote text: "{key}='...'" on the command line, '...' in a file"""
        case "tuple_type" | "list_type" if isinstance(wrong, str):
            hint = f"; a list of one element is [{shorten(wrong)}]"
        case "model_attributes_type" if isinstance(wrong, str) and wrong in types:
            hint = f"; did you mean {below}{tag}={wrong}?"
    subject = f"{key}: " if key else ""
    return f"{subject}{_requirement(error)}, not {show_value(wrong)}{hint}"


def _suggest_key(schemas: Schemas, path: Path, members: Schemas, given: Schemas, wrong: str) -> str:
    """Return advice for an unknown key at a path: the section or the type that has it, or all."""
    prefix = "".join(f"{part}." for part in path)
    if below := _with_key(wrong, given):
        return f"did you mean {prefix}{below[0]}?"
    if owners := [model for model in members if wrong in model.model_fields]:
        types = [str(type_tag(model)) for model in owners]
        return f"it belongs to {prefix}{tag_key(owners[0])} {alternatives(types)}"
    fields = list(dict.fromkeys(name for model in given for name in model.model_fields))
    close = [f"{prefix}{name}" for name in difflib.get_close_matches(wrong, fields, n=1)]
    if similar := close or _with_key(wrong, schemas):
        return f"did you mean {similar[0]}?"
    name = type_tag(given[0]) if len(given) == 1 else None
    listed = ", ".join([name for name in fields if name not in TAG_KEYS] or fields)
    return f"the keys {f'of {name}' if name else 'here'} are {listed}"


def _with_key(name: str, schemas: Schemas) -> list[str]:
    """Return the dotted keys of this name in the sections below some models, the nearest first."""
    below = [(key, models) for key, models in sections(*schemas).items() if key]
    return [f"{key}.{name}" for key, of in below if any(name in m.model_fields for m in of)]


def _requirement(error: ErrorDetails) -> str:
    """What a value should be, such as "should be a whole number"."""
    message = re.sub("^(Value error, |Input |String )", "", error["msg"])
    return _REQUIREMENTS.get(error["type"], message[:1].lower() + message[1:])


def explain_type(wrong: object, types: Sequence[str]) -> str:
    """Say that `wrong` is not one of the types, and which of them are most like it."""
    close = difflib.get_close_matches(wrong, types) if isinstance(wrong, str) else []
    near = f"; did you mean {alternatives(close)}?" if close else ""
    return f"{show_value(wrong)} is not one of {', '.join(types)}{near}"


def show_value(value: object) -> str:
    """Return null, true and false as in YAML, any other value as its repr, shortened."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return shorten(repr(value))


def shorten(text: str) -> str:
    """Return `text`, cut to 60 characters that end in "..." if it is longer."""
    return text if len(text) <= _MAX_CHARACTERS else text[: _MAX_CHARACTERS - 3] + "..."


def alternatives(names: Sequence[str]) -> str:
    """Return "a", "a or b", "a, b or c"."""
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last
