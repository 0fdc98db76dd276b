"""Mistral and Mixtral."""

from rope_jax.checkpoints.families.base import (
    EXPERTS,
    Family,
    LocalWindows,
    every_layer,
    expert_keys,
    llama_keys,
)

MISTRAL = (
    Family(
        "mistral",
        "MistralForCausalLM",
        llama_keys(kv_heads=8),
        windows=LocalWindows(default=4096, is_local=every_layer),
        multimodal=("mistral3",),
    ),
    Family(
        "ministral",
        "MinistralForCausalLM",
        llama_keys(kv_heads=8),
        windows=LocalWindows(default=4096, is_local=every_layer),
    ),
    Family(
        "ministral3",
        "Ministral3ForCausalLM",
        llama_keys(kv_heads=8, head_dim=128, eps=1e-5),
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
    Family(
        "mixtral",
        "MixtralForCausalLM",
        (*llama_keys(kv_heads=8, eps=1e-5), *expert_keys("num_local_experts", 8, 2)),
        fused={
            "block_sparse_moe.gate": ["mlp.router"],
            "block_sparse_moe.experts.{}.w1": ["mlp.experts.gate_proj"],
            "block_sparse_moe.experts.{}.w3": ["mlp.experts.up_proj"],
            "block_sparse_moe.experts.{}.w2": ["mlp.experts.down_proj"],
        },
        fixed=EXPERTS,
        windows=LocalWindows(),
    ),
)
