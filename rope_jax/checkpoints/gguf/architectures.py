"""A GGUF file's metadata as the config.json that the same model has on the hub.

From the conversion scripts of llama.cpp, and from its code where a file does not say what that does
for all models of an architecture.
"""

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rope_jax.checkpoints.families import FAMILIES, Family
from rope_jax.checkpoints.gguf.header import check_kinds
from rope_jax.config.messages import show_value
from rope_jax.errors import UserError
from rope_jax.rope import RotaryGeometry, parse_scaling
from rope_jax.rope.hf.read import LENGTH

ROPE_FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors that are settings of the rotation: divisors of its frequencies."""


class Architecture(NamedTuple):
    """What llama.cpp calls an architecture.

    model_type: of transformers.
    permuted:   rows of queries and keys are in the order in which a rotated pair is adjacent.
    plus_one:   weights of norms are stored as 1 + weight.
    names:      keys of config.json for metadata that other architectures lack or read otherwise,
                all of which need a value; None: it follows from others.
    config:     keys of config.json that the files may leave to llama.cpp's code.
    usual:      metadata that say what this family always does.
    tensors:    keys of config.json for what the tensors tell, and the values with a tensor and
                without it.
    rope:       rope parameters of models with YaRN that the files leave to llama.cpp's code.
    scaling:    metadata that are such parameters.
    log_unit:   of rope.scaling.yarn_log_multiplier.
    variants:   what is for files in which a key of metadata has a value instead; True: any but 0.
    wide:       number of layers of its one model whose query_pre_attn_scalar is hidden_size /
                num_attention_heads, not head_dim: Gemma's largest; None: no such setting.
    """

    model_type: str
    permuted: bool = False
    plus_one: bool = False
    names: Mapping[str, str | None] = {}
    config: Mapping[str, Any] = {}
    usual: Mapping[str, Any] = {}
    tensors: Mapping[str, tuple[str, Any, Any]] = {}
    rope: Mapping[str, Any] = {}
    scaling: Mapping[str, str] = {}
    log_unit: float = 1.0
    wide: int | None = None
    variants: Mapping[tuple[str, Any], "Architecture"] = {}


_TEMPERATURE = "attention.temperature_scale"
_LOGITS, _WINDOW = {"logit_scale": "logit_scale"}, {"attention.sliding_window": "sliding_window"}
_GRANITE = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
_LATENT = {
    "attention.q_lora_rank": "q_lora_rank",
    "attention.kv_lora_rank": "kv_lora_rank",
    "rope.dimension_count": "qk_rope_head_dim",
    # with the suffix in files whose heads share one key, as llama.cpp computes them
    **dict.fromkeys(("attention.key_length", "attention.key_length_mla"), "qk_head_dim"),
    **dict.fromkeys(("attention.value_length", "attention.value_length_mla"), "v_head_dim"),
    "attention.head_count_kv": None,
    "expert_shared_count": "n_shared_experts",
}
_DEEPSEEK = Architecture(
    "deepseek_v3",
    names=_LATENT,
    config={"q_lora_rank": None, "norm_topk_prob": False, "routed_scaling_factor": 1.0},
    log_unit=0.1,
)
ARCHITECTURES = {
    "llama": Architecture(
        "llama",
        permuted=True,
        variants={("expert_count", True): Architecture("mixtral", permuted=True)},
    ),
    "qwen2": Architecture("qwen2"),
    "qwen2moe": Architecture("qwen2_moe"),
    "qwen3": Architecture("qwen3"),
    "qwen3moe": Architecture("qwen3_moe", config={"norm_topk_prob": True}),
    "phi3": Architecture("phi3"),
    "gemma": Architecture("gemma", plus_one=True),
    "gemma2": Architecture("gemma2", plus_one=True, wide=46, config={"sliding_window": 4096}),
    "gemma3": Architecture("gemma3_text", plus_one=True, wide=62),
    "gptneox": Architecture("gpt_neox"),
    "smollm3": Architecture("smollm3", permuted=True),
    "olmo": Architecture("olmo", permuted=True, usual={"attention.layer_norm_epsilon": 1e-5}),
    "olmo2": Architecture(
        "olmo2", variants={("attention.sliding_window", True): Architecture("olmo3")}
    ),
    "command-r": Architecture("cohere", names=_LOGITS),
    "cohere2": Architecture("cohere2", names=_LOGITS | _WINDOW),
    "phi2": Architecture("phi"),
    "stablelm": Architecture("stablelm"),
    "falcon": Architecture(
        "falcon",
        config={"new_decoder_architecture": True},
        usual={"tensor_data_layout": "jploski"},
        tensors={"num_ln_in_parallel_attn": ("blk.0.attn_norm_2.weight", 2, 1)},
    ),
    "nemotron": Architecture("nemotron", plus_one=True),
    "olmoe": Architecture("olmoe"),
    "granite": Architecture("granite", permuted=True, names=_GRANITE),
    "granitemoe": Architecture("granitemoe", permuted=True, names=_GRANITE),
    "starcoder2": Architecture("starcoder2"),
    "glm4": Architecture("glm4"),
    "seed_oss": Architecture("seed_oss"),
    "arcee": Architecture("arcee", permuted=True),
    "jais2": Architecture("jais2"),
    "ernie4_5": Architecture("ernie4_5"),
    "exaone": Architecture("exaone"),
    "exaone4": Architecture("exaone4"),
    "mistral3": Architecture(
        "mistral",
        permuted=True,
        variants={
            (_TEMPERATURE, True): Architecture(
                "ministral3", permuted=True, scaling={_TEMPERATURE: "llama_4_scaling_beta"}
            )
        },
    ),
    "llama4": Architecture(
        "llama4_text",
        names={
            "feed_forward_length": "intermediate_size_mlp",
            "expert_feed_forward_length": "intermediate_size",
            "interleave_moe_layer_step": "interleave_moe_layer_step",
        },
        config={"use_qk_norm": True},  # Scout's, whose layers all have experts
    ),
    "gpt-oss": Architecture(
        "gpt_oss",
        names={"expert_feed_forward_length": "intermediate_size"} | _WINDOW,
        rope={"truncate": False},
    ),
    "deepseek2": _DEEPSEEK._replace(
        model_type="deepseek_v2",
        config={**_DEEPSEEK.config, "topk_method": "group_limited_greedy"},
        variants={("expert_gating_func", 2): _DEEPSEEK._replace(usual={"expert_gating_func": 2})},
    ),
}

# Metadata, without the architecture, that set a field of `ModelConfig`; the family says by which
# key of config.json. Others have the name of that key.
_FIELDS = {
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.layer_norm_epsilon": "rms_norm_eps",
    "attention.clamp_kqv": "clip_qkv",
    "expert_count": "feed_forward.num_experts",
    "expert_used_count": "feed_forward.num_experts_per_tok",
    "expert_feed_forward_length": "feed_forward.moe_intermediate_size",
    "expert_shared_feed_forward_length": "feed_forward.shared_expert_intermediate_size",
    "expert_weights_norm": "feed_forward.norm_topk_prob",
    "expert_weights_scale": "feed_forward.routed_scaling_factor",
    "expert_group_count": "feed_forward.n_group",
    "expert_group_used_count": "feed_forward.topk_group",
    "leading_dense_block_count": "dense_layers",
}
_POSITIONS = {
    "context_length": "max_position_embeddings",
    "rope.scaling.original_context_length": LENGTH,
}
_SCALING = {
    "rope.scaling.factor": "factor",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
    "rope.scaling.yarn_log_multiplier": "mscale_all_dim",
}
_REQUIRED = ("context_length", "embedding_length", "block_count", "attention.head_count")
# Fields of families that have them, for which llama.cpp has no default.
_REQUIRED_FIELDS = ("rms_norm_eps", "feed_forward.num_experts", "feed_forward.num_experts_per_tok")
# Neither llama.cpp nor transformers reads them, but for llama.cpp's Grok.
_YARN_M = "rope.scaling.yarn_attn_factor"
_IGNORED = ("rope.scaling.finetuned", "rope.scaling.yarn_ext_factor", _YARN_M)
# Metadata that say what every family does; 1: softmax.
_USUAL = {
    **{"attention.causal": True, "expert_gating_func": 1},
    **{"rope.scaling.factor": 1.0, "rope.scaling.attn_factor": 1.0},
}
# Fields that say whether there are such tensors in a layer.
_PARTS = {
    "qkv_bias": ("attn_q.bias", "attn_qkv.bias", "attn_kv_a_mqa.bias"),
    "o_bias": ("attn_output.bias",),
    "mlp_bias": ("ffn_up.bias",),
    "qk_norm": ("attn_q_norm.weight",),
}
# Groups of DeepSeek's experts, and those that a token may choose, by the number of experts, of V3
# and R1, and of V2; others have one group. Files from before llama.cpp stored them are common.
_GROUPS = {256: (8, 4), 160: (8, 3)}
# llama3's other settings in every published model: (low_freq_factor, high_freq_factor, L); the last
# is Llama 4's
_LLAMA3 = ((1.0, 4.0, 8192), (1.0, 1.0, 8192))


def architecture_of(metadata: Mapping[str, Any], file: str) -> tuple[str, Architecture, Family]:
    """Return a file's architecture, by name and with its family.

    UserError: the file holds something else than a language model, or one of no family.
    """
    kind, name = metadata.get("general.type", "model"), metadata.get("general.architecture")
    if kind != "model":
        raise UserError(f"{file}: general.type: is {kind!r}, not a model; name the model's file")
    known = {key: own for key, own in ARCHITECTURES.items() if own.model_type in FAMILIES}
    if name not in known:
        raise UserError(
            f"{file}: general.architecture: {name!r} is not one of {', '.join(sorted(known))}"
        )
    own = known[name]
    for (key, value), variant in own.variants.items():
        found = metadata.get(f"{name}.{key}")
        if found == value or (found and value is True):
            own = variant
    return name, own, FAMILIES[own.model_type]


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
    name, own, family = architecture_of(metadata, file)
    given = {
        key.removeprefix(f"{name}."): value
        for key, value in metadata.items()
        if key.startswith(f"{name}.")
    }
    check_kinds(metadata, f"{name}.", file)
    for key in _REQUIRED:
        if not given.get(key):
            wrong = show_value(given[key]) if key in given else "missing"
            raise UserError(
                f"{file}: {name}.{key}: is {wrong}; it should be a whole number of at least 1"
            )
    by_field = {key.fields[0]: key.name for key in reversed(family.keys) if key.fields}
    config: dict[str, Any] = {"model_type": family.model_type, **own.config}
    names: dict[str, str | None] = {key.name: key.name for key in family.keys}
    names |= {key: by_field[f] for key, f in _FIELDS.items() if f in by_field} | _POSITIONS
    names |= own.names
    for key, theirs in names.items():
        if key in given:
            value = given.pop(key)
            if theirs is not None:
                config[theirs] = value
    needed = [by_field[field] for field in _REQUIRED_FIELDS if field in by_field]
    for theirs in (*needed, *own.names.values()):
        if theirs is not None and theirs not in config:
            choices = " or ".join(k for k in {**_FIELDS, **own.names} if names.get(k) == theirs)
            raise UserError(f"{file}: {name}: has no {choices}, which llama.cpp needs")
    config.setdefault(by_field["vocab_size"], rows)
    heads = config.get(by_field["num_attention_heads"])
    if "num_key_value_heads" in by_field:
        config.setdefault(by_field["num_key_value_heads"], heads)
    for field, endings in _PARTS.items():
        if field in by_field:
            found = any(f"blk.0.{ending}" in tensors for ending in endings)
            config.setdefault(by_field[field], found)
    for theirs, (tensor, with_it, without) in own.tensors.items():
        config[theirs] = with_it if tensor in tensors else without
    config["tie_word_embeddings"] = "output.weight" not in tensors
    width = config.get("head_dim") or config["hidden_size"] // heads
    if "qk_rope_head_dim" in config:
        width = config["qk_rope_head_dim"]
        config["qk_nope_head_dim"] = config["qk_head_dim"] - width
        if "n_group" not in config:
            groups = _GROUPS.get(config["n_routed_experts"], (1, 1))
            config["n_group"], config["topk_group"] = groups
    if any(key.name == "head_dim" and key.default is not None for key in family.keys):
        config["head_dim"] = width  # not the family's default
    if given.get("attention.value_length") == width:
        del given["attention.value_length"]
    if own.wide is not None:
        is_wide = config["num_hidden_layers"] == own.wide
        config["query_pre_attn_scalar"] = config["hidden_size"] // heads if is_wide else width
    # whatever transformers' default is; 0 is Phi-4's
    window = given.pop("attention.sliding_window", config.get("sliding_window"))
    config["sliding_window"] = window or None
    if isinstance(slides := given.get("attention.sliding_window_pattern"), list):
        del given["attention.sliding_window_pattern"]
        config["layer_types"] = [f"{'sliding' if own else 'full'}_attention" for own in slides]
    rope = config["rope_parameters"] = _rope(given, config, width, own, family.partial, factors)
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
    for key, usual in {**_USUAL, **own.usual}.items():
        if (value := given.pop(key, usual)) != usual:
            wrong = f"is {show_value(value)}; only {show_value(usual)} can be read"
            raise UserError(f"{file}: {name}.{key}: {wrong}")
    return config | {f"{name}.{key}": v for key, v in given.items() if key not in _IGNORED}


def _rope(
    given: dict[str, Any],
    config: dict[str, Any],
    width: int,
    own: Architecture,
    is_partial: bool,
    factors: Mapping[str, NDArray[Any]],
) -> dict[str, Any]:
    """Return the rope parameters; takes what it reads out of `given`.

    width: of a head. is_partial: whether the family may rotate a part of it. config: gets L, where
        LongRoPE needs it.
    """
    rope: dict[str, Any] = {"rope_theta": given.pop("rope.freq_base", 10000.0)}
    rotary = given.pop("rope.dimension_count", width)
    if width and (is_partial or rotary != width):
        share = rotary / width  # of which int(width · share) has to be `rotary`
        share = share if int(width * share) == rotary else math.nextafter(share, 1.0)
        rope["partial_rotary_factor"] = share
    factor = given["rope.scaling.factor"] = given.get("rope.scaling.factor") or 1.0  # as llama.cpp
    kind = given.get("rope.scaling.type", "linear" if factor != 1 else "none")
    attention = given.get("rope.scaling.attn_factor", 1.0)
    long, short = (factors.get(f"rope_factors_{x}.weight") for x in ("long", "short"))
    both = factors.get("rope_freqs.weight")
    if both is not None and (settings := _llama3(both, rope["rope_theta"], rotary)):
        return rope | settings | {"rope_type": "llama3"}
    if both is not None or long is not None:
        for key in ("rope.scaling.type", "rope.scaling.attn_factor"):
            given.pop(key, None)
        config.setdefault(LENGTH, config["max_position_embeddings"])
        for key, own_factors in (("short_factor", short), ("long_factor", long)):
            chosen = own_factors if both is None else both
            rope[key] = [float(str(x)) for x in chosen] if chosen is not None else None
        return rope | {"rope_type": "longrope", "attention_factor": attention}
    rope["rope_type"] = "default"
    if kind in ("none", "linear", "yarn"):
        given.pop("rope.scaling.type", None)
    if kind in ("linear", "yarn"):
        rope["rope_type"] = kind
        scaling = {**_SCALING, **own.scaling}
        rope |= {theirs: given.pop(key) for key, theirs in scaling.items() if key in given}
        rope |= own.rope if kind == "yarn" else {}
        if "mscale_all_dim" in rope:  # the other is not in the file; DeepSeek has both alike
            in_all = round(rope["mscale_all_dim"] / own.log_unit, 6)
            rope |= {"mscale": 1.0 if own.log_unit == 1 else in_all, "mscale_all_dim": in_all}
        elif kind == "yarn" and attention != 1:
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
    for low, high, length in _LLAMA3 if factor > 1 else ():
        settings = {"factor": factor, "low_freq_factor": low, "high_freq_factor": high}
        geometry = RotaryGeometry(rotary, base, length)
        scaled, _ = parse_scaling({"type": "llama3", **settings}).scaled(geometry)
        divisors = geometry.inv_freq() / scaled
        if divisors.shape == factors.shape and np.allclose(divisors, factors, rtol=1e-4):
            return settings | {LENGTH: length}
    return {}
