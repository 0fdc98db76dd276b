"""Read a geometry and a strategy from a Hugging Face config dictionary, without torch.

Covers every form that transformers 4.40 to 5.24 writes. A key that its type does not use is an
error: transformers only warns, and a scaling that is silently off is a common bug.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from rope_jax.rope.geometry import RotaryGeometry
from rope_jax.rope.hf.model_types import (
    DEFAULT_BASES,
    DERIVES_HEAD_DIM,
    QUERIES_SCALED,
    ROTATES_PART,
    ROTATES_WHOLE,
    SOFTMAX_SCALED,
)
from rope_jax.rope.strategies import Scaling, parse_scaling

Config = Mapping[str, Any]

LENGTH = "original_max_position_embeddings"


class RopeType(NamedTuple):
    """A rope_type: our strategy, and its keys besides its name, base and partial_rotary_factor."""

    strategy: str
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


ROPE_TYPES = {
    "default": RopeType("none"),
    "linear": RopeType("pi", ("factor",)),
    "dynamic": RopeType("dynamic_ntk", ("factor",), (LENGTH,)),
    "yarn": RopeType(
        "yarn",
        optional=(
            *("factor", LENGTH, "attention_factor", "beta_fast", "beta_slow"),
            *("mscale", "mscale_all_dim", "truncate"),
            "finetuned",  # in Yarn-Llama; it has no effect
            *("llama_4_scaling_beta", "max_position_embeddings"),  # Ministral 3's
        ),
    ),
    "longrope": RopeType(
        "longrope",
        ("short_factor", "long_factor"),
        # the last two are m for short and for long texts, which 5.24 reads for Phi-3.5-MoE alone
        ("factor", LENGTH, "attention_factor", "short_mscale", "long_mscale"),
    ),
    "llama3": RopeType("llama3", ("factor", "low_freq_factor", "high_freq_factor"), (LENGTH,)),
    "proportional": RopeType("p_rope", optional=("factor",)),
}
TYPE_NAMES = {"su": "longrope", "mrope": "default"}
"""Rope types by other names."""
# Which pairs rotate by which of three positions: in a text these are equal (Qwen-VL).
_MROPE = ("mrope_section", "mrope_interleaved")
# Keys of which one of our settings is made under another name.
_THEIR_NAMES = {"beta": "llama_4_scaling_beta", "p": "partial_rotary_factor", "s": "mscale_all_dim"}
# Version 4 keeps these outside of rope_scaling, version 5 inside of rope_parameters.
_IN_EITHER_PLACE = ("rope_theta", "partial_rotary_factor")

# Keys that state the width of the rotated heads.
_HEAD_DIM = ("head_dim", "qk_rope_head_dim", "attention_head_dim", "kv_channels")


def softmax_scale(rope: Config) -> float:
    """Return what DeepSeek's code multiplies logits by, beside m, with these YaRN parameters."""
    return (0.1 * rope.get("mscale_all_dim", 0) * math.log(rope["factor"]) + 1) ** 2


def from_hf(config: Config, layer_type: str | None = None) -> tuple[RotaryGeometry, Scaling]:
    """Return the geometry and scaling in the dictionary of a Hugging Face config.json.

    rotary_dim is int(head_dim · partial_rotary_factor), where head_dim is `head_dim`,
    `qk_rope_head_dim`, `attention_head_dim` or `kv_channels`, or hidden_size / num_attention_heads
    for a model type that is known to derive it so; or the config's own `rotary_dim`; or the whole
    head for `proportional`. train_length is `original_max_position_embeddings` if
    present, else `max_position_embeddings`, which `dynamic` always uses. A missing factor of YaRN
    or LongRoPE is max_position_embeddings / train_length.

    layer_type: which layer type to read, if they differ; `layers_from_hf` reads all of them.

    The code of DeepSeek V2 and V3 also multiplies logits by (0.1·mscale_all_dim·ln s + 1)², which
    becomes a constant query scale. What else only a model's code determines is not read, such as
    which dimensions form a pair (layout "interleaved" in Llama 4, GLM, Cohere and DeepSeek).

    ValueError: a key is missing, is not used by its type, or has different values in two places; or
    the type is unknown. The message begins with the key.
    """
    config = language_model(config)
    parts = by_layer_type(config)
    if layer_type is None and len(parts) > 1:
        made = [read_part(config, x, name) for name, x in parts.items() if x is not None]
        if len(made) < len(parts) or any(other != made[0] for other in made):
            raise ValueError(
                f"layer_type: {' and '.join(map(str, parts))} differ; name one, or use "
                "layers_from_hf"
            )
        return made[0]
    name = next(iter(parts)) if layer_type is None or None in parts else layer_type
    if name not in parts:
        raise ValueError(f"layer_type: {layer_type!r} is not one of {', '.join(map(str, parts))}")
    return read_part(config, parts[name], name)


