"""The keys of a config model: its sections, what each key may hold, and in which two differ."""

import functools
import types
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

TAG_KEYS = ("task", "type")
"""Keys by which a union recognizes its members: tasks by `task`, everything else by `type`."""


@functools.cache
def sections(schema: type[BaseModel]) -> dict[str, list[type[BaseModel]]]:
    """Return the models that every section may hold, several for a union, by its dotted key.

    "" is the config itself; N stands for an index into a list.
    """
    found: dict[str, list[type[BaseModel]]] = {"": [schema]}
    waiting = [""]
    for section in waiting:
        for model in found[section]:
            for name, field in model.model_fields.items():
                if not (models := models_in(field.annotation)):
                    continue
                key = f"{section}.{name}" if section else name
                key += ".N" * is_list(field.annotation)
                if key not in found:
                    found[key] = []
                    waiting.append(key)
                found[key] += [model for model in models if model not in found[key]]
    return found


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the config models that an annotation may hold, in order."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in models_in(inner)]


def tag_key(model: type[BaseModel]) -> str | None:
    """Return the key by which a union recognizes the model; None if it has none."""
    return next((key for key in TAG_KEYS if key in model.model_fields), None)


def type_tag(model: type[BaseModel]) -> str | None:
    """Return the value of that key, such as "yarn"; None if the model has none."""
    key = tag_key(model)
    return None if key is None else model.model_fields[key].default


# Keys of a training config that say where a run is stored or computed, not what it computes.
_PLACES = ("runs_dir", "data.cache_dir", "mesh.", "distributed")


def different_keys(new: BaseModel, old: BaseModel) -> list[str]:
    """Return the dotted keys whose values differ, except those that only name a place."""
    flat_new, flat_old = flat(new.model_dump(mode="json")), flat(old.model_dump(mode="json"))
    keys = [*flat_new, *(key for key in flat_old if key not in flat_new)]
    return [k for k in keys if flat_new.get(k) != flat_old.get(k) and not k.startswith(_PLACES)]


def flat(node: Any, prefix: str = "") -> dict[str, Any]:
    """Return the values in a config's dump by their dotted keys."""
    if isinstance(node, list):
        node = dict(enumerate(node))
    if not isinstance(node, dict):
        return {prefix.rstrip("."): node}
    return {k: v for key, inner in node.items() for k, v in flat(inner, f"{prefix}{key}.").items()}


def is_list(annotation: Any) -> bool:
    """Return whether an annotation is a list; lists of a frozen model are tuples."""
    return get_origin(annotation) in (list, tuple)


def type_in_words(annotation: Any) -> str:
    """Return an annotation as `--help` shows it, such as "list of int or null"."""
    if annotation is type(None):
        return "null"
    if get_origin(annotation) is Annotated:
        return type_in_words(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return " or ".join(type_in_words(inner) for inner in get_args(annotation))
    if is_list(annotation):
        return f"list of {type_in_words(get_args(annotation)[0])}"
    if get_origin(annotation) is dict:
        values = type_in_words(get_args(annotation)[1])
        return "mapping of lists" if values.startswith("list of ") else "mapping"
    if args := get_args(annotation):  # Literal
        return "|".join(str(value) for value in args)
    return annotation.__name__
