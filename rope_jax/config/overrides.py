"""Overrides of a config, `dotted.key=value`, as given on a command line."""

from collections.abc import Sequence
from typing import Any

from rope_jax.config.annotations import TAG_KEYS
from rope_jax.config.values import show_value
from rope_jax.config.yaml_text import NotYamlError, parse_yaml
from rope_jax.errors import UserError


def apply_overrides(raw: dict[Any, Any], overrides: Sequence[str]) -> None:
    """Apply `key=value` overrides to a raw config, in order.

    The value is read as YAML; a list's element is named by its number (`stages.0.steps=10`).
    Changing a `type` drops the section's other keys, except those that earlier overrides set
    individually.

    Raises UserError.
    """
    given: set[str] = set()
    for text in overrides:
        key, value = _parse(text)
        _set(raw, key, value, given)
        given.add(key)


def _parse(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key or key.startswith("-"):
        raise UserError(f"{text}: not an override; write key=value (see --help)")
    if "" in key.split("."):
        raise UserError(f"{text}: a part of the key is empty; write key=value or section.key=value")
    try:
        return key, parse_yaml(value)
    except NotYamlError as error:
        raise UserError(
            f"{key}: the value {show_value(value)} is not valid YAML ({error.problem})"
        ) from None


def _set(raw: dict[Any, Any], key: str, value: Any, given: set[str]) -> None:
    """Set one key, creating the sections above it. given: the keys overridden so far."""
    node: Any = raw
    *sections, last = key.split(".")
    for depth, name in enumerate(sections):
        part = _part(node, name, key, above=".".join(sections[:depth]))
        below = node[part] if isinstance(part, int) else node.get(part)
        if below is None:
            below = node[part] = {}
        node = below
    above = ".".join(sections)
    part = _part(node, last, key, above)
    if part in TAG_KEYS and node.get(part) != value:
        kept = {k: v for k, v in node.items() if f"{above}.{k!s}" in given}
        node.clear()
        node |= {**kept, part: value}
    else:
        node[part] = value


def _part(node: Any, name: str, key: str, above: str) -> str | int:
    """Return one part of a dotted key as an index of `node`: a name, or the number of an element.

    above: the parts of `key` that lead to `node`.
    """
    if isinstance(node, list):
        if name not in map(str, range(len(node))):
            one, several = "its only element is 0", f"its elements are 0 to {len(node) - 1}"
            valid = "it is empty" if not node else one if len(node) == 1 else several
            raise UserError(f"{key}: {above} has no element {name}; {valid}")
        return int(name)
    if not isinstance(node, dict):
        raise UserError(f"{key}: {above} is {show_value(node)}, which has no keys")
    return name
