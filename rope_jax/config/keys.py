"""The values of a config by their dotted keys, and in which of them two configs differ."""

from typing import Any

from pydantic import BaseModel

# Keys of a training config that say where a run is stored or computed, not what it computes.
_PLACES = ("runs_dir", "data.cache_dir", "mesh.", "distributed")


def different_keys(new: BaseModel, old: BaseModel) -> list[str]:
    """Return the dotted keys whose values differ, except those that only name a place."""
    flat_new, flat_old = flat(new.model_dump(mode="json")), flat(old.model_dump(mode="json"))
    keys = [*flat_new, *(key for key in flat_old if key not in flat_new)]
    return [k for k in keys if flat_new.get(k) != flat_old.get(k) and not k.startswith(_PLACES)]


def at(node: Any, *keys: str | int) -> Any:
    """Return what a raw config has at a key, given by its parts; None if it does not have it."""
    for key in keys:
        try:
            node = node[key]
        except (TypeError, LookupError):
            return None
    return node


def flat(node: Any, prefix: str = "") -> dict[str, Any]:
    """Return the values in a config's dump by their dotted keys."""
    if isinstance(node, list):
        node = dict(enumerate(node))
    if not isinstance(node, dict):
        return {prefix.rstrip("."): node}
    return {k: v for key, inner in node.items() for k, v in flat(inner, f"{prefix}{key}.").items()}
