"""Qwen."""

import functools
from collections.abc import Mapping
from typing import Any

from rope_jax.checkpoints.families.base import FULL, SLIDING, Family, Key, Windows, llama_rows
from rope_jax.checkpoints.families.parts import (
    ATTENTION_BIAS,
    EXPERTS,
    FIRST_LAYERS,
    MLP,
    NORMALIZED,
    ROUTED,
    expert_keys,
    llama_keys,
    renamed,
)


def upper_layers(config: Mapping[str, Any], count: int, first: int = 28) -> list[str]:
    """Qwen: the layers from max_window_layers on slide. first: its default."""
    first = config.get("max_window_layers", first)
    return [SLIDING if layer >= first else FULL for layer in range(count)]


def _lower_layers(config: Mapping[str, Any], count: int) -> list[str]:
    """Qwen2-MoE: every second one of the first max_window_layers slides."""
    last = config.get("max_window_layers", 28)
    return [FULL if layer % 2 or layer >= last else SLIDING for layer in range(count)]


def _qwen_keys(experts: int, chosen: int, width: int) -> tuple[Key, ...]:
    return (
        *expert_keys("num_experts", experts, chosen),
        Key("moe_intermediate_size", ("feed_forward.moe_intermediate_size",), width),
        NORMALIZED,
        Key("mlp_only_layers", ("dense_layers",), None, form=FIRST_LAYERS),
        Key("decoder_sparse_step", (), 1, {1: ()}),
    )


QWEN_EXPERTS = {
    **ROUTED,
    **{f"mlp.shared_expert.{part}": [f"mlp.shared_expert.{part}"] for part in MLP},
    "mlp.shared_expert_gate": ["mlp.shared_expert_gate"],
}


QWEN = (
    Family(
        "qwen3",
        "Qwen3ForCausalLM",
        (*llama_keys(kv_heads=32, head_dim=128), ATTENTION_BIAS),
        fixed={"qk_norm": True},
        windows=Windows(default=4096, types=upper_layers, switch=True),
    ),
    Family(
        "qwen2",
        "Qwen2ForCausalLM",
        llama_keys(kv_heads=32),
        fixed={"qkv_bias": True},
        windows=Windows(default=4096, types=upper_layers, switch=True),
    ),
    Family(
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        (*llama_keys(heads=32, kv_heads=4), ATTENTION_BIAS, *_qwen_keys(128, 8, 768)),
        rows=functools.partial(llama_rows, fused=QWEN_EXPERTS),
        fixed=EXPERTS | {"qk_norm": True},
        windows=Windows(default=4096, switch=True),
        upgrade=renamed(num_local_experts="num_experts"),
    ),
    Family(
        "qwen2_moe",
        "Qwen2MoeForCausalLM",
        (
            *llama_keys(heads=16, kv_heads=16),
            *_qwen_keys(60, 4, 1408),
            Key(
                "shared_expert_intermediate_size",
                ("feed_forward.shared_expert_intermediate_size",),
                5632,
            ),
            Key("qkv_bias", ("qkv_bias",), True),
        ),
        rows=functools.partial(llama_rows, fused=QWEN_EXPERTS),
        fixed=EXPERTS | {"feed_forward.shared_expert_gate": True},
        windows=Windows(default=4096, types=_lower_layers, switch=True),
    ),
)
