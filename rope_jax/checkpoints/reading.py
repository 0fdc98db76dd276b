"""The decoder's config and positions in the config.json of a Hugging Face checkpoint."""

import contextlib
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from flax.traverse_util import unflatten_dict

from rope_jax.checkpoints.families import FAMILIES, READ_AS, Family
from rope_jax.checkpoints.keys import (
    KNOWN_TO,
    OTHER_NAMES,
    POSITION_KEYS,
    REFUSED,
    unread_keys,
    without_keys,
)
from rope_jax.checkpoints.quantized import check_method
from rope_jax.config.messages import show_value
from rope_jax.config.model import ModelConfig
from rope_jax.errors import UserError
from rope_jax.rope.hf import layers_from_hf
from rope_jax.rope.hf.model_types import EVERY_FOURTH_UNROTATED, GLOBAL_LAYERS_UNROTATED
from rope_jax.rope.hf.read import LENGTH, ROPE_TYPES, TYPE_NAMES, positive_int
from rope_jax.rope.layers import shortest_pattern

_ROPE = ("rope_scaling", "rope_parameters")
# Keys of other rope types that may be left over beside `rope_type: default`, which does not scale;
# and LongRoPE's that transformers reads for Phi-3.5-MoE only.
_LEFT_OVER = {
    "default": {key for _, *keys in ROPE_TYPES.values() for part in keys for key in part},
    "linear": {LENGTH},
    "longrope": {"short_mscale", "long_mscale"},
}
_SCALES = {"factor", "attention_factor", "short_factor", "long_factor", "llama_4_scaling_beta"}


class Description(NamedTuple):
    """A checkpoint's model, as raw values of our config's keys.

    model, rope: the sections of that name.
    window:      the length that it was last trained at (max_position_embeddings).
    unread:      the keys that nothing reads, as text.
    """

    family: Family
    model: dict[str, Any]
    rope: dict[str, Any]
    window: int
    unread: tuple[str, ...]


