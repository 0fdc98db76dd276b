"""GLM."""

from rope_jax.checkpoints.families.base import (
    GATE_UP,
    Family,
    Key,
    block_keys,
    both_norms,
    llama_keys,
)
from rope_jax.checkpoints.families.deepseek import (
    CHOICE_BIAS,
    CHOSEN_IN_GROUPS,
    DEEPSEEK_EXPERTS,
    deepseek_keys,
    published_names,
)

_KEYS = (
    *llama_keys(kv_heads=2, head_dim=128, eps=1.5625e-7),
    Key("attention_bias", ("qkv_bias",), True),
)
GLM = (
    Family(
        "glm",
        "GlmForCausalLM",
        _KEYS,
        fused=GATE_UP,
        defaults={"partial_rotary_factor": 0.5},
        layout="interleaved",
    ),
    Family(
        "glm4",
        "Glm4ForCausalLM",
        _KEYS,
        fused=GATE_UP | both_norms("post_self_attn_layernorm", "post_mlp_layernorm"),
        fixed={"norm_placement": "both"},
        defaults={"partial_rotary_factor": 0.5},
        layout="interleaved",
    ),
    Family(
        "glm4_moe",
        "Glm4MoeForCausalLM",
        (
            *llama_keys(heads=96, kv_heads=8, eps=1e-5),
            Key("attention_bias", ("qkv_bias",), False),
            Key("use_qk_norm", ("qk_norm",), False),
            *deepseek_keys(dense=1, experts=128, chosen=8, width=1408, shared=1, groups=1),
            *block_keys("feed_forward", routed_scaling_factor=1.0, norm_topk_prob=True),
        ),
        fused=DEEPSEEK_EXPERTS,
        more_rows=(CHOICE_BIAS,),
        fixed=CHOSEN_IN_GROUPS,
        defaults={"partial_rotary_factor": 0.5},
        upgrade=published_names,
    ),
)
