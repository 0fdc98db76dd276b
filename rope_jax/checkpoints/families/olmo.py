"""OLMo."""

import functools

from rope_jax.checkpoints.families.base import Family, Key, Windows, llama_rows
from rope_jax.checkpoints.families.parts import (
    ATTENTION_BIAS,
    EXPERTS,
    NORMALIZED,
    every,
    expert_keys,
    llama_keys,
    renamed,
)
from rope_jax.checkpoints.families.qwen import QWEN_EXPERTS

OLMO = (
    Family(
        "olmo2",
        "Olmo2ForCausalLM",
        (*llama_keys(eps=1e-5), ATTENTION_BIAS),
        fixed={"norm_placement": "after", "qk_norm": "all_heads"},
    ),
    Family(
        "olmo3",
        "Olmo3ForCausalLM",
        (*llama_keys(eps=1e-5), ATTENTION_BIAS),
        fixed={"norm_placement": "after", "qk_norm": "all_heads"},
        windows=Windows(default=4096, types=every(4)),
        local=True,
    ),
    Family(
        "olmo",
        "OlmoForCausalLM",
        (
            *llama_keys(without=("rms_norm_eps",)),  # it is 1e-5
            ATTENTION_BIAS,
            Key("clip_qkv", ("clip_qkv",), None),
        ),
        fixed={"norm": "layer_norm_plain"},
    ),
    Family(
        "olmoe",
        "OlmoeForCausalLM",
        (
            *llama_keys(eps=1e-5, without=("head_dim",)),
            ATTENTION_BIAS,
            Key("clip_qkv", ("clip_qkv",), None),
            *expert_keys("num_experts", 64, 8),
            NORMALIZED,
        ),
        rows=functools.partial(llama_rows, fused=QWEN_EXPERTS),
        fixed=EXPERTS | {"qk_norm": "all_heads"},
        upgrade=renamed(num_local_experts="num_experts"),
    ),
)
