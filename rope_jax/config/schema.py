"""The keys of settings: their sections, and the `type` by which a union finds its member."""

import functools
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
                if not (models := models_in(field.annotation)):
                    continue
                key = f"{section}.{name}".lstrip(".") + ".N" * is_list(field.annotation)
                if key not in by_key:
                    by_key[key] = []
                    waiting.append(key)
                by_key[key] += [model for model in models if model not in by_key[key]]
    return by_key


def models_in(annotation: Any) -> list[type[BaseModel]]:
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


def is_list(annotation: Any) -> bool:
    """Return whether an annotation is a list; lists of a frozen model are tuples."""
    return get_origin(annotation) in (list, tuple)
