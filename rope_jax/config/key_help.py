"""What --help says about the keys of a config: an overview, and all about one section or key."""

import difflib
import textwrap
from collections.abc import Collection, Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rope_jax.config.keys import (
    TAG_KEYS,
    is_list,
    models_in,
    sections,
    tag_key,
    type_in_words,
    type_tag,
)
from rope_jax.errors import UserError
from rope_jax.invocation import command_line
from rope_jax.rope.messages import show_value

_SIGNATURE = 34  # width of name, type and default in the overview; longer ones move what follows
_INDENT = "  "


def key_overview(schema: type[BaseModel], program: str, width: int) -> list[str]:
    """Return one line of `width` columns per key: its type, default and, cut, its description.

    A union has a list of its types where it occurs first; `key_section` lists the keys of each.
    """
    listed: dict[tuple[str, ...], str] = {}  # the first key of each union, by its types
    lines = list(_overview(schema, "", width, listed))
    example = f", for example {program} --help {next(iter(listed.values()))}" if listed else ""
    more = [f"All about a key or a section, and the keys of each type: --help KEY{example}"]
    if any("yarn" in types for types in listed):
        more.append(f"What scalings do to each pair: {command_line('show')}")
    return [*lines, "", *(line for text in more for line in _wrapped(text, width))]


def _overview(
    schema: type[BaseModel], prefix: str, width: int, listed: dict[tuple[str, ...], str]
) -> Iterator[str]:
    indent = _INDENT * len([part for part in prefix.split(".") if part not in ("", "N")])
    for name, field in schema.model_fields.items():
        models, about = models_in(field.annotation), field.description or ""
        name += ".N" * is_list(field.annotation) if models else ""
        if not models:
            start = f"{name}: {_signature(field)}"
            type_ = type_in_words(field.annotation)
            if "|" in type_:
                choices = type_.replace("|", ", ")
                about = choices if choices.startswith("list") else f"one of {choices}"
                start = start.replace(f": {type_}", "", 1)
            yield _cut(f"{indent + start:{_SIGNATURE}}{_INDENT}{about}", width)
        elif len(models) == 1:
            yield _cut(f"{indent}{name}{': ' * bool(about)}{about}", width)
            yield from _overview(models[0], f"{prefix}{name}.", width, listed)
        else:
            types = _types(models)
            yield _cut(f"{indent}{name}: {_signature(field)}{_INDENT}{about}".rstrip(), width)
            if types in listed:
                yield f"{indent}{_INDENT * 2}types: those of {listed[types]}"
            else:
                listed[types] = prefix + name
                yield from _wrapped(f"types: {', '.join(types)}", width, indent + _INDENT * 2)


def key_section(schema: type[BaseModel], section: str, width: int) -> list[str]:
    """Return all about the keys of a section, by type in a union; or about one key.

    section: dotted, such as "rope.scaling" or "stages.0". UserError: there is no such key.
    """
    asked = ".".join("N" if part.isdecimal() else part for part in section.split("."))
    found = sections(schema)
    above, _, last = asked.removesuffix(".N").rpartition(".")
    owners = [model for model in found.get(above, ()) if last in model.model_fields]
    if not owners:
        every = {f"{key}.{name}".lstrip(".") for key in found for m in found[key]
                 for name in m.model_fields}  # fmt: skip
        close = difflib.get_close_matches(asked, sorted(every), n=1, cutoff=0.5)
        there = f"there are {', '.join(schema.model_fields)}"
        advice = f"did you mean {close[0]}?" if close else there
        raise UserError(f"--help {section}: there is no such key; {advice}")
    lines: list[str] = []
    alike: dict[Any, list[type[BaseModel]]] = {}  # types whose key of this name is the same
    for model in owners:
        alike.setdefault(_identity(model, last), []).append(model)
    for models in alike.values():
        only = "" if len(models) == len(found[above]) else f" [{', '.join(_types(models))}]"
        field = models[0].model_fields[last]
        lines += _details(f"{above}.{last}".lstrip("."), field, only, width)
    models = found.get(asked) or found.get(f"{asked}.N") or []
    if len(models) < 2:
        return [*lines, *(line for model in models for line in _keys(model, width, _INDENT))]
    fields = [*models[0].model_fields]
    shared = [name for name in fields if len({_identity(model, name) for model in models}) == 1]
    for model in models:
        summary = (model.__doc__ or "").partition("\n")[0]
        lines += _wrapped(f"{type_tag(model)}: {summary}", width, _INDENT)
        lines += _keys(model, width, _INDENT * 2, without=[*shared, *TAG_KEYS])
    if shared:
        lines.append(f"{_INDENT}every {tag_key(models[0])}:")
        lines += _keys(models[0], width, _INDENT * 2, without={*fields} - {*shared})
    return lines


def _keys(
    model: type[BaseModel], width: int, indent: str, without: Collection[str] = ()
) -> Iterator[str]:
    for name, field in model.model_fields.items():
        if name in without:
            continue
        yield from _details(name, field, "", width, indent)
        if len(models := models_in(field.annotation)) == 1:
            yield from _keys(models[0], width, indent + _INDENT)


def _details(
    name: str, field: FieldInfo, owned: str, width: int, indent: str = ""
) -> Iterator[str]:
    models, about = models_in(field.annotation), (field.description or "") + owned
    if len(models) == 1:
        name += ".N" * is_list(field.annotation)
        yield from _wrapped(f"{name}: {about}" if about else name, width, indent)
        return
    if models:
        about += "; " * bool(about) + f"types: {', '.join(_types(models))}"
    yield from _wrapped(f"{name}: {_signature(field)}", width, indent)
    yield from _wrapped(about, width, indent + _INDENT * 2)


def _identity(model: type[BaseModel], name: str) -> tuple[str, str | None] | None:
    """Return what is shown of a key; None if the model does not have it."""
    field = model.model_fields.get(name)
    return None if field is None else (_signature(field), field.description)


def _types(models: list[type[BaseModel]]) -> tuple[str, ...]:
    return tuple(str(type_tag(model)) for model in models)


def _signature(field: FieldInfo) -> str:
    """Return type and default, such as "int = 0"; of a union, "by type" and the type by default."""
    models = models_in(field.annotation)
    type_ = f"by {tag_key(models[0])}" if models else type_in_words(field.annotation)
    if field.is_required():
        return f"{type_}, required"
    value = field.get_default(call_default_factory=True)
    # null is clear from "int or null"
    if (models and field.default_factory) or (value is None and type_.endswith(" or null")):
        return type_
    if isinstance(value, BaseModel):
        default = type_tag(type(value))
    elif isinstance(value, tuple):
        default = ", ".join(map(str, value))
    else:
        default = value if isinstance(value, str) else show_value(value)
    return f"{type_} = {default}" if default else type_


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
