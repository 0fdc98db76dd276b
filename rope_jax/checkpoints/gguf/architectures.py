"""A GGUF file's metadata as the config.json that the same model has on the hub.

From the conversion scripts of llama.cpp, and from its code where a file does not say what that does
for all models of an architecture.
"""

import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import yaml
from numpy.typing import NDArray

from rope_jax.checkpoints.families import FAMILIES, Family
from rope_jax.checkpoints.families.base import FULL, SLIDING
from rope_jax.checkpoints.gguf.header import Value
from rope_jax.checkpoints.gguf.rope import Reads
from rope_jax.config.messages import show_value
from rope_jax.errors import UserError
from rope_jax.rope import RotaryGeometry, parse_scaling
from rope_jax.rope.hf.model_types import MAY_ROTATE_PART
from rope_jax.rope.hf.read import LENGTH

ROPE_FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors that are settings of the rotation: divisors of its frequencies."""


class Architecture(NamedTuple):
    """What llama.cpp calls an architecture.

    model_type: of transformers.
    permuted:   rows of queries and keys are in the order in which a rotated pair is adjacent.
    plus_one:   weights of norms are stored as 1 + weight.
    tiled:      value heads of gated delta nets are ordered by their place at a key head first.
    names:      keys of config.json for metadata that other architectures lack or read otherwise,
                all of which need a value; None: it follows from others.
    config:     keys of config.json that the files may leave to llama.cpp's code.
    usual:      metadata that say what this family always does.
    tensors:    keys of config.json for what the tensors tell, and the values with a tensor and
                without it.
    rope:       rope parameters of models with YaRN that the files leave to llama.cpp's code.
    scaling:    metadata that are such parameters.
    log_unit:   of rope.scaling.yarn_log_multiplier.
    windows:    llama.cpp's code has the sliding windows of this family.
    reads:      what that reads about rotation besides the keys that it reads for all.
    variants:   what is otherwise in files in which a key of metadata has a value; True: any but 0.
    num_layers_of_largest: of the one model whose query_pre_attn_scalar is hidden_size /
                num_attention_heads, not head_dim (Gemma); None: no such setting.
    """

    model_type: str
    permuted: bool = False
    plus_one: bool = False
    tiled: bool = False
    names: Mapping[str, str | None] = {}
    config: Mapping[str, Any] = {}
    usual: Mapping[str, Any] = {}
    tensors: Mapping[str, tuple[str, Any, Any]] = {}
    rope: Mapping[str, Any] = {}
    scaling: Mapping[str, str] = {}
    log_unit: float = 1.0
    windows: bool = False
    reads: Collection[Reads] = ()
    num_layers_of_largest: int | None = None
    variants: Mapping[tuple[str, Any], "Architecture"] = {}


def _architecture(raw: dict[str, Any]) -> Architecture:
    variants = {
        (variant.pop("key"), variant.pop("value")): Architecture(**raw | variant)
        for variant in raw.pop("variants", ())
    }
    return Architecture(**raw, variants=variants)


_TABLE = yaml.safe_load(Path(__file__).with_name("architectures.yaml").read_text("utf-8"))
_FIELDS: dict[str, str] = _TABLE["fields"]
ARCHITECTURES: dict[str, Architecture] = {
    name: _architecture(raw) for name, raw in _TABLE["architectures"].items()
}
_KNOWN = {key for part in vars(gguf.Keys).values() if isinstance(part, type)
          for key in vars(part).values()}  # fmt: skip
_YARN_M = "rope.scaling.yarn_attn_factor"


def architecture_of(metadata: Mapping[str, Any], file: str) -> tuple[str, Architecture, Family]:
    """Return a file's architecture, by name and with its family.

    UserError: the file holds something else than a language model, or one of no family.
    """
    content, name = metadata.get("general.type", "model"), metadata.get("general.architecture")
    if content != "model":
        raise UserError(f"{file}: general.type: is {content!r}, not a model; name the model's file")
    if name not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise UserError(f"{file}: general.architecture: {name!r} is not one of {known}")
    architecture = ARCHITECTURES[name]
    for (key, value), variant in architecture.variants.items():
        stored = metadata.get(f"{name}.{key}")
        if stored == value or (stored and value is True):
            architecture = variant
    return name, architecture, FAMILIES[architecture.model_type]


def _names(
    architecture: Architecture, family: Family
) -> tuple[dict[str, str], dict[str, str | None]]:
    """Return the keys of config.json by field of the model, and by metadata."""
    by_field = {key.fields[0]: key.name for key in reversed(family.keys) if key.fields}
    names: dict[str, str | None] = {key.name: key.name for key in family.keys}
    names |= {key: by_field[field] for key, field in _FIELDS.items() if field in by_field}
    return by_field, names | {**_TABLE["positions"], **architecture.names}


def metadata_of(
    name: str, architecture: Architecture, config: Mapping[str, Any], rotary_dim: int
) -> dict[str, Value]:
    """Return the metadata that describe a model but for its rotation: the inverse of `config_of`.

    config: its config.json. Of that, a file lacks what llama.cpp's code does anyway, or cannot do.
    """
    _, names = _names(architecture, FAMILIES[architecture.model_type])
    given = {key: config.get(theirs) for key, theirs in names.items() if theirs is not None}
    given |= {**architecture.usual, "rope.dimension_count": rotary_dim}
    given["attention.value_length"] = given.get("attention.key_length")
    window = config.get("sliding_window", config.get("attention_chunk_size"))
    if architecture.windows and window:
        given["attention.sliding_window"] = window
        types = config.get("layer_types", ())
        given["attention.sliding_window_pattern"] = [kind != FULL for kind in types]
    known = {f"{name}.{key}": value for key, value in given.items() if f"{{arch}}.{key}" in _KNOWN}
    about = {"general.architecture": name} | known
    return {key: value for key, value in about.items() if value is not None}


def config_of(
    metadata: Mapping[str, Any], tensors: Collection[str], factors: Mapping[str, NDArray[Any]],
    rows: int, file: str, warn: Callable[[str], None],
) -> dict[str, Any]:  # fmt: skip
    """Return the config.json that describes a file's model.

    tensors: their names. factors: those of `ROPE_FACTORS` that exist. rows: of the embedding.
    warn: called with one line if a key may mean something else.

    Metadata of the architecture that nothing here reads stay under their names, for the reader of
    the config to judge like any key that it does not know. UserError: see `architecture_of`.
    """
    name, architecture, family = architecture_of(metadata, file)
    given = {
        key.removeprefix(f"{name}."): value
        for key, value in metadata.items()
        if key.startswith(f"{name}.")
    }
    for key in _TABLE["required"]:
        if not given.get(key):
            wrong = show_value(given[key]) if key in given else "missing"
            raise UserError(
                f"{file}: {name}.{key}: is {wrong}; it should be a whole number of at least 1"
            )
    by_field, names = _names(architecture, family)
    config: dict[str, Any] = {"model_type": family.model_type, **architecture.config}
    for key, theirs in names.items():
        if key in given:
            value = given.pop(key)
            if theirs is not None:
                config[theirs] = value
    needed = [by_field[field] for field in _TABLE["required_fields"] if field in by_field]
    for theirs in (*needed, *architecture.names.values()):
        if theirs is not None and theirs not in config:
            keys = {**_FIELDS, **architecture.names}
            choices = " or ".join(key for key in keys if names.get(key) == theirs)
            raise UserError(f"{file}: {name}: has no {choices}, which llama.cpp needs")
    config.setdefault(by_field["vocab_size"], rows)
    heads = config.get(by_field["num_attention_heads"])
    if "num_key_value_heads" in by_field:
        config.setdefault(by_field["num_key_value_heads"], heads)
    for field, endings in _TABLE["parts"].items():
        if field in by_field:
            has_part = any(f"blk.0.{ending}" in tensors for ending in endings)
            config.setdefault(by_field[field], has_part)
    for theirs, (tensor, with_it, without) in architecture.tensors.items():
        config[theirs] = with_it if tensor in tensors else without
    config["tie_word_embeddings"] = "output.weight" not in tensors
    width = config.get("head_dim") or config["hidden_size"] // heads
    # llama.cpp counts those that predict further tokens, which are left out here
    config["num_hidden_layers"] -= config.get("num_nextn_predict_layers", 0)
    if "linear_value_dim" in config:
        of_all = config.pop("linear_value_dim")
        config["linear_value_head_dim"] = of_all // config["linear_num_value_heads"]
    if "qk_rope_head_dim" in config:
        width = config["qk_rope_head_dim"]
        config["qk_nope_head_dim"] = config["qk_head_dim"] - width
        if "n_group" not in config:
            groups = _TABLE["groups"].get(config["n_routed_experts"], (1, 1))
            config["n_group"], config["topk_group"] = groups
    if any(key.name == "head_dim" and key.default is not None for key in family.keys):
        config["head_dim"] = width  # not the family's default
    if given.get("attention.value_length") == width:
        del given["attention.value_length"]
    if architecture.num_layers_of_largest is not None:
        is_wide = config["num_hidden_layers"] == architecture.num_layers_of_largest
        config["query_pre_attn_scalar"] = config["hidden_size"] // heads if is_wide else width
    # whatever transformers' default is; 0 is Phi-4's
    window = given.pop("attention.sliding_window", config.get("sliding_window"))
    config["sliding_window"] = window or None
    if isinstance(slides := given.get("attention.sliding_window_pattern"), list):
        del given["attention.sliding_window_pattern"]
        config["layer_types"] = [SLIDING if local else FULL for local in slides]
    rope = config["rope_parameters"] = _rope(given, config, width, architecture, factors)
    if rope["rope_type"] == "yarn" and not math.isclose(
        m := _yarn_m(rope), stored := given.get(_YARN_M, m), rel_tol=1e-4
    ):
        warn(
            f"{file}: {name}.{_YARN_M}: is {stored:g}, which is ignored as in llama.cpp: m is "
            f"{m:.4g}, as is right if it was attn_factor in the model's config.json; if it was "
            "attention_factor, sweep a yarn with that attention_factor"
        )
    if family.local:
        base = family.defaults.get("rope_local_base_freq", config["rope_parameters"]["rope_theta"])
        base = given.pop("rope.freq_base_swa", base)
        config["rope_parameters"] = {
            "full_attention": config["rope_parameters"],
            "sliding_attention": {"rope_type": "default", "rope_theta": base},
        }
    for key, usual in {**_TABLE["usual"], **architecture.usual}.items():
        if (value := given.pop(key, usual)) != usual:
            wrong = f"is {show_value(value)}; only {show_value(usual)} can be read"
            raise UserError(f"{file}: {name}.{key}: {wrong}")
    return config | {f"{name}.{key}": v for key, v in given.items() if key not in _TABLE["ignored"]}


def _rope(
    given: dict[str, Any],
    config: dict[str, Any],
    width: int,
    architecture: Architecture,
    factors: Mapping[str, NDArray[Any]],
) -> dict[str, Any]:
    """Return the rope parameters; takes what it reads out of `given`.

    width: of a head. config: gets L, where LongRoPE needs it.
    """
    rope: dict[str, Any] = {"rope_theta": given.pop("rope.freq_base", 10000.0)}
    rotary = given.pop("rope.dimension_count", width)
    if width and (architecture.model_type in MAY_ROTATE_PART or rotary != width):
        share = rotary / width  # of which int(width · share) has to be `rotary`
        share = share if int(width * share) == rotary else math.nextafter(share, 1.0)
        rope["partial_rotary_factor"] = share
    factor = given["rope.scaling.factor"] = given.get("rope.scaling.factor") or 1.0  # as llama.cpp
    scaling_type = given.get("rope.scaling.type", "linear" if factor != 1 else "none")
    attention = given.get("rope.scaling.attn_factor", 1.0)
    long, short = (factors.get(f"rope_factors_{x}.weight") for x in ("long", "short"))
    both = factors.get("rope_freqs.weight")
    is_3 = both is not None and attention == 1 and _llama3(both, rope["rope_theta"], rotary)
    if is_3:
        given.pop("rope.scaling.type", None)
        return rope | is_3 | {"rope_type": "llama3"}
    if both is long is None and attention != 1 and scaling_type in ("none", "linear"):
        factor = given.pop("rope.scaling.factor")
        both = np.full(rotary // 2, factor if scaling_type == "linear" else 1.0)
    if both is not None or long is not None:
        for key in ("rope.scaling.type", "rope.scaling.attn_factor"):
            given.pop(key, None)
        config.setdefault(LENGTH, config["max_position_embeddings"])
        for key, divisors in (("short_factor", short), ("long_factor", long)):
            chosen = divisors if both is None else both
            rope[key] = [float(str(x)) for x in chosen] if chosen is not None else None
        return rope | {"rope_type": "longrope", "attention_factor": attention}
    rope["rope_type"] = "default"
    if scaling_type in ("none", "linear", "yarn"):
        given.pop("rope.scaling.type", None)
    if scaling_type in ("linear", "yarn"):
        rope["rope_type"] = scaling_type
        scaling = {**_TABLE["scaling"], **architecture.scaling}
        rope |= {theirs: given.pop(key) for key, theirs in scaling.items() if key in given}
        rope |= architecture.rope if scaling_type == "yarn" else {}
        if "mscale_all_dim" in rope:  # the other is not in the file; DeepSeek has both alike
            in_all = round(rope["mscale_all_dim"] / architecture.log_unit, 6)
            rope |= {
                "mscale": 1.0 if architecture.log_unit == 1 else in_all,
                "mscale_all_dim": in_all,
            }
        elif scaling_type == "yarn" and attention != 1:
            rope["attention_factor"] = given.pop("rope.scaling.attn_factor") * _yarn_m(rope)
    return rope


def _yarn_m(rope: Mapping[str, Any]) -> float:
    """Return what cos and sin are multiplied by in a model with YaRN."""
    log = 0.1 * math.log(max(rope["factor"], 1))
    by_default = (rope.get("mscale", 1) * log + 1) / (rope.get("mscale_all_dim", 0) * log + 1)
    return float(rope.get("attention_factor", by_default))


def _llama3(factors: NDArray[Any], base: float, rotary: int) -> dict[str, Any]:
    """Return llama3's settings of which these are the divisors of the frequencies; {}: none."""
    factor = float(str(factors.max()))
    for low, high, length in _TABLE["llama3"] if factor > 1 else ():
        settings = {"factor": factor, "low_freq_factor": low, "high_freq_factor": high}
        geometry = RotaryGeometry(rotary, base, length)
        scaled, _ = parse_scaling({"type": "llama3", **settings}).scaled(geometry)
        divisors = geometry.inv_freq() / scaled
        if divisors.shape == factors.shape and np.allclose(divisors, factors, rtol=1e-4):
            return settings | {LENGTH: length}
    return {}
