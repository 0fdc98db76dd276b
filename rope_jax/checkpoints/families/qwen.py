"""Qwen."""

from collections.abc import Mapping
from typing import Any

from rope_jax.checkpoints.families.base import (
    EXPERTS,
    ROUTED,
    Family,
    Form,
    Key,
    LocalWindows,
    block_keys,
    expert_keys,
    llama_keys,
    mlp_modules,
)


def upper_layers(config: Mapping[str, Any], count: int, first: int = 28) -> list[bool]:
    """Qwen: the layers from max_window_layers on slide. first: its default."""
    first = config.get("max_window_layers", first)
    return [layer >= first for layer in range(count)]


def _lower_layers(config: Mapping[str, Any], count: int) -> list[bool]:
    """Qwen2-MoE: every second one of the first max_window_layers slides."""
    last = config.get("max_window_layers", 28)
    return [layer % 2 == 0 and layer < last for layer in range(count)]


def _count(numbers: object) -> int:
    """Return how many layers are listed. ValueError: they are not the first ones."""
    numbers = [] if numbers is None else numbers
    if not isinstance(numbers, list) or numbers != [*range(len(numbers))]:
        raise ValueError(f"{numbers!r} are not the first layers")
    return len(numbers)


def _expert_keys(experts: int, chosen: int, width: int) -> tuple[Key, ...]:
    return (
        *expert_keys("num_experts", experts, chosen),
        Key("moe_intermediate_size", ("feed_forward.moe_intermediate_size",), width),
        Key("norm_topk_prob", ("feed_forward.norm_topk_prob",), False),
        Key("mlp_only_layers", ("dense_layers",), None, form=Form(_count, lambda n: [*range(n)])),
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
    ),
)
