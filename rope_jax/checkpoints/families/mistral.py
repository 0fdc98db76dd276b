"""Mistral and Mixtral."""

import functools

from rope_jax.checkpoints.families.base import Family, Windows, every_layer, llama_rows
from rope_jax.checkpoints.families.parts import EXPERTS, expert_keys, llama_keys

_MIXTRAL = {
    "block_sparse_moe.gate": ["mlp.router"],
    "block_sparse_moe.experts.{}.w1": ["mlp.experts.gate_proj"],
    "block_sparse_moe.experts.{}.w3": ["mlp.experts.up_proj"],
    "block_sparse_moe.experts.{}.w2": ["mlp.experts.down_proj"],
}


MISTRAL = (
    Family(
        "mistral",
        "MistralForCausalLM",
        llama_keys(kv_heads=8),
        windows=Windows(default=4096, types=every_layer),
        multimodal=("mistral3",),
    ),
    Family(
        "ministral",
        "MinistralForCausalLM",
        llama_keys(kv_heads=8),
        windows=Windows(default=4096, types=every_layer),
    ),
    Family(
        "ministral3",
        "Ministral3ForCausalLM",
        llama_keys(kv_heads=8, head_dim=128, eps=1e-5),
        windows=Windows(),
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
    Family(
        "mixtral",
        "MixtralForCausalLM",
        (*llama_keys(kv_heads=8, eps=1e-5), *expert_keys("num_local_experts", 8, 2)),
        rows=functools.partial(llama_rows, fused=_MIXTRAL),
        fixed=EXPERTS,
        windows=Windows(),
    ),
)