def read_description(
    hf: Mapping[str, Any], file: str, ignored_keys: Collection[str] = ()
) -> Description:
    """Return the model that a config.json describes.

    file: its path, with which errors begin.
    ignored_keys: keys to leave out, also within rope_parameters.

    UserError: an unknown architecture; a key that is missing, has a value without a counterpart
    here, or that nothing reads although it may change the logits.
    """
    try:
        given = text_part(without_keys(hf, ignored_keys))
        family = _family(hf)
        given = family.upgrade(_renamed(given, family))
        for name in ("num_hidden_layers", "head_dim", "hidden_size", "num_attention_heads"):
            if given.get(name) is not None:
                positive_int(given, name)
        check_method(given.get("quantization_config"))
        left_over: list[str] = []
        for name in _ROPE:
            if isinstance(given.get(name), Mapping):
                given[name] = _without_left_over(given[name], name, left_over)
                if length := family.defaults.get(LENGTH):  # Phi-3's counts at the top level alone
                    length = given.get(LENGTH) or length
                    if given[name].pop(LENGTH, length) != length:
                        left_over.append(f"{name}.{LENGTH}")
        model = dict(family.fixed)
        for key in family.keys:
            model |= key.read(given)
        rope, window = _rope(given, family, model)
        known = (POSITION_KEYS | {family.windows.key}) - _unread_positions(given, family)
        known |= {key.name for key in family.keys}
        known |= {*KNOWN_TO.get(family.model_type, ()), *_restated(given, model, rope)}
        classes = given.get("architectures") or [family.architecture]
        code = ["auto_map (code that comes with a model is never run)"] * bool(
            given.get("auto_map")
        )
        has_own_code = bool(code) or classes != [family.architecture]
        unread = code + unread_keys(given, known, rope["rotary_dim"] // 2, has_own_code)
    except ValueError as error:  # begins with a key
        name, colon, why = str(error).partition(": ")
        if why.startswith("is not used in rope parameters"):
            why += f"; if it is of no consequence, give 'ignored_keys=[{name}]'"
        raise UserError(f"{file}: {name}{colon}{why}") from None
    except (TypeError, AttributeError, ArithmeticError) as error:
        raise UserError(f"{file}: has a value of a wrong kind ({error})") from None
    nested = unflatten_dict(model, sep=".")
    return Description(family, nested, rope, window, (*left_over, *unread))


def text_part(hf: dict[str, Any]) -> dict[str, Any]:
    """Return the config of a multimodal model's language model; that of others unchanged."""
    inside = hf.get("text_config")
    if isinstance(inside, Mapping):
        ids = ("bos_token_id", "eos_token_id", "pad_token_id")
        of_all = (*ids, "tie_word_embeddings", "quantization_config", "auto_map")
        hf = {**inside, **{key: hf[key] for key in of_all if key in hf}}
    name = hf.get("model_type")
    if not isinstance(name, str) or (family := READ_AS.get(name)) is None:
        return hf
    kept = {
        key: value for key, value in hf.items() if key not in ("architectures", "vision_config")
    }
    return kept | {"model_type": family.model_type}


def _family(hf: Mapping[str, Any]) -> Family:
    """Return the family of a config, or of that of its text part."""
    model_type, inside = hf.get("model_type"), hf.get("text_config")
    name = (inside if isinstance(inside, Mapping) else hf).get("model_type")
    for kind in (model_type, name):
        if isinstance(kind, str) and kind in REFUSED:
            raise ValueError(f"model_type: {kind!r} {REFUSED[kind]}")
    family = {**FAMILIES, **READ_AS}.get(name) if isinstance(name, str) else None
    if family is None or model_type not in (name, *family.multimodal):
        code = "; code that comes with a model is never run" if hf.get("auto_map") else ""
        raise ValueError(f"model_type: {model_type!r} is not one of {', '.join(FAMILIES)}{code}")
    return family


def _renamed(hf: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """Return a config with the names of the family's table for keys that may have another."""
    ours = {key.name for key in family.keys} | POSITION_KEYS
    names = OTHER_NAMES.get(family.model_type, {})
    names = {a if b in ours else b: b if b in ours else a for a, b in names.items()}
    names = {key: name for key, name in names.items() if key not in ours or name not in hf}
    return {names.get(key, key): value for key, value in hf.items()}


def _without_left_over(rope: Mapping[str, Any], where: str, unread: list[str]) -> dict[str, Any]:
    """Return rope parameters without keys that transformers does not read for their type.

    unread: gets the names of those keys. ValueError: one looks like a scaling meant to be used.
    """
    kept = {}
    rope_type = rope.get("rope_type", rope.get("type")) or "default"
    rope_type = TYPE_NAMES.get(rope_type, rope_type)
    for key, value in rope.items():
        if isinstance(value, Mapping):
            kept[key] = _without_left_over(value, f"{where}.{key}", unread)
        elif value is None or key not in _LEFT_OVER.get(rope_type, ()):
            kept[key] = value
        elif key in _SCALES and value != 1:
            raise ValueError(
                f"{where}.{key}: is {show_value(value)}, but rope_type default does not scale; "
                f"give the rope_type, or leave the key out with 'ignored_keys=[{key}]'"
            )
        else:
            unread.append(f"{where}.{key}")
    return kept


def _unread_positions(hf: Mapping[str, Any], family: Family) -> set[str]:
    """Return the keys about positions that the family's code ignores, so that they may mislead."""
    unread = {"rope_local_base_freq", "rotary_dim", "rotary_emb_base", "rotary_pct"}
    unread -= {*family.defaults, *family.aliases.values()}
    if family.model_type not in EVERY_FOURTH_UNROTATED:
        unread |= {"no_rope_layers", "no_rope_layer_interval"}
    if not family.windows.exist and hf.get("use_sliding_window") is not False:
        unread |= {"sliding_window", "use_sliding_window"}
        types = hf.get("layer_types")
        if isinstance(types, list) and any(name != "full_attention" for name in types):
            unread.add("layer_types")
    return unread


def _restated(hf: Mapping[str, Any], model: Mapping[str, Any], rope: Mapping[str, Any]) -> set[str]:
    """Return keys of other families whose value is what this model has anyway."""
    same = {"rotary_dim": rope["rotary_dim"], "rotary_pct": hf.get("partial_rotary_factor", 1)}
    restated = {name for name, value in same.items() if hf.get(name) == value}
    fields = {name: field.default for name, field in ModelConfig.model_fields.items()}
    fields |= model
    for key in (key for family in FAMILIES.values() for key in family.keys if key.name in hf):
        with contextlib.suppress(ValueError):  # not one of that family's values
            meant = key.read(hf)
            if meant and meant.items() <= fields.items():
                restated.add(key.name)
    return restated


def _rope(
    hf: Mapping[str, Any], family: Family, model: Mapping[str, Any]
) -> tuple[dict[str, Any], int]:
    """Return the section `rope`, and the length that the model was last trained at."""
    count = model["num_hidden_layers"]
    windows = family.windows.read(hf, count)
    layers, scaling = layers_from_hf(_completed(hf, family, model))
    # Where layers differ, those that see everything decide what a sweep scales.
    of_layers = [layers.for_layer(i, scaling) for i in range(count)]
    global_layers = (
        layer
        for layer, window in zip(of_layers, windows, strict=True)
        if window is None and layer[1].type != "drope"
    )
    geometry, main = next(global_layers, of_layers[0])
    if main.type == "drope":
        geometry, main = layers.geometry, scaling
    pattern = []  # the settings in which each layer differs
    for (layer_geometry, applied), window in zip(of_layers, windows, strict=True):
        is_rotated = applied.type != "drope"
        settings: dict[str, Any] = {}
        for name in ("base", "rotary_dim"):
            if is_rotated and (own := getattr(layer_geometry, name)) != getattr(geometry, name):
                settings[name] = own
        # Such a layer keeps its scaling when a sweep replaces that of the others.
        is_local = bool(settings) or (family.local and window is not None)
        if applied != main or is_local or not is_rotated:
            settings["scaling"] = applied.model_dump(mode="json", exclude_none=True)
        if window is not None:
            settings[family.windows.setting] = window
        pattern.append(settings)
    rope: dict[str, Any] = {
        "base": geometry.base,
        "rotary_dim": geometry.rotary_dim,
        "train_length": geometry.train_length,
        "layout": family.layout,
        "scaling": main.model_dump(mode="json", exclude_none=True),
    }
    if (shortest := shortest_pattern(pattern)) != [{}]:
        rope["layer_pattern"] = shortest
    if dual := hf.get("dual_chunk_attention_config"):  # Qwen's models for 1M tokens
        chunk, local = (positive_int(dual, f"{name}_size") for name in ("chunk", "local"))
        rope["map"] = {"type": "dual_chunk", "chunk": chunk, "local": local}
        rope["train_length"] = positive_int(dual, LENGTH)
    longest = "max_position_embeddings"
    return rope, geometry.train_length if hf.get(longest) is None else positive_int(hf, longest)


def _completed(hf: Mapping[str, Any], family: Family, model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config with transformers' defaults, where `layers_from_hf` needs a key."""
    unread = _unread_positions(hf, family)
    given = {key: v for key, v in hf.items() if v not in (None, {}) and key not in unread}
    inside = given.get("rope_parameters") or given.get("rope_scaling") or {}
    is_new = "rope_parameters" in given
    for key, alias in family.aliases.items():
        # Keys of other names are ignored by the family's code; transformers 4.4x wrote both.
        value = inside.get(key, given.get(alias, family.defaults[key]))
        if given.pop(key, value) != value:
            raise ValueError(
                f"{key}: is ignored by {family.model_type}, whose {alias} is {value}; remove it"
            )
    for key, default in family.defaults.items():
        if key not in given and (key == LENGTH or not (is_new or key in inside)):
            given.setdefault(family.aliases.get(key, key), default)
    width = model.get("self_attention.qk_rope_head_dim", model.get("head_dim"))
    if width and "alternate_mixer.width" not in model:
        given["head_dim"] = width
    elif all(key.name != "head_dim" for key in family.keys):
        given["head_dim"] = model["hidden_size"] // model["num_attention_heads"]
    if family.model_type in GLOBAL_LAYERS_UNROTATED and "sliding_window" not in hf:
        given["sliding_window"] = family.windows.default
    if family.local or family.model_type in GLOBAL_LAYERS_UNROTATED:
        given["layer_types"] = family.windows.layer_types(hf, model["num_hidden_layers"])
    if family.local:
        if "rope_type" not in inside and inside.get("type", "default") != "default":
            raise ValueError(f"type: is ignored by {family.model_type}; call it rope_type")
        nested = given.get("rope_parameters")
        if nested and not all(isinstance(part, Mapping) for part in nested.values()):
            raise ValueError(
                f"rope_parameters: {family.model_type} needs one mapping for each layer type, "
                "full_attention and sliding_attention; transformers ignores a flat one"
            )
    return given
