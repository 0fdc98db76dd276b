"""What --help says about the keys of a config: an overview, and one section or key in full."""

import textwrap
import types
from collections.abc import Iterator
from typing import Annotated, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rope_jax.config.messages import show_value
from rope_jax.config.schema import TAG_KEYS, is_list, models_in, sections, tag_key, type_tag
from rope_jax.errors import UserError

_TITLE_WIDTH = 34  # of name, type and default; longer ones move the description


def key_overview(schema: type[BaseModel], program: str, width: int) -> list[str]:
    """Return one line of `width` columns per key: its type, default and, cut, its description."""
    lines = [_cut(line, width) for line in _lines(schema, "")]
    return [*lines, "", f"All about a key or a section: {program} --help KEY"]


def key_section(schema: type[BaseModel], section: str, width: int) -> list[str]:
    """Return all about one key or section, by type where it has several.

    section: dotted, such as "rope.scaling" or "stages.0". UserError: there is no such key.
    """
    asked = ".".join("N" if part.isdecimal() else part for part in section.split("."))
    known = sections(schema)
    above, _, name = asked.removesuffix(".N").rpartition(".")
    prefix = f"{above}." if above else ""
    # types that share a key say the same about it
    lines = dict.fromkeys(
        _line(name, model.model_fields[name], prefix)
        for model in known.get(above, ())
        if name in model.model_fields
    )
    if not lines:
        there = f"there are {', '.join(schema.model_fields)}"
        raise UserError(f"--help {section}: there is no such key; {there}")
    text, models = list(lines), known.get(asked) or known.get(f"{asked}.N") or []
    for model in models:
        if len(models) > 1:
            text.append(f"  {type_tag(model)}: {(model.__doc__ or '').partition(chr(10))[0]}")
        text += _lines(model, "    " if len(models) > 1 else "  ")
    return [part for line in text for part in _wrapped(line, width)]


def _lines(model: type[BaseModel], indent: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        if name in TAG_KEYS:
            continue
        yield _line(name, field, indent)
        models = models_in(field.annotation)
        if len(models) == 1:
            yield from _lines(models[0], indent + "  ")


def _line(name: str, field: FieldInfo, indent: str) -> str:
    """Return a key's name, type and default, its description, and the types of a union."""
    models, description = models_in(field.annotation), field.description or ""
    if len(models) > 1:
        description += f"; types: {', '.join(str(type_tag(model)) for model in models)}"
    return f"{indent + _title(name, field):{_TITLE_WIDTH}}  {description}".rstrip()


def _title(name: str, field: FieldInfo) -> str:
    models = models_in(field.annotation)
    if models and is_list(field.annotation):
        name += ".N"
    if len(models) == 1:
        return name
    type_ = f"by {tag_key(models[0])}" if models else _type_in_words(field.annotation)
    if field.is_required():
        return f"{name}: {type_}, required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        value = type_tag(type(value))
    elif isinstance(value, tuple):  # a list of sections is too long
        value = "" if models else ", ".join(map(str, value))
    elif value is None and type_.endswith(" or null"):
        value = ""
    default = value if isinstance(value, str) else show_value(value)
    return f"{name}: {type_} = {default}" if default else f"{name}: {type_}"


def _type_in_words(annotation: object) -> str:
    """Return an annotation as `--help` shows it, such as "list of int or null"."""
    if annotation is type(None):
        return "null"
    if get_origin(annotation) is Annotated:
        return _type_in_words(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return " or ".join(_type_in_words(inner) for inner in get_args(annotation))
    if is_list(annotation):
        return f"list of {_type_in_words(get_args(annotation)[0])}"
    if get_origin(annotation) is dict:
        return "mapping"
    if args := get_args(annotation):  # Literal
        return "|".join(str(value) for value in args)
    return str(getattr(annotation, "__name__", annotation))


def _cut(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    return text[: text.rfind(" ", 0, width - 1)].rstrip(" ;,:") + " …"


def _wrapped(line: str, width: int) -> list[str]:
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(line.strip(), width, initial_indent=indent,
                         subsequent_indent=indent + "    ", break_on_hyphens=False,
                         break_long_words=False)  # fmt: skip
