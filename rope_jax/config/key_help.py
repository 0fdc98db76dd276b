"""What --help says about the keys of a config: an overview, and all about one section or key."""

import difflib
import textwrap
import types
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rope_jax.config.messages import show_value
from rope_jax.config.schema import TAG_KEYS, is_list, models_in, sections, tag_key, type_tag
from rope_jax.errors import UserError

_TITLE = 34  # width of name, type and default in the overview; longer ones move what follows
_INDENT = "  "


def key_overview(schema: type[BaseModel], program: str, width: int) -> list[str]:
    """Return one line of `width` columns per key: its type, default and, cut, its description."""
    lines = [_cut(line.rstrip(), width) for line in _overview(schema, "")]
    about = f"All about a key or a section, and the keys of each type: {program} --help KEY"
    return [*lines, "", *_wrapped(about, width)]


def _overview(model: type[BaseModel], indent: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        models = models_in(field.annotation)
        yield f"{indent + _title(name, field):{_TITLE}}{_INDENT}{field.description or ''}"
        if len(models) == 1:
            yield from _overview(models[0], indent + _INDENT)
        elif models:
            yield f"{indent}{_INDENT * 2}types: {_types(models)}"


def key_section(schema: type[BaseModel], section: str, width: int) -> list[str]:
    """Return all about one key, and about the keys of a section, with the types that have them.

    section: dotted, such as "rope.scaling" or "stages.0". UserError: there is no such key.
    """
    asked = ".".join("N" if part.isdecimal() else part for part in section.split("."))
    known = sections(schema)
    above, _, name = asked.removesuffix(".N").rpartition(".")
    owners = [model for model in known.get(above, ()) if name in model.model_fields]
    if not owners:
        every = [f"{key}.{each}".lstrip(".") for key, models in known.items()
                 for model in models for each in model.model_fields]  # fmt: skip
        close = difflib.get_close_matches(asked, sorted({*every}), n=1, cutoff=0.5)
        there = f"there are {', '.join(schema.model_fields)}"
        advice = f"did you mean {close[0]}?" if close else there
        raise UserError(f"--help {section}: there is no such key; {advice}")
    lines = [*_details(known[above], name, f"{above}.".lstrip("."), "", width)]
    models = known.get(asked) or known.get(f"{asked}.N") or []
    if len(models) > 1:
        for model in models:
            summary = (model.__doc__ or "").partition("\n")[0]
            lines += _wrapped(f"{type_tag(model)}: {summary}", width, _INDENT)
        lines += _below(models, _INDENT, width)
    return lines


def _details(
    models: Sequence[type[BaseModel]], name: str, before: str, indent: str, width: int
) -> Iterator[str]:
    """Yield all about a key of some models, and about those below it unless they differ by type."""
    alike: dict[tuple[str, str], list[type[BaseModel]]] = {}  # models whose key is the same
    for model in models:
        if (field := model.model_fields.get(name)) is not None:
            inner = models_in(field.annotation)
            types = f"types: {_types(inner)}" if len(inner) > 1 else ""
            about = "; ".join(filter(None, (field.description, types)))
            alike.setdefault((_title(name, field), about), []).append(model)
    for (title, about), owners in alike.items():
        only = f"[{_types(owners)}]" if len(owners) < len(models) else ""
        yield from _wrapped(before + title, width, indent)
        yield from _wrapped(about, width, indent + _INDENT * 2)
        yield from _wrapped(only, width, indent + _INDENT * 2)
        inner = models_in(owners[0].model_fields[name].annotation)
        if len(inner) == 1:
            yield from _below(inner, indent + _INDENT, width)


def _below(models: Sequence[type[BaseModel]], indent: str, width: int) -> Iterator[str]:
    names = dict.fromkeys(name for model in models for name in model.model_fields)
    for name in names:
        if len(models) == 1 or name not in TAG_KEYS:
            yield from _details(models, name, "", indent, width)


def _types(models: Sequence[type[BaseModel]]) -> str:
    return ", ".join(str(type_tag(model)) for model in models)


def _title(name: str, field: FieldInfo) -> str:
    """Return a key's name, type and default; of a section that is no union, the name alone."""
    models = models_in(field.annotation)
    name += ".N" * (is_list(field.annotation) and bool(models))
    if len(models) == 1:
        return name
    type_ = f"by {tag_key(models[0])}" if models else _type_in_words(field.annotation)
    if field.is_required():
        return f"{name}: {type_}, required"
    value = field.get_default(call_default_factory=True)
    # null is clear from "int or null"
    if (models and field.default_factory) or (value is None and type_.endswith(" or null")):
        return f"{name}: {type_}"
    if isinstance(value, BaseModel):
        value = type_tag(type(value))
    elif isinstance(value, tuple):
        value = ", ".join(map(str, value))
    default = value if isinstance(value, str) else show_value(value)
    return f"{name}: {type_} = {default}" if default else f"{name}: {type_}"


def _type_in_words(annotation: Any) -> str:
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
        values = _type_in_words(get_args(annotation)[1])
        return "mapping of lists" if values.startswith("list of ") else "mapping"
    if args := get_args(annotation):  # Literal
        return "|".join(str(value) for value in args)
    return annotation.__name__


def _cut(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    return text[: text.rfind(" ", 0, width - 1)].rstrip(" ;,:") + " …"


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """Wrap text between words only; later lines are indented more."""
    return textwrap.wrap(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=indent + _INDENT * bool(indent),
        break_on_hyphens=False,
        break_long_words=False,
    )
