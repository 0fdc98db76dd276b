"""Qwen."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rope_jax.checkpoints.families.base import (
    EXPERTS,
    ROUTED,
    Family,
    Form,
    Key,
    LocalWindows,
    block_keys,
    dense_layers,
    expert_keys,
    experts_in_one,
    llama_keys,
    mlp_modules,
    numbers_of,
)


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
    step, count = config.get("decoder_sparse_step", 1), config.get("num_hidden_layers", 0)
    listed = [*(config.get("mlp_only_layers") or [])]
    listed += [layer for layer in range(count) if (layer + 1) % step and layer not in listed]
    return config | {"mlp_only_layers": sorted(listed), "decoder_sparse_step": 1}


def _expert_keys(experts: int, chosen: int, width: int) -> tuple[Key, ...]:
    return (
        *expert_keys("num_experts", experts, chosen),
        Key("moe_intermediate_size", ("feed_forward.moe_intermediate_size",), width),
        Key("norm_topk_prob", ("feed_forward.norm_topk_prob",), False),
        Key(
            "mlp_only_layers",
            ("dense_layers",),
            (),
            form=Form(lambda layers, _: dense_layers(layers), lambda dense, _: numbers_of(dense)),
        ),
        Key("decoder_sparse_step", (), 1, {1: ()}),
    )


QWEN_EXPERTS = {
    **ROUTED,
    **mlp_modules("mlp.shared_expert", "mlp.shared_expert"),
    "mlp.shared_expert_gate": ["mlp.shared_expert_gate"],
}
QWEN = (
    Family(
        "qwen3",
        "Qwen3ForCausalLM",
        llama_keys(kv_heads=32, head_dim=128, attention_bias=False),
        fixed={"qk_norm": True},
        windows=LocalWindows(default=4096, is_local=upper_layers, switch=True),
    ),
    Family(
        "qwen2",
        "Qwen2ForCausalLM",
        llama_keys(kv_heads=32),
        fixed={"qkv_bias": True},
        windows=LocalWindows(default=4096, is_local=upper_layers, switch=True),
    ),
    Family(
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        (*llama_keys(heads=32, kv_heads=4, attention_bias=False), *_expert_keys(128, 8, 768)),
        fused=QWEN_EXPERTS,
        fixed=EXPERTS | {"qk_norm": True},
        windows=LocalWindows(default=4096, switch=True),
        upgrade=_dense,
    ),
    Family(
        "qwen2_moe",
        "Qwen2MoeForCausalLM",
        (
            *llama_keys(heads=16, kv_heads=16),
            *_expert_keys(60, 4, 1408),
            *block_keys("feed_forward", shared_expert_intermediate_size=5632),
            Key("qkv_bias", ("qkv_bias",), True),
        ),
        fused=QWEN_EXPERTS,
        fixed=EXPERTS | {"feed_forward.shared_expert_gate": True},
        windows=LocalWindows(default=4096, is_local=_lower_layers, switch=True),
        upgrade=_dense,
    ),
)
_QWEN3, _QWEN2, _QWEN3_MOE, _ = QWEN
_QWEN2_VL = replace(
    _QWEN2,
    keys=llama_keys(kv_heads=8, eps=1e-5),
    defaults={"rope_theta": 1_000_000.0},
    multimodal=("qwen2_vl", "qwen2_5_vl"),
)
READ_AS = {
    **dict.fromkeys(("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"), _QWEN2_VL),
    "qwen3_vl_text": replace(_QWEN3, defaults={"rope_theta": 500_000.0}, multimodal=("qwen3_vl",)),
    "qwen3_vl_moe_text": replace(
        _QWEN3_MOE,
        keys=(
            *llama_keys(heads=16, kv_heads=16, head_dim=128, attention_bias=False),
            *(key for key in _expert_keys(60, 4, 1408) if key.name != "norm_topk_prob"),
            Key("norm_topk_prob", ("feed_forward.norm_topk_prob",), True, {True: True}),
        ),
        fused={"mlp.gate": ["mlp.router"]},
        more_rows=experts_in_one("mlp"),
        defaults={"rope_theta": 500_000.0},
        multimodal=("qwen3_vl_moe",),
    ),
}
"""The text parts of models that read images, too, where positions are in three dimensions."""
