"""Load a YAML file and `key=value` overrides as one validated, frozen model; dump it as YAML."""

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from rope_jax.config.explain import Model, validate
from rope_jax.config.keys import TAG_KEYS
from rope_jax.config.yaml_text import NotYamlError, dump_yaml, parse_yaml
from rope_jax.errors import UserError
from rope_jax.rope.files import read_limited
from rope_jax.rope.messages import show_value

_MAX_BYTES = 2**18  # a larger file is not a config, and is slow to parse


def load(schema: type[Model], path: Path | None, overrides: Sequence[str] = ()) -> Model:
    """Read `path` (None: start from nothing), apply the overrides, validate. Raises UserError."""
    return validate(schema, *read_raw(path, overrides))


def read_raw(path: Path | None, overrides: Sequence[str] = ()) -> tuple[Any, str]:
    """Return what `load` validates, and its origin, as errors name it. Raises UserError."""
    raw = {} if path is None else read_yaml(path)
    apply_overrides(raw, overrides)
    return raw, "overrides" if path is None else str(path)


def dump(config: BaseModel) -> str:
    """Return the resolved config as YAML, which loads as the same config."""
    return dump_yaml(config.model_dump(mode="json"))


def read_yaml(path: Path) -> dict[Any, Any]:
    """Return the content of a YAML file. Raises UserError."""
    try:
        content = read_limited(path, _MAX_BYTES)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a directory, not a YAML file") from None
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) == errno.EFBIG:
            raise UserError(
                f"{path}: is larger than {_MAX_BYTES:,} bytes, the limit for a config"
            ) from None
        why = getattr(error, "strerror", None) or error
        raise UserError(f"{path}: cannot be read ({why})") from None
    try:
        loaded = parse_yaml(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        where = f"byte {error.start}"
        raise UserError(f"{path}: is not UTF-8 ({where}); save the YAML as UTF-8") from None
    except NotYamlError as error:
        raise UserError(f"{path}: {error.where}not valid YAML ({error.problem})") from None
    if loaded is not None and not isinstance(loaded, dict):
        raise UserError(f"{path}: should contain `key: value` lines")
    return loaded or {}


def apply_overrides(raw: dict[Any, Any], overrides: Sequence[str]) -> None:
    """Apply `dotted.key=value` overrides to a raw config, in order.

    The value is read as YAML; a list's element is named by its number (`stages.0.steps=10`).
    Changing a `type` drops the section's other keys, except those that earlier overrides set
    individually.

    Raises UserError.
    """
    given: set[str] = set()
    for text in overrides:
        key, equals, written = text.partition("=")
        if not equals or not key or key.startswith("-"):
            raise UserError(f"{text}: not an override; write key=value (see --help)")
        if "" in key.split("."):
            raise UserError(
                f"{text}: a part of the key is empty; write key=value or section.key=value"
            )
        try:
            value = parse_yaml(written)
        except NotYamlError as error:
            raise UserError(
                f"{key}: the value {show_value(written)} is not valid YAML ({error.problem})"
            ) from None
        _set(raw, key, value, given)
        given.add(key)


def _set(raw: dict[Any, Any], key: str, value: Any, given: set[str]) -> None:
    """Set one key, creating the sections above it. given: the keys overridden so far."""
    node: Any = raw
    *sections, last = key.split(".")
    for depth, name in enumerate(sections):
        part = _part(node, name, key, above=".".join(sections[:depth]))
        if (node[part] if isinstance(part, int) else node.get(part)) is None:
            node[part] = {}
        node = node[part]
    above = ".".join(sections)
    part = _part(node, last, key, above)
    if part in TAG_KEYS and node.get(part) != value:
        kept = {k: v for k, v in node.items() if f"{above}.{k!s}" in given}
        node.clear()
        node |= {**kept, part: value}
    else:
        node[part] = value


def _part(node: Any, name: str, key: str, above: str) -> str | int:
    """Return one part of a dotted key as an index of `node`, to which the parts `above` lead."""
    if isinstance(node, list):
        if name not in map(str, range(len(node))):
            valid = {0: "it is empty", 1: "its only element is 0"}.get(
                len(node), f"its elements are 0 to {len(node) - 1}"
            )
            raise UserError(f"{key}: {above} has no element {name}; {valid}")
        return int(name)
    if not isinstance(node, dict):
        raise UserError(f"{key}: {above} is {show_value(node)}, which has no keys")
    return name
