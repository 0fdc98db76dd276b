"""DeepSeek: latent attention, and experts that are chosen in groups; GLM, which has them too."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rope_jax.checkpoints.families.base import (
    ANY,
    EXPERTS,
    GATE_UP,
    REQUIRED,
    ROUTED,
    Family,
    Form,
    Key,
    LocalWindows,
    block_keys,
    both_norms,
    dense_layers,
    like,
    llama_keys,
    mlp_modules,
    numbers_of,
    with_defaults,
)
from rope_jax.checkpoints.families.qwen import upper_layers
from rope_jax.checkpoints.tensors import Row


def _expert_keys(
    dense: int,
    experts: int | object,
    chosen: int | object,
    width: int,
    shared: int | object,
    groups: int | None,
) -> tuple[Key, ...]:
    """Return the keys about experts in DeepSeek's names. dense: first layers without experts."""
    of_experts = Key("moe_intermediate_size", ("feed_forward.moe_intermediate_size",), width)
    one = Form(lambda value, _: 1 if value is None else value, lambda value, _: value)
    return (
        Key("first_k_dense_replace", ("dense_layers",), dense),
        Key("n_routed_experts", ("feed_forward.num_experts",), experts),
        Key("num_experts_per_tok", ("feed_forward.num_experts_per_tok",), chosen),
        of_experts,
        Key("n_shared_experts", ("feed_forward.shared_expert_intermediate_size",), shared,
            times=of_experts),
        Key("n_group", ("feed_forward.n_group",), groups, form=one),
        Key("topk_group", ("feed_forward.topk_group",), groups and -(-groups // 2), form=one),
    )  # fmt: skip


_LATENT_KEYS = (
    *llama_keys(attention_bias=False, without=("head_dim",)),
    *block_keys("self_attention", q_lora_rank=1536, kv_lora_rank=512),
    *block_keys("self_attention", qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128),
)
_EVERY_LAYER = Key("moe_layer_freq", (), 1, {1: ()})


def _dense(types: list[str] | None, config: Mapping[str, Any]) -> object:
    if types is None:
        return config.get("first_k_dense_replace", 1)
    return dense_layers([layer for layer, kind in enumerate(types) if kind == "dense"])


def _types(dense: int | Sequence[int], model: Mapping[str, Any]) -> list[str]:
    of_layers, numbers = range(model["num_hidden_layers"]), numbers_of(dense)
    return ["dense" if layer in numbers else "sparse" for layer in of_layers]


LAYER_TYPES = Key("mlp_layer_types", ("dense_layers",), None, form=Form(_dense, _types))
"""The layers without experts, in place of their number."""
_INTERLEAVED = Key("rope_interleave", (), True, {True: ()})
SHARED_EXPERTS = ROUTED | mlp_modules("mlp.shared_experts", "mlp.shared_expert")


def choice_bias(theirs: str = "mlp.gate.e_score_correction_bias") -> Row:
    """Return the row of the biases by which experts are chosen."""
    return Row(f"model.layers.{{}}.{theirs}", ("layers/mlp/router/choice_bias",))


CHOSEN_WITH_BIAS = {
    **EXPERTS,
    "feed_forward.scores": "sigmoid",
    "feed_forward.choice_bias": True,
}
CHOSEN_IN_GROUPS = CHOSEN_WITH_BIAS | {"feed_forward.group_score": "best_two"}
NUM_EXPERTS = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}
"""Names of keys in other families."""
_LATENT = {
    **{
        f"self_attn.{name}": [f"self_attn.{name}"]
        for name in ("q_a_proj", "q_a_layernorm", "q_b_proj", "kv_a_layernorm", "kv_b_proj")
    },
    "self_attn.kv_a_proj_with_mqa": ["self_attn.kv_a_proj"],
}
_V3 = Family(
    "deepseek_v3",
    "DeepseekV3ForCausalLM",
    (
        *_LATENT_KEYS,
        _EVERY_LAYER,
        *_expert_keys(dense=3, experts=256, chosen=8, width=2048, shared=1, groups=8),
        *block_keys("feed_forward", routed_scaling_factor=2.5, norm_topk_prob=True),
        Key("scoring_func", ("feed_forward.scores",), "sigmoid", {"sigmoid": "sigmoid"}),
        Key("topk_method", (), "noaux_tc", {"noaux_tc": ()}),
        _INTERLEAVED,
    ),
    fused=SHARED_EXPERTS | _LATENT,
    more_rows=(choice_bias(),),
    fixed=CHOSEN_IN_GROUPS | {"self_attention.type": "latent"},
    layout="interleaved",
    multimodal=("kimi_k25",),
)
DOTS1 = Family(
    "dots1",
    "Dots1ForCausalLM",
    (
        *llama_keys(heads=32, kv_heads=32, attention_bias=False),
        *_expert_keys(0, REQUIRED, REQUIRED, width=1408, shared=REQUIRED, groups=1),
        *block_keys("feed_forward", routed_scaling_factor=1.0, norm_topk_prob=False),
    ),
    fused=SHARED_EXPERTS,
    more_rows=(choice_bias(),),
    fixed=CHOSEN_IN_GROUPS | {"qk_norm": True},
    windows=LocalWindows(
        default=4096, is_local=lambda config, count: upper_layers(config, count, first=62)
    ),
)
"""Also of others with experts chosen in this way."""
DEEPSEEK = (
    replace(
        _V3,
        model_type="deepseek_v2",
        architecture="DeepseekV2ForCausalLM",
        keys=(
            *_LATENT_KEYS,
            _EVERY_LAYER,
            *_expert_keys(0, experts=64, chosen=REQUIRED, width=1407, shared=2, groups=None),
            Key("mlp_bias", ("mlp_bias",), False),
            *block_keys("feed_forward", routed_scaling_factor=1.0),
            # transformers' code never divides by their sum
            Key("norm_topk_prob", ("feed_forward.norm_topk_prob",), False, {False: False}),
            Key("scoring_func", ("feed_forward.scores",), "softmax", {"softmax": "softmax"}),
            Key("topk_method", ("feed_forward.n_group", "feed_forward.topk_group"), "greedy",
                {"greedy": (1, 1), "group_limited_greedy": (ANY, ANY)}),
        ),
        fixed=EXPERTS | {"self_attention.type": "latent"},
        multimodal=(),
    ),
    _V3,
    like(
        _V3,
        "glm4_moe_lite",
        "Glm4MoeLiteForCausalLM",
        LAYER_TYPES,
        without=("first_k_dense_replace",),
        key_defaults={
            **{"rms_norm_eps": 1e-5, "q_lora_rank": 768, "qk_nope_head_dim": 192},
            **{"v_head_dim": 256, "n_routed_experts": 64, "num_experts_per_tok": 4, "n_group": 1},
            **{"moe_intermediate_size": 1536, "topk_group": 1, "routed_scaling_factor": 1.8},
        },
    ),
    Family(
        "youtu",
        "YoutuForCausalLM",
        (
            *with_defaults(
                _LATENT_KEYS, initializer_range=0.01976423537605237, tie_word_embeddings=True
            ),
            _INTERLEAVED,
        ),
        fused=_LATENT,
        fixed={"self_attention.type": "latent"},
        layout="interleaved",
    ),
    DOTS1,
)  # fmt: skip
_GLM_KEYS = (
    *llama_keys(kv_heads=2, head_dim=128, eps=1.5625e-7),
    Key("attention_bias", ("qkv_bias",), True),
)
_GLM4_MOE = Family(
    "glm4_moe",
    "Glm4MoeForCausalLM",
    (
        *llama_keys(heads=96, kv_heads=8, eps=1e-5),
        Key("attention_bias", ("qkv_bias",), False),
        Key("use_qk_norm", ("qk_norm",), False),
        *_expert_keys(dense=1, experts=128, chosen=8, width=1408, shared=1, groups=1),
        *block_keys("feed_forward", routed_scaling_factor=1.0, norm_topk_prob=True),
    ),
    fused=SHARED_EXPERTS,
    more_rows=(choice_bias(),),
    fixed=CHOSEN_IN_GROUPS,
    defaults={"partial_rotary_factor": 0.5},
)
GLM = (
    Family(
        "glm",
        "GlmForCausalLM",
        _GLM_KEYS,
        fused=GATE_UP,
        defaults={"partial_rotary_factor": 0.5},
        layout="interleaved",
    ),
    Family(
        "glm4",
        "Glm4ForCausalLM",
        _GLM_KEYS,
        fused=GATE_UP | both_norms("post_self_attn_layernorm", "post_mlp_layernorm"),
        fixed={"norm_placement": "both"},
        defaults={"partial_rotary_factor": 0.5},
        layout="interleaved",
    ),
    _GLM4_MOE,
    like(
        _GLM4_MOE,
        "solar_open",
        "SolarOpenForCausalLM",
        without=("intermediate_size", "first_k_dense_replace", "use_qk_norm"),
        key_defaults={"num_attention_heads": 64, "moe_intermediate_size": 1280},
        defaults={},
    ),
)
READ_AS = {
    "kimi_k2": _V3,
    "glm4v_text": replace(
        GLM[1],
        keys=tuple(
            key for key in with_defaults(_GLM_KEYS, rms_norm_eps=1e-5) if key.name != "head_dim"
        ),
        defaults={},  # its configs say how much of a head rotates
        multimodal=("glm4v", "glm46v"),
    ),
    "glm4v_moe_text": replace(
        _GLM4_MOE,
        keys=with_defaults(_GLM4_MOE.keys, attention_bias=True),
        multimodal=("glm4v_moe",),
    ),
}
