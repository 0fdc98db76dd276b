"""Replace references to other keys, ${key}, by their values, as OmegaConf does, within limits.

OmegaConf alone would build whatever a file describes: forty lines such as `x: ${y}${y}`, each
referring to the next, stand for a million million characters.
"""

from collections.abc import Iterator
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import InterpolationToMissingValueError, MissingMandatoryValue

from rope_jax.config.yaml_text import escape_references

_MAX_VALUES = 200  # that contain references
_MAX_DEPTH = 10
_MAX_CHARACTERS = 2**18
_MAX_NODES = 10_000
_MISSING = "???"

Place = tuple[Any, ...]


class BadReferenceError(Exception):
    """References that cannot be resolved within the limits. `key`: where, dotted."""

    def __init__(self, place: Place, problem: str) -> None:
        super().__init__(problem)
        self.key = ".".join(map(str, place))


def resolve_references(raw: dict[Any, Any]) -> Any:
    """Return `raw` with each reference replaced. Raises BadReferenceError or OmegaConf's errors.

    A value is resolved once those that it refers to are, so each is built only once.
    """
    texts = dict(_texts(raw, ()))
    waiting = {place: text for place, text in texts.items() if "${" in text}
    if not waiting and "???" not in texts.values():  # OmegaConf takes 5 ms to find no reference
        return raw
    if len(waiting) > _MAX_VALUES:
        last = list(waiting)[_MAX_VALUES]
        raise BadReferenceError(last, f"more than {_MAX_VALUES} values with references, ${{key}}")
    config = OmegaConf.create(raw)
    for place in waiting:
        _set(config, place, _MISSING)
    size = _Size()
    for _ in range(_MAX_DEPTH):
        found = {}
        for place, text in waiting.items():
            try:
                found[place] = _resolved(config, place, text)
            except (InterpolationToMissingValueError, MissingMandatoryValue):
                _set(config, place, _MISSING)  # what it refers to is not resolved yet
                continue
            _set(config, place, _MISSING)
            size.add(place, found[place])
        for place, value in found.items():
            _set(config, place, escape_references(value))
            del waiting[place]
        if not found:
            break
    if waiting:
        _explain_first(config, waiting)
    return OmegaConf.to_container(config, resolve=True, throw_on_missing=True)


class _Size:
    """The size of all values resolved so far."""

    def __init__(self) -> None:
        self._characters = self._nodes = 0

    def add(self, place: Place, value: Any) -> None:
        """Count a value. BadReferenceError if all of them are too large together."""
        for node in _nodes(value):
            self._nodes += 1
            self._characters += len(node) if isinstance(node, str) else 0
            if self._characters > _MAX_CHARACTERS or self._nodes > _MAX_NODES:
                raise BadReferenceError(place, "its references, ${key}, give too large a value")


def _explain_first(config: Any, waiting: dict[Place, str]) -> None:
    """Raise what is wrong with the first value that could not be resolved."""
    for place in waiting:
        _set(config, place, "")
    (place, text), *_ = waiting.items()
    _resolved(config, place, text)  # raises if it refers to a value that is ???
    raise BadReferenceError(place, f"refers to itself, or more than {_MAX_DEPTH} references deep")


def _resolved(config: Any, place: Place, text: str) -> Any:
    """Return the plain value that a text with references stands for at its place."""
    _set(config, place, text)
    value = _parent(config, place)[place[-1]]
    if OmegaConf.is_config(value):
        return OmegaConf.to_container(value, resolve=True, throw_on_missing=True)
    return value


def _set(config: Any, place: Place, value: Any) -> None:
    _parent(config, place)[place[-1]] = value


def _parent(config: Any, place: Place) -> Any:
    for part in place[:-1]:
        config = config[part]
    return config


def _texts(node: Any, place: Place) -> Iterator[tuple[Place, str]]:
    """Yield the place of every text in nested lists and dicts."""
    if isinstance(node, str):
        yield place, node
    elif isinstance(node, dict | list):
        for part, inner in node.items() if isinstance(node, dict) else enumerate(node):
            yield from _texts(inner, (*place, part))


def _nodes(value: Any) -> Iterator[Any]:
    yield value
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _nodes(inner)
