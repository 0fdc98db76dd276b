"""OLMo."""

from rope_jax.checkpoints.families.base import (
    EXPERTS,
    Family,
    Key,
    LocalWindows,
    every,
    expert_keys,
    llama_keys,
)
from rope_jax.checkpoints.families.qwen import QWEN_EXPERTS

OLMO = (
    Family(
        "olmo2",
        llama_keys("attention_bias"),
        fixed={"norm_placement": "after", "qk_norm": "all_heads"},
    ),
    Family(
        "olmo3",
        llama_keys("attention_bias"),
        fixed={"norm_placement": "after", "qk_norm": "all_heads"},
        windows=LocalWindows(is_local=every(4)),
        local=True,
    ),
    Family(
        "olmo",
        (
            *llama_keys("attention_bias", without=("rms_norm_eps",)),  # it is 1e-5
            Key("clip_qkv", ("clip_qkv",), None),
        ),
        fixed={"norm": "layer_norm_plain"},
    ),
    Family(
        "olmoe",
        (
            *llama_keys("attention_bias", without=("head_dim",)),
            Key("clip_qkv", ("clip_qkv",), None),
            *expert_keys("num_experts"),
            Key("norm_topk_prob", ("feed_forward.norm_topk_prob",), False),
        ),
        fused=QWEN_EXPERTS,
        fixed=EXPERTS | {"qk_norm": "all_heads"},
    ),
)
