"""The decoder's config and positions in the config.json of a Hugging Face checkpoint."""

import sys
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from rope_jax.checkpoints.families import FAMILIES, HARMLESS, POSITION_KEYS, Family
from rope_jax.config.model import MOST_LAYERS
from rope_jax.config.values import show_value
from rope_jax.errors import UserError
from rope_jax.rope import RotaryLayers, Scaling
from rope_jax.rope.hf import layers_from_hf

# Keys that change the logits in a way that no family here knows.
_REFUSED = {
    "quantization_config": "is quantized; use the checkpoint before it was quantized",
    "use_bidirectional_attention": "is not a causal model",
}

# Keys that are whole numbers, and their smallest values.
_WHOLE = {
    **dict.fromkeys(("num_hidden_layers", "hidden_size", "num_attention_heads", "head_dim"), 1),
    **dict.fromkeys(("max_position_embeddings", "original_max_position_embeddings"), 1),
    **dict.fromkeys(("sliding_window_pattern", "_sliding_window_pattern"), 1),
    **{"no_rope_layer_interval": 1, "max_window_layers": 0},
}


class Description(NamedTuple):
    """A checkpoint's model, as raw values of our config's keys.

    model, rope: the sections of that name.
    window:      the length that it was last trained at (max_position_embeddings).
    """

    family: Family
    model: dict[str, Any]
    rope: dict[str, Any]
    window: int


def read_description(
    hf: Mapping[str, Any], file: str, ignored_keys: Collection[str] = ()
) -> Description:
    """Return the model that a config.json describes.

    file: its path, with which errors begin. ignored_keys: unknown keys that are of no consequence.

    UserError: an unknown architecture; a key that is missing, has a value without a counterpart
    here, or is unknown and not empty.
    """
    try:
        family = _family(hf)
        _check_keys(hf, family, ignored_keys)
        _check_types(hf)
        model = dict(family.fixed)
        for key in family.keys:
            model |= key.read(hf)
        rope, window = _rope(hf, family, model["num_hidden_layers"])
    except ValueError as error:  # begins with a key
        raise UserError(f"{file}: {error}") from None
    return Description(family, model, rope, window)


def _family(hf: Mapping[str, Any]) -> Family:
    kind = hf.get("model_type")
    if isinstance(kind, str) and kind in FAMILIES:
        return FAMILIES[kind]
    known = ", ".join(FAMILIES)
    code = "; code that comes with a model is never run" if hf.get("auto_map") else ""
    raise ValueError(f"model_type: {kind!r} is not one of {known}{code}")


def _check_keys(hf: Mapping[str, Any], family: Family, ignored: Collection[str]) -> None:
    """ValueError for a key that may change the logits and that nothing reads."""
    for key, why in _REFUSED.items():
        if hf.get(key):
            raise ValueError(f"{key}: {why}")
    known = {key.name for key in family.keys} | HARMLESS | POSITION_KEYS | family.harmless
    known -= _unread_positions(hf, family)
    for key, value in hf.items():
        # what is off or empty cannot change anything
        if key not in known and key not in ignored and value not in (None, False, 0, "", [], {}):
            raise ValueError(
                f"{key}: is {value!r}, which nothing here reads for {family.model_type}; if it "
                f"does not change the logits, import it with "
                f"scripts/import_hf.py MODEL ignored_keys=[{key}]"
            )


def _unread_positions(hf: Mapping[str, Any], family: Family) -> set[str]:
    """Return the keys about layers that the family's code ignores, so that they may mislead."""
    unread = set() if family.nope else {"no_rope_layers", "no_rope_layer_interval"}
    if not family.windows.exist:
        unread |= {"sliding_window", "use_sliding_window"}
        types = hf.get("layer_types")
        if isinstance(types, list) and any(kind != "full_attention" for kind in types):
            unread.add("layer_types")
    return unread


