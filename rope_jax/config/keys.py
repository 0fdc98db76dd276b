"""The keys of a config model, as `--help` lists them: dotted key, type, default, description."""

import types
from collections.abc import Iterator
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel


def fields(schema: type[BaseModel]) -> Iterator[tuple[str, str, str, str]]:
    """(dotted key, type, default, description) of every key.

    The keys of a union's choices are merged, and listed where such a union first stands.
    """
    return _fields(schema, "", {})


def _fields(
    schema: type[BaseModel], prefix: str, listed: dict[frozenset[str], str]
) -> Iterator[tuple[str, str, str, str]]:
    """listed: the key at which a union of these types has been listed."""
    for name, field in schema.model_fields.items():
        key = prefix + name
        models = models_in(field.annotation)
        if not models:
            default = "required" if field.is_required() else _default(field.get_default())
            yield key, _type_name(field.annotation), default, field.description or ""
            continue
        if is_list(field.annotation):
            key += ".N"
        if len(models) == 1:
            if field.description:
                yield key, "list" if key.endswith(".N") else "section", "", field.description
            yield from _fields(models[0], key + ".", listed)
            continue
        choices = {model.model_fields["type"].default: model for model in models}
        default_model = field.get_default(call_default_factory=False)
        default = getattr(default_model, "type", "" if field.default_factory else "required")
        if field.default is None:
            default = "null"
        about = field.description or "one of these, by its type:"
        place = next((listed[types] for types in listed if types >= choices.keys()), None)
        if place is not None:
            yield key + ".type", "|".join(choices), default, f"{about}; keys as of {place}"
            continue
        yield key + ".type", "|".join(choices), default, about
        listed[frozenset(choices)] = key
        rows: dict[str, dict[str, tuple[str, str, str]]] = {}
        inside: dict[frozenset[str], str] = {}
        for choice, model in choices.items():
            below = dict(listed)  # for each choice anew: they share the rows that are merged
            for row in _fields(model, key + ".", below):
                if row[0] != key + ".type":
                    rows.setdefault(row[0], {})[choice] = row[1:]
            inside |= below
        listed |= inside
        for name, by_choice in rows.items():
            yield name, *_one_line(by_choice, len(choices))


def _one_line(by_choice: dict[str, tuple[str, str, str]], choices: int) -> tuple[str, str, str]:
    """A field that several types of a section share, listed once: (type, default, description)."""
    only = "" if len(by_choice) == choices else f" [{', '.join(by_choice)}]"
    kind, default, about = (
        _merged({choice: row[column] for choice, row in by_choice.items()}) for column in range(3)
    )
    return kind, default, about + only


def _merged(by_choice: dict[str, str]) -> str:
    """What most choices have, then what others have instead."""
    sharing: dict[str, list[str]] = {}
    for choice, text in by_choice.items():
        sharing.setdefault(text, []).append(choice)
    most = max(sharing, key=lambda text: len(sharing[text]))
    others = [f"{', '.join(c)}: {text}" for text, c in sharing.items() if text != most]
    return "; ".join([most, *others])


def type_of(model: type[BaseModel]) -> str | None:
    field = model.model_fields.get("type")
    return field.default if field else None


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """The config models that an annotation may hold, in order."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in models_in(inner)]


def is_list(annotation: Any) -> bool:
    return get_origin(annotation) in (list, tuple)


def _type_name(annotation: Any) -> str:
    if annotation is type(None):
        return "null"
    if get_origin(annotation) is Annotated:
        return _type_name(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return " or ".join(_type_name(inner) for inner in get_args(annotation))
    if is_list(annotation):
        return f"list of {_type_name(get_args(annotation)[0])}"
    if get_origin(annotation) is dict:
        return "mapping of lists"
    if args := get_args(annotation):  # Literal
        return "|".join(str(value) for value in args)
    return annotation.__name__


def shown(value: Any) -> str:
    """A value as a reader of YAML knows it, and not at length."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    try:
        return cut_short(repr(value))
    except ValueError:  # Python writes no number of more than 4300 digits
        return "a number of thousands of digits"


def _default(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return value if isinstance(value, str) else shown(value)


def cut_short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
