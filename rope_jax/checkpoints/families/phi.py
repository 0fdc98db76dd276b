"""Phi."""

from rope_jax.checkpoints.families.base import (
    ALL_BIASES,
    GATE_UP,
    Family,
    Key,
    LocalWindows,
    llama_keys,
)

PHI = (
    Family(
        "phi3",
        llama_keys(),
        fused=GATE_UP | {"self_attn.qkv_proj": [f"self_attn.{x}_proj" for x in "qkv"]},
        windows=LocalWindows(),
        # at the top level, where alone it counts, whatever is in rope_parameters
        defaults={"original_max_position_embeddings": 4096},
        rope_types=("default", "longrope"),
    ),
    Family(
        "phi",
        (*llama_keys(norm_eps="layer_norm_eps"), Key("qk_layernorm", ("qk_norm",), False)),
        fused={
            "self_attn.dense": ["self_attn.o_proj"],
            "self_attn.q_layernorm": ["self_attn.q_norm"],
            "self_attn.k_layernorm": ["self_attn.k_norm"],
            "mlp.fc1": ["mlp.up_proj"],
            "mlp.fc2": ["mlp.down_proj"],
        },
        outside={"norm": "model.final_layernorm"},
        fixed=ALL_BIASES | {"norm_placement": "shared", "head_bias": True},
        defaults={"partial_rotary_factor": 0.5},
    ),
)
