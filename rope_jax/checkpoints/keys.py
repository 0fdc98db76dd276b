"""Whether a key of config.json may change the logits, by the table `config_keys.toml`."""

import re
import sys
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from rope_jax.config.messages import show_value

_TABLE = tomllib.loads(Path(__file__).with_name("config_keys.toml").read_text("utf-8"))

POSITION_KEYS = frozenset(_TABLE["positions"])
"""Keys about positions, which are read whatever the family."""
TEMPERATURE_KEYS = frozenset(_TABLE["temperature"])
"""Keys about the queries of layers without rotation (Llama 4)."""
IGNORED_BY: Mapping[str, list[str]] = _TABLE["ignored_by"]
"""Keys that a family's code does not read, by model_type."""
REFUSED = {name: reason for reason, names in _TABLE["refused"].items() for name in names}
"""Why models of a model_type cannot be read."""
ADAPTER: Mapping[str, Any] = _TABLE["adapter"]
"""What keys of an adapter's config mean."""
_IGNORED = re.compile("|".join(_TABLE["ignored"]))
_CHANGES = re.compile("|".join(_TABLE["changes"]), re.IGNORECASE)
_TURN_OFF = re.compile("|".join(_TABLE["turn_off"]))


def _number(type_: Any, least: float | int, most: float | int = 2**31 - 1) -> Callable[[Any], bool]:
    """Return a function that says whether a value is a number from `least` to `most`."""
    return lambda x: isinstance(x, type_) and not isinstance(x, bool) and least <= x <= most


_IS: dict[str, Callable[[Any], bool]] = {
    "a whole number of at least 1": _number(int, 1),
    "a whole number of at least 0": _number(int, 0),
    "a number above 0 and at most 1": _number(int | float, sys.float_info.min, 1),
    "a finite number of at least 1": _number(int | float, 1, sys.float_info.max),
    "a list": lambda x: isinstance(x, list),
    "a mapping": lambda x: isinstance(x, Mapping),
    "text": lambda x: isinstance(x, str),
}
_WANTED = {key: wanted for wanted, keys in _TABLE["values"].items() for key in keys}
_WHOLE = {"sliding_window", *(key for key, wanted in _WANTED.items() if "whole" in wanted)}


def without_keys(config: Mapping[str, Any], ignored: Collection[str]) -> dict[str, Any]:
    """Return a mapping without the ignored keys, and with 32 for a whole number written as 32.0."""
    kept: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            value = without_keys(value, ignored)
        elif isinstance(value, float) and key in _WHOLE and value.is_integer():
            value = int(value)
        if key not in ignored:
            kept[key] = value
    return kept


def check_values(config: Mapping[str, Any]) -> None:
    """ValueError for a key about layers or positions whose value is of the wrong type."""
    _check({key: value for key, value in config.items() if key in _WANTED})


def _check(part: Mapping[str, Any]) -> None:
    for key, value in part.items():
        wanted = _WANTED.get(key)
        if wanted is not None and value is not None and not _IS[wanted](value):
            raise ValueError(f"{key}: should be {wanted}, not {show_value(value)}")
        if isinstance(value, Mapping):
            _check(value)


def unread_keys(config: Mapping[str, Any], known: Collection[str], pairs: int) -> list[str]:
    """Return the keys that nothing reads and that a reader of the config might ask about.

    known: the keys that the family's table, or the code about positions, reads or ignores.
    pairs: rotary pairs of a head. A list of that length, or of one element for each layer, is
        taken for a setting of the model, whatever it is called.

    ValueError: a key's name or value says that it changes the forward pass.
    """
    lengths = (config.get("num_hidden_layers"), pairs)
    unread = []
    for key, value in config.items():
        if key == "auto_map" and value:
            unread.append("auto_map (code that comes with a model is never run)")
            continue
        if key in known or _IGNORED.fullmatch(key):
            continue
        is_off = value is None or value in (False, 0, "", [], {})
        if value in (None, True) if _TURN_OFF.fullmatch(key) else is_off:
            continue
        is_list = isinstance(value, list) and len(value) in lengths
        is_setting = is_list and all(isinstance(x, int | float) for x in value)
        if is_off or is_setting or any(map(_CHANGES.search, _names(key, value))):
            raise ValueError(
                f"{key}: is {show_value(value)}, which nothing here reads for "
                f"{config['model_type']}, and it may change the logits; if it does not, import "
                f"the model with rope-jax import MODEL 'ignored_keys=[{key}]'"
            )
        unread.append(key)
    return unread


def _names(key: str, value: Any) -> Iterator[str]:
    """Yield a key, and those of all mappings in its value."""
    yield key
    for inside, x in value.items() if isinstance(value, Mapping) else ():
        yield from _names(str(inside), x)
