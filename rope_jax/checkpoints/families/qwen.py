"""Qwen."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rope_jax.blocks import GatedDeltaNet
from rope_jax.checkpoints.families.base import (
    EXPERTS,
    FULL,
    ROUTED,
    THEIRS,
    Family,
    Form,
    Key,
    LocalWindows,
    dense_layers,
    expert_keys,
    experts_in_one,
    keys_of,
    llama_keys,
    llama_rows,
    mlp_modules,
    numbers_of,
    with_defaults,
)
from rope_jax.checkpoints.tensors import Row
from rope_jax.config.model import ModelConfig
from rope_jax.rope.hf.read import positive_int


def upper_layers(config: Mapping[str, Any], count: int, first: int = 28) -> list[bool]:
    """Qwen: the layers from max_window_layers on slide. first: its default."""
    first = config.get("max_window_layers", first)
    return [layer >= first for layer in range(count)]


def _lower_layers(config: Mapping[str, Any], count: int) -> list[bool]:
    """Qwen2-MoE: every second one of the first max_window_layers slides."""
    last = config.get("max_window_layers", 28)
    return [layer % 2 == 0 and layer < last for layer in range(count)]


def _dense(config: dict[str, Any]) -> dict[str, Any]:
    """List the layers without experts; where others have them, only every few do."""
    config = {"decoder_sparse_step": 1} | config
    step, count = (positive_int(config, k) for k in ("decoder_sparse_step", "num_hidden_layers"))
    listed = [*(config.get("mlp_only_layers") or [])]
    listed += [layer for layer in range(count) if (layer + 1) % step and layer not in listed]
    return config | {"mlp_only_layers": sorted(listed), "decoder_sparse_step": 1}


_LISTED = Form(lambda layers, _: dense_layers(layers), lambda dense, _: numbers_of(dense))


_EXPERT_KEYS = (
    *expert_keys("num_experts"),
    *keys_of("moe_intermediate_size", "norm_topk_prob", block="feed_forward"),
    Key("mlp_only_layers", ("dense_layers",), (), form=_LISTED),
    Key("decoder_sparse_step", (), 1, {1: ()}),
)
_SHARED = keys_of("shared_expert_intermediate_size", block="feed_forward")
QWEN_EXPERTS = {
    **ROUTED,
    **mlp_modules("mlp.shared_expert", "mlp.shared_expert"),
    "mlp.shared_expert_gate": ["mlp.shared_expert_gate"],
}
QWEN = (
    Family(
        "qwen3",
        llama_keys("attention_bias"),
        fixed={"qk_norm": True},
        windows=LocalWindows(is_local=upper_layers, switch=True),
    ),
    Family(
        "qwen2",
        llama_keys(),
        fixed={"qkv_bias": True},
        windows=LocalWindows(is_local=upper_layers, switch=True),
    ),
    Family(
        "qwen3_moe",
        (*llama_keys("attention_bias", heads=THEIRS), *_EXPERT_KEYS),
        fused=QWEN_EXPERTS,
        fixed=EXPERTS | {"qk_norm": True},
        windows=LocalWindows(switch=True),
        upgrade=_dense,
    ),
    Family(
        "qwen2_moe",
        (*llama_keys(heads=THEIRS), *_EXPERT_KEYS, *_SHARED, Key("qkv_bias", ("qkv_bias",), True)),
        fused=QWEN_EXPERTS,
        fixed=EXPERTS | {"feed_forward.shared_expert_gate": True},
        windows=LocalWindows(is_local=_lower_layers, switch=True),
        upgrade=_dense,
    ),
)


def _mixers(types: list[str] | None, config: Mapping[str, Any]) -> list[bool]:
    """Return which layers have a gated delta net. ValueError: another type."""
    config = {"full_attention_interval": 4} | dict(config)
    count, every = config["num_hidden_layers"], positive_int(config, "full_attention_interval")
    if types is None:
        return [(layer + 1) % every != 0 for layer in range(count)]
    if len(types) != count or {*types} - {_DELTA_NET, FULL}:
        raise ValueError(f"should be a list of {count} types, {_DELTA_NET} or {FULL}")
    return [kind == _DELTA_NET for kind in types]


def _types(alternates: Sequence[bool], model: Mapping[str, Any]) -> list[str]:
    if "alternate_mixer.type" not in model:
        alternates = [False]
    layers = range(model["num_hidden_layers"])
    return [_DELTA_NET if alternates[n % len(alternates)] else FULL for n in layers]


_HYBRID_KEYS = (
    *llama_keys(heads=THEIRS),
    Key("attention_bias", (), False, {False: ()}),
    Key("attn_output_gate", (), True, {True: ()}),
    Key("layer_types", ("alternate_layers",), None, form=Form(_mixers, _types)),
    *keys_of("linear_num_key_heads", "linear_num_value_heads", block="alternate_mixer"),
    *keys_of("linear_key_head_dim", "linear_value_head_dim", block="alternate_mixer"),
    *keys_of("linear_conv_kernel_dim", block="alternate_mixer"),
)


def _hybrid_rows(model: ModelConfig, parts: Sequence[str]) -> tuple[Row, ...]:
    """Return the rows of a model with gated delta nets.

    parts: the projections in each tensor before the memory, two and four of them by key head.
    """
    mixer = model.alternate_mixer
    key_heads = mixer.linear_num_key_heads if isinstance(mixer, GatedDeltaNet.Config) else 1
    held = {f"in_proj_{part}.weight": [f"in_{x}/kernel" for x in part] for part in parts}
    held |= {"conv1d.weight": [f"conv_{x}/kernel" for x in "qkv"]}
    held |= {"norm.weight": ["norm/scale"], "out_proj.weight": ["out_proj/kernel"]}
    held |= {name: [name] for name in ("A_log", "dt_bias")}
    gated = {"self_attn.q_proj": ["self_attn.q_proj", "self_attn.gate_proj"]}
    rows = [*llama_rows(QWEN_EXPERTS | gated, groups=model.num_attention_heads)]
    for name, ours in held.items():
        groups = key_heads if len(ours) in (2, 4) else 1
        paths = tuple(f"layers/self_attn/{own}" for own in ours)
        name = f"model.layers.{{}}.linear_attn.{name}"
        rows.append(Row(name, paths, groups, convolves="conv1d" in name))
    return tuple(rows)


_DELTA_NET = "linear_attention"
_hybrid = functools.partial(Family, defaults={"partial_rotary_factor": 0.25})
_DENSE = {
    "alternate_mixer.type": "gated_delta_net",
    **{"self_attention.type": "grouped_query", "self_attention.output_gate": True},
    **{"norm": "rms_norm_plus_one", "qk_norm": True},
}
_SPARSE = _DENSE | EXPERTS | {"feed_forward.shared_expert_gate": True}
_SEPARATE = functools.partial(_hybrid_rows, parts=("qkv", "z", "b", "a"))
QWEN_HYBRIDS = (
    _hybrid(
        "qwen3_next",
        (*_HYBRID_KEYS, *_EXPERT_KEYS, *_SHARED),
        other_rows=functools.partial(_hybrid_rows, parts=("qkvz", "ba")),
        fixed=_SPARSE,
        upgrade=_dense,
    ),
    _hybrid("qwen3_5_text", _HYBRID_KEYS, other_rows=_SEPARATE,
            fixed=_DENSE, multimodal=("qwen3_5",)),
    _hybrid(
        "qwen3_5_moe_text",
        (
            *(key for key in _HYBRID_KEYS if key.name != "intermediate_size"),
            *expert_keys("num_experts"),
            *keys_of("moe_intermediate_size", block="feed_forward"),
            *_SHARED,
        ),
        other_rows=_SEPARATE,
        fixed=_SPARSE,
        multimodal=("qwen3_5_moe",),
    ),
)  # fmt: skip
_QWEN3, _QWEN2, _QWEN3_MOE, _ = QWEN
_QWEN2_VL = replace(
    _QWEN2,
    keys=with_defaults(llama_keys(), num_key_value_heads=8, rms_norm_eps=1e-5),
    defaults={"rope_theta": 1_000_000.0},
    multimodal=("qwen2_vl", "qwen2_5_vl"),
)
READ_AS = {
    **dict.fromkeys(("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"), _QWEN2_VL),
    "qwen3_vl_text": replace(_QWEN3, defaults={"rope_theta": 500_000.0}, multimodal=("qwen3_vl",)),
    "qwen3_vl_moe_text": replace(
        _QWEN3_MOE,
        keys=(
            *with_defaults(
                llama_keys("attention_bias"),
                **{"num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 128},
            ),
            *with_defaults(
                [key for key in _EXPERT_KEYS if key.name != "norm_topk_prob"],
                **{"num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408},
            ),
            Key("norm_topk_prob", ("feed_forward.norm_topk_prob",), True, {True: True}),
        ),
        fused={"mlp.gate": ["mlp.router"]},
        more_rows=experts_in_one("mlp"),
        defaults={"rope_theta": 500_000.0},
        multimodal=("qwen3_vl_moe",),
    ),
}
"""The text parts of models that read images, too, where positions are in three dimensions."""
