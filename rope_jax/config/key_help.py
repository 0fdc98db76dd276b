"""What --help says about the keys of a config: an overview, and all about one section or key."""

import difflib
import textwrap
from collections.abc import Iterator, Sequence

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
from rope_jax.rope.messages import show_value

_TITLE = 34  # width of name, type and default in the overview; longer ones move what follows
_INDENT = "  "


def key_overview(schema: type[BaseModel], program: str, width: int) -> list[str]:
    """Return one line of `width` columns per key: its type, default and, cut, its description."""
    lines = [_cut(line.rstrip(), width) for line in _overview(schema, "")]
    key, types = max(sections(schema).items(), key=lambda section: len(section[1]))
    example = f", for example {program} --help {key}" if len(types) > 1 else ""
    about = f"All about a key or a section, and the keys of each type: --help KEY{example}"
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
    """Return all about the keys of a section, by type in a union; or about one key.

    section: dotted, such as "rope.scaling" or "stages.0". UserError: there is no such key.
    """
    asked = ".".join("N" if part.isdecimal() else part for part in section.split("."))
    found = sections(schema)
    above, _, last = asked.removesuffix(".N").rpartition(".")
    owners = [model for model in found.get(above, ()) if last in model.model_fields]
    if not owners:
        every = [f"{key}.{name}".lstrip(".") for key in found for m in found[key]
                 for name in m.model_fields]  # fmt: skip
        close = difflib.get_close_matches(asked, sorted({*every}), n=1, cutoff=0.5)
        there = f"there are {', '.join(schema.model_fields)}"
        advice = f"did you mean {close[0]}?" if close else there
        raise UserError(f"--help {section}: there is no such key; {advice}")
    lines: list[str] = []
    alike: dict[tuple[str, ...], list[type[BaseModel]]] = {}  # types whose key is the same
    for model in owners:
        about = _details(f"{above}.{last}".lstrip("."), model.model_fields[last], width)
        alike.setdefault(tuple(about), []).append(model)
    for text, models in alike.items():
        only = "" if len(models) == len(found[above]) else f"[{_types(models)}]"
        lines += [*text, *_wrapped(only, width, _INDENT * 2)]
    models = found.get(asked) or found.get(f"{asked}.N") or []
    return [*lines, *_members(models, width)] if len(models) > 1 else lines


def _details(name: str, field: FieldInfo, width: int, indent: str = "") -> Iterator[str]:
    """Yield all about a key, and about those below it unless they differ by type."""
    models = models_in(field.annotation)
    types = [f"types: {_types(models)}"] if len(models) > 1 else []
    about = "; ".join(filter(None, [field.description, *types]))
    yield from _wrapped(_title(name, field), width, indent)
    yield from _wrapped(about, width, indent + _INDENT * 2)
    if len(models) == 1:
        for key, inner in models[0].model_fields.items():
            yield from _details(key, inner, width, indent + _INDENT)


def _members(models: Sequence[type[BaseModel]], width: int) -> Iterator[str]:
    """Yield the keys of each member of a union, and at the end those that all of them share."""
    keys = [
        {
            name: tuple(_details(name, field, width, _INDENT * 2))
            for name, field in model.model_fields.items()
            if name not in TAG_KEYS
        }
        for model in models
    ]
    shared = set.intersection(*(set(own.items()) for own in keys))
    for model, own in zip(models, keys, strict=True):
        summary = (model.__doc__ or "").partition("\n")[0]
        yield from _wrapped(f"{type_tag(model)}: {summary}", width, _INDENT)
        yield from (line for key in own.items() if key not in shared for line in key[1])
    if shared:
        yield f"{_INDENT}every {tag_key(models[0])}:"
        yield from (line for key in keys[0].items() if key in shared for line in key[1])


def _types(models: Sequence[type[BaseModel]]) -> str:
    return ", ".join(str(type_tag(model)) for model in models)


def _title(name: str, field: FieldInfo) -> str:
    """Return a key's name, type and default; of a section that is no union, the name alone."""
    models = models_in(field.annotation)
    name += ".N" * (is_list(field.annotation) and bool(models))
    if len(models) == 1:
        return name
    type_ = f"by {tag_key(models[0])}" if models else type_in_words(field.annotation)
    if field.is_required():
        return f"{name}: {type_}, required"
    value = field.get_default(call_default_factory=True)
    # null is clear from "int or null"
    if (models and field.default_factory) or (value is None and type_.endswith(" or null")):
        default = ""
    elif isinstance(value, BaseModel):
        default = str(type_tag(type(value)))
    elif isinstance(value, tuple):
        default = ", ".join(map(str, value))
    else:
        default = value if isinstance(value, str) else show_value(value)
    return f"{name}: {type_} = {default}" if default else f"{name}: {type_}"


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
