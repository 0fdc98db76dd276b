"""Mistral and Mixtral, and MiniMax, which has its tensors."""

from dataclasses import replace
from typing import Any

from rope_jax.checkpoints.families.base import (
    EXPERTS,
    FUSED,
    Family,
    LocalWindows,
    every_layer,
    expert_keys,
    like,
    llama_keys,
)
from rope_jax.checkpoints.families.deepseek import CHOSEN_WITH_BIAS, choice_bias


def _rotary_share(config: dict[str, Any]) -> dict[str, Any]:
    """MiniMax M2: rotary_dim of a head are rotated, unless a share of it is given."""
    if not config.get("rotary_dim"):
        return config
    return {"partial_rotary_factor": config["rotary_dim"] / config.get("head_dim", 128)} | config


_MISTRAL = Family(
    "mistral", llama_keys(), windows=LocalWindows(is_local=every_layer), multimodal=("mistral3",)
)
_MIXTRAL = Family(
    "mixtral",
    (*llama_keys(), *expert_keys("num_local_experts")),
    fused=FUSED["mixtral"],
    fixed=EXPERTS,
    windows=LocalWindows(),
)
MISTRAL = (
    _MISTRAL,
    replace(_MISTRAL, model_type="ministral", multimodal=()),
    Family(
        "ministral3",
        llama_keys(),
        windows=LocalWindows(),
        defaults={
            "rope_scaling": {
                **{"rope_type": "yarn", "rope_theta": 1_000_000.0, "factor": 16.0},
                **{"original_max_position_embeddings": 16_384, "llama_4_scaling_beta": 0.1},
                **{"mscale": 1.0, "mscale_all_dim": 1.0},
            }
        },
        rope_types=("yarn",),
        multimodal=("mistral3",),
    ),
    _MIXTRAL,
    like(
        _MIXTRAL,
        "minimax_m2",
        more_rows=(choice_bias("block_sparse_moe.e_score_correction_bias"),),
        fixed=CHOSEN_WITH_BIAS | {"qk_norm": "all_heads"},
        windows=LocalWindows(exist=False),
        upgrade=_rotary_share,
    ),
)