# Top-level keys that change the rotation and are not supported.
_UNSUPPORTED = ("rope_pct", "rope_percent", "rotary_percentage", "rope_ratio", "global_rope_theta")


def language_model(config: Config) -> Config:
    """The language model's part of a config; ValueError unless supported keys rotate it."""
    if not isinstance(config, Mapping):
        raise ValueError(f"config: should be a mapping, not {config!r}")
    inside = config.get("text_config")
    config = inside if isinstance(inside, Mapping) else config
    for key in _UNSUPPORTED:
        if config.get(key) is not None:
            raise ValueError(f"{key}: is not supported; transformers writes it in rope_parameters")
    if config.get("alibi"):
        raise ValueError("alibi: is true; this model does not rotate")
    encoding = config.get("position_embedding_type")
    if encoding not in (None, "rope", "rope_gptj", "rotary"):
        raise ValueError(f"position_embedding_type: is {encoding!r}; this model does not rotate")
    return config


def by_layer_type(config: Config) -> dict[str | None, Config | None]:
    """Rope parameters by layer type ({None: …} if all share them); None: no rotation."""
    given = {key: config[key] for key in ("rope_scaling", "rope_parameters") if config.get(key)}
    for key, value in given.items():
        if not isinstance(value, Mapping):
            raise ValueError(f"{key}: should be a mapping, not {value!r}")
    alike = [
        {"rope_type" if k == "type" else k: v for k, v in x.items() if k not in _IN_EITHER_PLACE}
        for x in map(_of_global_layers, given.values())
    ]
    if any(other != alike[0] for other in alike):
        raise ValueError("rope_scaling, rope_parameters: differ; keep one of the two")
    parameters: Config = {k: v for value in given.values() for k, v in value.items()}
    if any(isinstance(value, Mapping) for value in parameters.values()):
        parameters = given.get("rope_parameters", parameters)
        if wrong := [k for k, v in parameters.items() if not isinstance(v, Mapping | None)]:
            raise ValueError(f"rope_parameters.{wrong[0]}: is mixed with a mapping per layer type")
        return {name: part for name, part in parameters.items()}
    # before transformers 5.0, scaling and rope_theta are for the global layers of these
    if config.get("rope_local_base_freq") is not None:  # Gemma 3
        local = {"rope_type": "default", "rope_theta": config["rope_local_base_freq"]}
    elif config.get("model_type") == "olmo3" and parameters:
        local = {key: parameters[key] for key in ("rope_theta",) if key in parameters}
    else:
        return {None: parameters}
    return {"full_attention": parameters, "sliding_attention": local}


def _of_global_layers(rope: Config) -> Config:
    """Return what rope_scaling says beside rope_parameters by layer type: that of these layers."""
    of_global = rope.get("full_attention")
    return of_global if isinstance(of_global, Mapping) else rope


def layer_types(config: Config, count: int) -> list[str | None]:
    """Return the type of each of `count` layers; ValueError if the config does not say."""
    types, model_type = config.get("layer_types"), config.get("model_type")
    if types is None and config.get("sliding_window_pattern") and model_type != "olmo3":
        every = positive_int(config, "sliding_window_pattern")
        types = [f"{'sliding' if (i + 1) % every else 'full'}_attention" for i in range(count)]
    if not isinstance(types, list | tuple):
        raise ValueError("layer_types: is required, because rope_parameters differ between them")
    if len(types) != count:
        raise ValueError(f"layer_types: {len(types)} entries for {count} layers")
    return list(types)