def _check_types(hf: Mapping[str, Any]) -> None:
    """ValueError for a key about layers or positions whose value is of the wrong type."""
    for key, least in _WHOLE.items():
        value = hf.get(key)
        if value is None:
            continue
        whole = isinstance(value, int) and not isinstance(value, bool)
        if key == "num_hidden_layers" and whole and value > MOST_LAYERS:
            raise ValueError(f"num_hidden_layers: {value} is above {MOST_LAYERS:,}, the limit")
        if not whole or not least <= value < 2**31:
            raise ValueError(
                f"{key}: should be a whole number of at least {least}, not {show_value(value)}"
            )
    for key in ("layer_types", "no_rope_layers"):
        if hf.get(key) is not None and not isinstance(hf[key], list):
            raise ValueError(f"{key}: should be a list, not {show_value(hf[key])}")
    given = {key: hf[key] for key in ("rope_scaling", "rope_parameters") if hf.get(key) is not None}
    for key, value in given.items():
        if not isinstance(value, Mapping):
            raise ValueError(f"{key}: should be a mapping, not {show_value(value)}")
    nested = [part for value in given.values() for part in value.values()]
    for part in (hf, *given.values(), *(part for part in nested if isinstance(part, Mapping))):
        for key in ("rope_type", "type"):
            if part.get(key) is not None and not isinstance(part[key], str):
                raise ValueError(f"{key}: should be text, not {show_value(part[key])}")
        for key in ("partial_rotary_factor", "rotary_pct"):
            share = part.get(key)
            if share is not None and not (_is_number(share) and 0 < share <= 1):
                raise ValueError(
                    f"{key}: should be a number above 0 and at most 1, not {show_value(share)}"
                )
        for key in ("rope_theta", "rope_local_base_freq", "rotary_emb_base"):
            base = part.get(key)
            if base is not None and not (_is_number(base) and 1 <= base <= sys.float_info.max):
                raise ValueError(
                    f"{key}: should be a finite number of at least 1, not {show_value(base)}"
                )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _rope(hf: Mapping[str, Any], family: Family, count: int) -> tuple[dict[str, Any], int]:
    """Return the section `rope`, and the length that the model was last trained at."""
    windows = family.windows.read(hf, count)
    layers, scaling = layers_from_hf(_completed(hf, family, count))
    # Where layers differ, those that see everything decide what a sweep scales.
    global_layers = [
        i
        for i in range(count)
        if windows[i] is None and layers.for_layer(i, scaling)[1].type != "drope"
    ]
    geometry, scaling_ = layers.for_layer(global_layers[0] if global_layers else 0, scaling)
    if scaling_.type == "drope":
        geometry, scaling_ = layers.geometry, scaling
    pattern = [
        _layer_settings(layers, scaling, i, geometry.base, scaling_) | _window_setting(windows[i])
        for i in range(count)
    ]
    rope = {
        "base": geometry.base,
        "rotary_dim": geometry.rotary_dim,
        "train_length": geometry.train_length,
        "scaling": scaling_.model_dump(mode="json", exclude_none=True),
    }
    shortest = _shortest(pattern)
    if shortest != [{}]:
        rope["layer_pattern"] = shortest
    longest = hf.get("max_position_embeddings")
    return rope, geometry.train_length if longest is None else int(longest)


def _completed(hf: Mapping[str, Any], family: Family, count: int) -> dict[str, Any]:
    """Return the config with transformers' defaults, where `layers_from_hf` needs a key."""
    unread = _unread_positions(hf, family)
    given = {key: v for key, v in hf.items() if v is not None and key not in unread}
    inside = given.get("rope_parameters") or given.get("rope_scaling") or {}
    if family.model_type == "gpt_neox" and "rope_theta" in given:
        # Ignored by its code, which reads rotary_emb_base; 4.4x wrote both.
        own = inside.get("rope_theta", given.get("rotary_emb_base", 10_000.0))
        if given.pop("rope_theta") != own:
            raise ValueError(f"rope_theta: is ignored by gpt_neox, whose base is {own}; remove it")
    for key, default in family.defaults.items():
        aliases = {"rotary_emb_base": "rope_theta", "rotary_pct": "partial_rotary_factor"}
        if "rope_parameters" in given and key != "original_max_position_embeddings":
            continue
        if aliases.get(key, key) not in inside and aliases.get(key, key) not in given:
            given.setdefault(key, default)
    if family.local:
        nested = given.get("rope_parameters")
        if nested and not all(isinstance(part, Mapping) for part in nested.values()):
            raise ValueError(
                f"rope_parameters: {family.model_type} needs one mapping for each layer type, "
                "full_attention and sliding_attention; transformers ignores a flat one"
            )
        given["layer_types"] = family.windows.layer_types(hf, count)
    return given


def _layer_settings(
    layers: RotaryLayers, scaling: Scaling, layer: int, base: float, main: Scaling
) -> dict[str, Any]:
    """Return the settings in which a layer differs from the model's base and scaling."""
    geometry, own = layers.for_layer(layer, scaling)
    settings: dict[str, Any] = {}
    if own.type == "drope":
        return {"scaling": own.model_dump(mode="json", exclude_none=True)}
    if geometry.base != base:
        settings["base"] = geometry.base
    # A layer with a base of its own keeps its scaling when a sweep replaces that of the others.
    if own != main or settings:
        settings["scaling"] = own.model_dump(mode="json", exclude_none=True)
    return settings


def _window_setting(window: int | None) -> dict[str, Any]:
    return {} if window is None else {"sliding_window": window}


def _shortest(pattern: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the shortest pattern that repeats to this one."""
    for period in range(1, len(pattern)):
        if all(pattern[i] == pattern[i % period] for i in range(len(pattern))):
            return pattern[:period]
    return pattern
