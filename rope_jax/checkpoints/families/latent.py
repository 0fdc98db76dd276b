"""The families with latent attention."""

import functools
from typing import Any

from rope_jax.checkpoints.families.base import ANY, REQUIRED, Family, Key, llama_keys
from rope_jax.checkpoints.families.experts import (
    CHOSEN_IN_GROUPS,
    NOT_COMPUTED,
    block_keys,
    deepseek_keys,
    deepseek_rows,
    n_routed_experts,
)

_ATTENTION = {
    **{
        f"self_attn.{name}": [f"self_attn.{name}"]
        for name in ("q_a_proj", "q_a_layernorm", "q_b_proj", "kv_a_layernorm", "kv_b_proj")
    },
    "self_attn.kv_a_proj_with_mqa": ["self_attn.kv_a_proj"],
}


def _keys(**of_experts: Any) -> tuple[Key, ...]:
    """Return the keys that both families have."""
    return (
        *llama_keys(without=("head_dim",)),
        Key("attention_bias", ("qkv_bias", "o_bias"), False),
        *block_keys(
            "self_attention",
            q_lora_rank=1536,
            kv_lora_rank=512,
            qk_nope_head_dim=128,
            qk_rope_head_dim=64,
            v_head_dim=128,
        ),
        Key("moe_layer_freq", (), 1, {1: ()}),
        *deepseek_keys(**of_experts),
    )


_ROWS = functools.partial(deepseek_rows, others=_ATTENTION)
_IGNORED = NOT_COMPUTED | {"qk_head_dim", "ep_size"}  # it follows from its parts; devices
_FIXED = {"feed_forward.type": "experts", "self_attention.type": "latent"}

LATENT = (
    Family(
        "deepseek_v2",
        "DeepseekV2ForCausalLM",
        (
            *_keys(dense=0, experts=64, chosen=REQUIRED, width=1407, shared=2, groups=None),
            Key("mlp_bias", ("mlp_bias",), False),
            *block_keys("feed_forward", routed_scaling_factor=1.0),
            # transformers' code never divides by their sum
            Key("norm_topk_prob", ("feed_forward.norm_topk_prob",), False, {False: False}),
            Key("scoring_func", ("feed_forward.scores",), "softmax", {"softmax": "softmax"}),
            Key("topk_method", ("feed_forward.n_group", "feed_forward.topk_group"), "greedy",
                {"greedy": (1, 1), "group_limited_greedy": (ANY, ANY)}),
        ),
        rows=_ROWS,
        fixed=_FIXED,
        ignored=_IGNORED,
        layout="interleaved",
        modern=n_routed_experts,
    ),
    Family(
        "deepseek_v3",
        "DeepseekV3ForCausalLM",
        (
            *_keys(dense=3, experts=256, chosen=8, width=2048, shared=1, groups=8),
            *block_keys("feed_forward", routed_scaling_factor=2.5, norm_topk_prob=True),
            Key("scoring_func", ("feed_forward.scores",), "sigmoid", {"sigmoid": "sigmoid"}),
            Key("topk_method", (), "noaux_tc", {"noaux_tc": ()}),
            Key("rope_interleave", (), True, {True: ()}),
        ),
        rows=_ROWS,
        fixed=_FIXED | CHOSEN_IN_GROUPS,
        ignored=_IGNORED,
        layout="interleaved",
        modern=n_routed_experts,
        multimodal=("kimi_k2",),
    ),
)  # fmt: skip
