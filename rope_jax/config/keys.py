"""The keys of a config model, as `--help` lists them."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rope_jax.config.annotations import (
    TAG_KEYS,
    is_list,
    models_in,
    tag_key,
    type_in_words,
    type_tag,
)
from rope_jax.rope.messages import show_value


class Key(NamedTuple):
    """One line of the list."""

    name: str
    """Dotted; N stands for an index into a list."""
    type: str
    """In words; "section" or "list" if the line is the heading of the keys below it."""
    default: str
    """"required" if there is none."""
    description: str
    types: tuple[str, ...] = ()
    """In a union: the types whose models have the key; (): it is in no union, or in every type."""


def list_keys(schema: type[BaseModel]) -> Iterator[Key]:
    """Yield every key of a config model.

    The models of a union, told apart by `type`, share one list of keys. Where the same models are
    allowed again, the description names the key that lists them first.
    """
    return _keys_below(schema, prefix="", listed={})


# For each union listed so far, by the key that lists it: its types, and the keys of each.
Listed = dict[str, dict[str, set[str]]]


def _keys_below(schema: type[BaseModel], prefix: str, listed: Listed) -> Iterator[Key]:
    """Yield the keys of a model, with `prefix` before each name; add its unions to `listed`."""
    for field_name, field in schema.model_fields.items():
        name = prefix + field_name
        models = models_in(field.annotation)
        if not models:
            default = "required" if field.is_required() else _show_default(field.get_default())
            yield Key(name, type_in_words(field.annotation), default, field.description or "")
            continue
        element = f"{name}.N" if is_list(field.annotation) else name
        if len(models) > 1:
            yield from _union_keys(field, models, element, listed)
            continue
        if field.description:
            heading = "list" if is_list(field.annotation) else "section"
            yield Key(element, heading, "", field.description)
        yield from _keys_below(models[0], f"{element}.", listed)


def _union_keys(
    field: FieldInfo, models: list[type[BaseModel]], name: str, listed: Listed
) -> Iterator[Key]:
    """Yield `type` or `task`, then the keys of all models of a union, merged where shared."""
    tag = tag_key(models[0])
    by_type = {str(type_tag(model)): model for model in models}
    description = field.description or "decides which of the keys below apply"
    # the latest: a sweep's entry comes after plain scalings, and allows more for a factor
    own = {type_: set(model.model_fields) for type_, model in by_type.items()}
    covering = [
        key
        for key, others in listed.items()
        if all(type_ in others and fields <= others[type_] for type_, fields in own.items())
    ]
    earlier = covering[-1] if covering else None
    if earlier is not None:
        description += f"; same keys as {earlier}"
    yield Key(f"{name}.{tag}", "|".join(by_type), _default_type(field), description)
    if earlier is not None:
        return
    listed[name] = own
    sharing: dict[str, dict[str, Key]] = {}
    found: Listed = {}
    for type_, model in by_type.items():
        # Each model starts from the same `listed`: two models may list the same union, because
        # their lines are merged below.
        listed_here = dict(listed)
        for key in _keys_below(model, f"{name}.", listed_here):
            if key.name != f"{name}.{tag}":
                sharing.setdefault(key.name, {})[type_] = key
        found |= listed_here
    listed |= found
    for keys in sharing.values():
        yield _merged(keys, all_share_it=len(keys) == len(models))


def union_name(key: str) -> str:
    """Return the union that a key such as "map.type" is the tag of; else the key itself."""
    section, _, last = key.rpartition(".")
    return section if section and last in TAG_KEYS else key


def _default_type(field: FieldInfo) -> str:
    """Return the `type` of a union's default."""
    if field.default is None:
        return "null"
    default = field.get_default(call_default_factory=False)
    return getattr(default, "type", "" if field.default_factory else "required")


def _merged(by_type: dict[str, Key], all_share_it: bool) -> Key:
    """Merge the lines of a key that several types have; name the types unless all have it."""
    only = "" if all_share_it else f" [{', '.join(by_type)}]"
    first = next(iter(by_type.values()))
    return Key(
        name=first.name,
        type=_merged_text({type_: key.type for type_, key in by_type.items()}),
        default=_merged_text({type_: key.default for type_, key in by_type.items()}),
        description=_merged_text({type_: key.description for type_, key in by_type.items()}) + only,
        # of the innermost union, if there is one in the types' models
        types=first.types or (() if all_share_it else tuple(by_type)),
    )


def _merged_text(by_type: dict[str, str]) -> str:
    """Return the most common text, then the others, each after its types."""
    sharing: dict[str, list[str]] = {}
    for type_, text in by_type.items():
        sharing.setdefault(text, []).append(type_)
    most = max(sharing, key=lambda text: len(sharing[text]))
    others = [f"{', '.join(types)}: {text}" for text, types in sharing.items() if text != most]
    return "; ".join([most, *others])


def _show_default(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return value if isinstance(value, str) else show_value(value)