def read_part(
    config: Config, rope: Config | None, layer_type: str | None
) -> tuple[RotaryGeometry, Scaling]:
    """The geometry and scaling of one layer type."""
    if rope is None:
        raise ValueError(f"layer_type: {layer_type} does not rotate")
    where = "rope parameters" if layer_type is None else f"rope parameters of {layer_type}"
    rope = {key: value for key, value in rope.items() if value is not None}
    rope_type = _type(config, rope, where)
    _, required, optional = ROPE_TYPES[rope_type]
    known = ("rope_type", "type", *_IN_EITHER_PLACE, *required, *optional, *_MROPE)
    if unknown := [key for key in rope if key not in known]:
        raise ValueError(
            f"{unknown[0]}: is not used in {where} of type {rope_type}; they may have "
            f"{', '.join(known)}"
        )
    outside = config
    if layer_type is not None:  # top-level keys apply to layer types that lack them
        outside = {key: value for key, value in config.items() if key not in rope}
    model_type = config.get("model_type")
    base = _either(outside, rope, "rope_theta", "rotary_emb_base")
    if base is None:
        base = DEFAULT_BASES.get(model_type or "")
    if base is None:
        raise ValueError(f"rope_theta: is missing, both in the {where} and at the top level")
    share = _either(outside, rope, "partial_rotary_factor", "rotary_pct")
    if share is None and model_type in ROTATES_PART:
        raise ValueError(
            f"partial_rotary_factor: is missing; {model_type} rotates part of the head"
        )
    width = head_dim(config, layer_type)
    rotary_dim = width
    if rope_type != "proportional" and share is not None:
        rotary_dim = int(width * _number("partial_rotary_factor", share))
        if rope_type == "default" and rotary_dim != width and model_type in ROTATES_WHOLE:
            raise ValueError(
                f"partial_rotary_factor: is ignored by transformers' {model_type}, which "
                "rotates the whole head when unscaled; leave it out"
            )
    if config.get("rotary_dim") is not None:
        stated = positive_int(config, "rotary_dim")
        if share is not None and stated != rotary_dim:
            raise ValueError(
                f"rotary_dim: is {stated}, but partial_rotary_factor says {rotary_dim}"
            )
        rotary_dim = stated
    original = _either(outside, rope, LENGTH)
    if original is None or rope_type == "dynamic":
        original = positive_int(config, "max_position_embeddings")
    if rope_type == "dynamic" and rope.get(LENGTH, original) != original:
        raise ValueError(
            f"{LENGTH}: is {rope[LENGTH]}, but dynamic scaling grows from "
            f"max_position_embeddings, {original}; write the same, or leave it out"
        )
    length = positive_int({LENGTH: original}, LENGTH)
    geometry = RotaryGeometry(rotary_dim, float(_number("rope_theta", base)), length)
    settings = _settings(config, rope, rope_type, geometry, 1.0 if share is None else share)
    return geometry, parse_theirs(settings)


def parse_theirs(settings: dict[str, Any]) -> Scaling:
    """Parse settings made of Hugging Face's keys; an error names the key in the file."""
    try:
        return parse_scaling(settings)
    except ValueError as error:
        name, colon, why = str(error).partition(": ")
        name = name.removeprefix("query_scale.")
        raise ValueError(_THEIR_NAMES.get(name, name) + colon + why) from None


def _type(config: Config, rope: Config, where: str) -> str:
    given = (rope[key] for key in ("rope_type", "type") if key in rope)
    names = {TYPE_NAMES.get(rope_type, rope_type) for rope_type in given}
    if len(names) > 1:
        raise ValueError(f"rope_type: {where} have {' and '.join(sorted(map(repr, names)))}")
    rope_type = names.pop() if names else "default"
    if rope_type == "yarn" and config.get("model_type") == "phi3":
        rope_type = "longrope"  # the name in the first versions of Phi-3's config
    if rope_type not in ROPE_TYPES:
        raise ValueError(f"rope_type: {rope_type!r} is not one of {', '.join(ROPE_TYPES)}")
    return rope_type


