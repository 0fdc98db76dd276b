"""The keys of settings: sections, the `type` by which a union finds its member, dotted keys."""

import functools
from collections.abc import Mapping
from typing import Any, get_args, get_origin

from pydantic import BaseModel

TAG_KEYS = ("task", "type")
"""Keys by which a union recognizes its members: tasks by `task`, everything else by `type`."""


@functools.cache
def sections(*schemas: type[BaseModel]) -> dict[str, list[type[BaseModel]]]:
    """Return the models that every section may hold, several for a union, by its dotted key.

    "" is the whole, one of `schemas`; N stands for an index into a list.
    """
    by_key: dict[str, list[type[BaseModel]]] = {"": [*schemas]}
    waiting = [""]
    for section in waiting:
        for model in by_key[section]:
            for name, field in model.model_fields.items():
                models = models_in(field.annotation)
                # a trained scaling may be over a trained one, without end
                if not models or (model in models and section.endswith(name)):
                    continue
                key = f"{section}.{name}".lstrip(".")
                if is_list(field.annotation):
                    key += ".N"
                if key not in by_key:
                    by_key[key] = []
                    waiting.append(key)
                by_key[key] += [model for model in models if model not in by_key[key]]
    return by_key


def models_in(annotation: object) -> list[type[BaseModel]]:
    """Return the models that an annotation may hold, in order."""
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


def is_list(annotation: object) -> bool:
    """Return whether an annotation is a list; lists of a frozen model are tuples."""
    return get_origin(annotation) in (list, tuple)


# Keys of a training config that say where a run is stored or computed, not what it computes.
_PLACES = ("runs_dir", "data.cache_dir", "mesh.", "distributed")


def different_keys(new: BaseModel, old: BaseModel) -> list[str]:
    """Return the dotted keys whose values differ, except those that only name a place."""
    flat_new, flat_old = flat(new.model_dump(mode="json")), flat(old.model_dump(mode="json"))
    keys = [*flat_new, *(key for key in flat_old if key not in flat_new)]
    return [k for k in keys if flat_new.get(k) != flat_old.get(k) and not k.startswith(_PLACES)]


def at(node: object, *keys: str | int) -> Any:
    """Return what a raw config has at a key, given by its parts; None if it does not have it."""
    for key in keys:
        if isinstance(node, Mapping) and key in node:
            node = node[key]
        elif isinstance(node, list | tuple) and key in range(len(node)):
            node = node[int(key)]
        else:
            return None
    return node


def flat(node: object, prefix: str = "") -> dict[str, Any]:
    """Return the values in a config's dump by their dotted keys."""
    if isinstance(node, list):
        node = dict(enumerate(node))
    if not isinstance(node, dict):
        return {prefix.rstrip("."): node}
    return {k: v for key, inner in node.items() for k, v in flat(inner, f"{prefix}{key}.").items()}
