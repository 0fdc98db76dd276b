"""Whether a key of config.json that a family's table lacks may change the logits.

Two tables decide: `config_keys.toml`, and `transformers_keys.toml`, which
`scripts/golden_checkpoints.py --keys` writes: what transformers' code reads.
"""

import difflib
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from rope_jax.config.messages import show_value

_TABLE, _OF_TRANSFORMERS = (
    tomllib.loads(Path(__file__).with_name(name).read_text("utf-8"))
    for name in ("config_keys.toml", "transformers_keys.toml")
)

POSITION_KEYS = frozenset(_TABLE["positions"])
"""Keys about positions, which are read whatever the family."""
KNOWN_TO: Mapping[str, list[str]] = _TABLE["known_to"]
"""Keys that a family has besides its table, by model_type."""
OTHER_NAMES: Mapping[str, Mapping[str, str]] = _OF_TRANSFORMERS["other_names"]
"""Names that transformers' configurations accept for other keys, by model_type."""
ARCHITECTURES: Mapping[str, str] = _OF_TRANSFORMERS["architectures"]
"""The classes that configs name, by model_type."""
DEFAULTS: Mapping[str, Mapping[str, Any]] = _OF_TRANSFORMERS["defaults"]
"""Defaults of transformers' configurations that are not None, by model_type."""
REFUSED = {name: reason for reason, names in _TABLE["refused"].items() for name in names}
"""Why models of a model_type cannot be read."""
ADAPTER: Mapping[str, Any] = _TABLE["adapter"]
"""What keys of an adapter's config mean."""
_IGNORED = re.compile("|".join(_TABLE["ignored"]))
_READ = frozenset(_OF_TRANSFORMERS["read"].split())
_OF_POSITIONS = re.compile("|".join(_TABLE["of_positions"]), re.IGNORECASE)
_TURN_OFF = re.compile("|".join(_TABLE["turn_off"]))


def without_keys(config: Mapping[str, Any], ignored: Collection[str]) -> dict[str, Any]:
    """Return a mapping without the ignored keys, at any depth."""
    return {
        key: without_keys(value, ignored) if isinstance(value, Mapping) else value
        for key, value in config.items()
        if key not in ignored
    }


def unread_keys(
    config: Mapping[str, Any], known: Collection[str], pairs: int, has_own_code: bool
) -> list[str]:
    """Return the keys that nothing reads and that a reader of the config might ask about.

    known: the keys that the family's table, or the code about positions, reads or ignores.
    pairs: rotary pairs of a head. A list of that length, or of one element for each layer, is
        taken for a setting of the model, whatever it is called.
    has_own_code: whether the model was made for other code than transformers'.

    ValueError: a key may change the forward pass. It is read by the code of another model in
    transformers, or resembles a key that is; it is about positions; or other code may read it: the
    model's own, or llama.cpp's, if its name has a point (metadata of a GGUF file).
    """
    lengths = (config.get("num_hidden_layers"), pairs)
    absent = _READ.union(known).difference(config)
    unread = []
    for key, value in config.items():
        if key in known or _IGNORED.fullmatch(key):
            continue
        is_off = value is None or value in (False, 0, "", [], {})
        if value in (None, True) if _TURN_OFF.fullmatch(key) else is_off:
            continue
        is_setting = isinstance(value, list) and len(value) in lengths
        alike = difflib.get_close_matches(key, absent, n=1, cutoff=0.85)
        is_read = any(x in _READ or _OF_POSITIONS.search(x) for x in _names(key, value))
        if is_off or is_setting or alike or is_read or has_own_code or "." in key:
            meant = f" (did you mean {alike[0]}?)" if alike else ""
            raise ValueError(
                f"{key}: is {show_value(value)}, which nothing here reads for "
                f"{config['model_type']}{meant}, and it may change the logits; if it does not, "
                f"import the model with rope-jax import MODEL 'ignored_keys=[{key}]'"
            )
        unread.append(key)
    return unread


def _names(key: str, value: object) -> Iterator[str]:
    """Yield a key, and those of all mappings in its value."""
    yield key
    for inside, x in value.items() if isinstance(value, Mapping) else ():
        yield from _names(str(inside), x)
