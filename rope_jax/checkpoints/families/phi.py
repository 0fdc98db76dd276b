"""Phi."""

import functools

from rope_jax.checkpoints.families.base import Family, Key, Windows, llama_rows
from rope_jax.checkpoints.families.parts import BIASES, GATE_UP, layer_norm_keys, llama_keys

_PHI3_FUSED = GATE_UP | {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
}
_PHI = {
    "self_attn.dense": ["self_attn.o_proj"],
    "self_attn.q_layernorm": ["self_attn.q_norm"],
    "self_attn.k_layernorm": ["self_attn.k_norm"],
    "mlp.fc1": ["mlp.up_proj"],
    "mlp.fc2": ["mlp.down_proj"],
}


PHI = (
    Family(
        "phi3",
        "Phi3ForCausalLM",
        llama_keys(eps=1e-5),
        rows=functools.partial(llama_rows, fused=_PHI3_FUSED),
        windows=Windows(),
        # at the top level, where alone it counts, whatever is in rope_parameters
        defaults={"original_max_position_embeddings": 4096},
        rope_types=("default", "longrope"),
    ),
    Family(
        "phi",
        "PhiForCausalLM",
        (*layer_norm_keys("gelu_new"), Key("qk_layernorm", ("qk_norm",), False)),
        rows=functools.partial(llama_rows, fused=_PHI, final_norm="final_layernorm"),
        fixed=BIASES | {"norm_placement": "shared", "head_bias": True},
        defaults={"partial_rotary_factor": 0.5},
    ),
)
