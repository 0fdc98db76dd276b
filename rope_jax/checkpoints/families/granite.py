"""Granite, and HyperCLOVA X, which has its multipliers."""

import functools
from typing import Any

from rope_jax.checkpoints.families.base import FULL, Family, Key, Windows, llama_rows
from rope_jax.checkpoints.families.parts import (
    ATTENTION_BIAS,
    EXPERTS,
    MLP_BIAS,
    both_norms,
    expert_keys,
    llama_keys,
    power_of,
)


def granite_keys(logit_power: int, attention: float | None) -> tuple[Key, ...]:
    """Return Granite's multipliers. attention: the default of that of attention's logits."""
    return (
        Key("embedding_multiplier", ("scale_embeddings",), 1.0, form=power_of(1)),
        Key("residual_multiplier", ("residual_multiplier",), 1.0, form=power_of(1)),
        Key("attention_multiplier", ("query_pre_attn_scalar",), attention, form=power_of(-2)),
        Key("logits_scaling", ("logit_multiplier",), 1.0, form=power_of(logit_power)),
    )


def _called_full_attention(config: dict[str, Any]) -> dict[str, Any]:
    """Granite 4: what is full_attention in later configs is attention in its own."""
    found = config.get("layer_types")
    if not isinstance(found, list):
        return config
    return config | {"layer_types": [FULL if kind == "attention" else kind for kind in found]}


_GRANITE = {
    "block_sparse_moe.router.layer": ["mlp.router"],
    "block_sparse_moe.input_linear": ["mlp.experts.gate_proj", "mlp.experts.up_proj"],
    "block_sparse_moe.output_linear": ["mlp.experts.down_proj"],
}


GRANITE = (
    Family(
        "granite",
        "GraniteForCausalLM",
        (*llama_keys(), ATTENTION_BIAS, MLP_BIAS, *granite_keys(-1, 1.0)),
    ),
    Family(
        "granitemoehybrid",
        "GraniteMoeHybridForCausalLM",
        (
            *llama_keys(without=("intermediate_size",)),
            Key("shared_intermediate_size", ("intermediate_size",), 1024),
            ATTENTION_BIAS,
            *granite_keys(-1, 1.0),
            Key("num_local_experts", (), values={0: ()}),
            Key("position_embedding_type", (), None, {"rope": ()}),
        ),
        rows=functools.partial(
            llama_rows,
            fused={
                "shared_mlp.input_linear": ("mlp.gate_proj", "mlp.up_proj"),
                "shared_mlp.output_linear": ("mlp.down_proj",),
            },
        ),
        windows=Windows(types=lambda _, count: [FULL] * count, exist=False),
        upgrade=_called_full_attention,
    ),
    Family(
        "granitemoe",
        "GraniteMoeForCausalLM",
        (
            *llama_keys(),
            ATTENTION_BIAS,
            *granite_keys(-1, 1.0),
            *expert_keys("num_local_experts", 8, 2),
        ),
        rows=functools.partial(llama_rows, fused=_GRANITE),
        fixed=EXPERTS,
    ),
    Family(
        "hyperclovax",
        "HyperCLOVAXForCausalLM",
        (
            *llama_keys(),
            ATTENTION_BIAS,
            MLP_BIAS,
            *granite_keys(1, None),
            Key("use_post_norm", ("norm_placement",), True, {True: "both"}),
        ),
        rows=functools.partial(llama_rows, fused=both_norms("post_norm1", "post_norm2")),
    ),
)