def _settings(
    config: Config, rope: Config, rope_type: str, geometry: RotaryGeometry, share: float
) -> dict[str, Any]:
    strategy, required, optional = ROPE_TYPES[rope_type]
    settings = {key: rope[key] for key in (*required, *optional) if key in rope and key != LENGTH}
    needs_factor = rope_type == "yarn" or (
        rope_type == "longrope" and "attention_factor" not in settings
    )
    if needs_factor and "factor" not in settings:
        longest = positive_int(config, "max_position_embeddings")
        # Below 1 if a config has swapped the two lengths, which YaRN's own check rejects.
        ratio = longest / geometry.train_length
        settings["factor"] = max(ratio, 1.0) if rope_type == "longrope" else ratio  # m is 1 up to 1
    if missing := [key for key in required if key not in settings]:
        raise ValueError(f"{missing[0]}: is required for rope_type {rope_type} and was not given")
    if rope_type == "proportional":
        settings["p"] = float(share)
    if rope_type == "longrope":
        scales = [settings.pop(key) for key in ("short_mscale", "long_mscale") if key in settings]
        if scales and config.get("model_type") == "phimoe":
            if scales[0] != scales[-1]:
                raise ValueError("short_mscale: differs from long_mscale; only one m is supported")
            settings["attention_factor"] = scales[0]
    if rope_type == "yarn":
        settings.pop("finetuned", None)
        settings.pop("max_position_embeddings", None)  # Ministral 3 repeats the top-level one
        if beta := settings.pop("llama_4_scaling_beta", None):  # 0 scales nothing
            model_type = config.get("model_type")
            if model_type is not None and model_type not in QUERIES_SCALED:
                raise ValueError(
                    f"llama_4_scaling_beta: is ignored by transformers' {model_type}; leave it out"
                )
            settings["query_scale"] = {"type": "ministral", "beta": beta}
        if config.get("model_type") in SOFTMAX_SCALED and settings.get("mscale_all_dim"):
            if not settings.get("mscale") and "attention_factor" not in settings:
                raise ValueError(
                    "mscale_all_dim: is given without mscale, from which DeepSeek's own code and "
                    "transformers compute different m; give mscale, 1 for DeepSeek's"
                )
            settings["query_scale"] = {"type": "constant", "s": softmax_scale(settings)}
        # transformers replaces 0 with its default
        idle = [key for key in ("beta_fast", "beta_slow") if not settings.get(key, True)]
        has_both = settings.get("mscale") and settings.get("mscale_all_dim")
        if "attention_factor" in settings or not has_both:
            # transformers ignores one without the other, and both if attention_factor is given
            idle += ["mscale", "mscale_all_dim"]
        settings = {key: value for key, value in settings.items() if key not in idle}
    return {"type": strategy, **settings}


def _either(config: Config, rope: Config, key: str, other: str | None = None) -> Any:
    """A key's value, inside or outside the rope parameters; ValueError if the two differ."""
    inside, outside = rope.get(key), config.get(key)
    if None not in (inside, outside) and inside != outside:
        raise ValueError(f"{key}: is {inside} in the rope parameters but {outside} outside them")
    value = outside if inside is None else inside
    return config.get(other) if value is None and other is not None else value


def head_dim(config: Config, layer_type: str | None) -> int:
    """The width of the rotated heads in layers of one type."""
    if isinstance(layers := config.get("per_layer_config"), Mapping) and layer_type is not None:
        # Gemma 4's global layers have wider heads; the keys are layer indices as text
        widths = {int(index): layer.get("head_dim") for index, layer in layers.items()}
        types = layer_types(config, positive_int(config, "num_hidden_layers"))
        of_type = {widths.get(i) for i, each in enumerate(types) if each == layer_type}
        if len(of_type) > 1:
            raise ValueError(f"per_layer_config: layers of {layer_type} differ in head_dim")
        if None not in of_type:
            return positive_int({"head_dim": of_type.pop()}, "head_dim")
    if layer_type == "full_attention" and config.get("global_head_dim"):
        return positive_int(config, "global_head_dim")  # Gemma 4's older form
    for key in _HEAD_DIM:
        if config.get(key) is not None:
            return positive_int(config, key)
    if config.get("model_type") not in DERIVES_HEAD_DIM:
        raise ValueError(
            f"head_dim: is missing, and how wide the heads of model_type "
            f"{config.get('model_type')!r} are is not known; give head_dim"
        )
    return positive_int(config, "hidden_size") // positive_int(config, "num_attention_heads")


def positive_int(config: Config, key: str) -> int:
    """A required key's value; ValueError unless it is a whole number of at least 1."""
    value = config.get(key)
    if value is None:
        raise ValueError(f"{key}: is required but was not given")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{key}: should be a whole number of at least 1, not {value!r}")
    return value


def _number(key: str, value: Any) -> float | int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{key}: should be a number, not {value!r}")
    return value
