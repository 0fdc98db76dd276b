"""DeepSeek: latent attention, and experts that are chosen in groups; GLM, which has them too."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rope_jax.checkpoints.families.base import (
    ANY,
    EXPERTS,
    FUSED,
    GATE_UP,
    REQUIRED,
    ROUTED,
    THEIRS,
    Family,
    Form,
    Key,
    LocalWindows,
    both_norms,
    dense_layers,
    expert_keys,
    keys_of,
    like,
    llama_keys,
    mlp_modules,
    numbers_of,
    with_defaults,
)
from rope_jax.checkpoints.families.qwen import upper_layers
from rope_jax.checkpoints.tensors import Row

_WIDTH = Key("moe_intermediate_size", ("feed_forward.moe_intermediate_size",))
_ONE = Form(lambda value, _: 1 if value is None else value, lambda value, _: value)
_EXPERT_KEYS = (
    Key("first_k_dense_replace", ("dense_layers",)),
    *expert_keys("n_routed_experts"),
    _WIDTH,
    Key("n_shared_experts", ("feed_forward.shared_expert_intermediate_size",), times=_WIDTH),
    Key("n_group", ("feed_forward.n_group",), form=_ONE),
    Key("topk_group", ("feed_forward.topk_group",), form=_ONE),
)
_EXPERTS_STATED = ("n_routed_experts", "num_experts_per_tok", "n_shared_experts")
SCALED = keys_of("routed_scaling_factor", "norm_topk_prob", block="feed_forward")
_LATENT_KEYS = (
    *with_defaults(llama_keys("attention_bias", without=("head_dim",)), num_key_value_heads=None),
    *keys_of("q_lora_rank", "kv_lora_rank", block="self_attention"),
    *keys_of("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", block="self_attention"),
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


CHOSEN_WITH_BIAS = {**EXPERTS, "feed_forward.scores": "sigmoid", "feed_forward.choice_bias": True}
CHOSEN_IN_GROUPS = CHOSEN_WITH_BIAS | {"feed_forward.group_score": "best_two"}
NUM_EXPERTS = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}
_LATENT = FUSED["latent"]
_V3 = Family(
    "deepseek_v3",
    (
        *_LATENT_KEYS,
        _EVERY_LAYER,
        *_EXPERT_KEYS,
        *SCALED,
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
    (
        *llama_keys("attention_bias", heads=THEIRS),
        *with_defaults(_EXPERT_KEYS, **dict.fromkeys(_EXPERTS_STATED, REQUIRED)),
        *SCALED,
    ),
    fused=SHARED_EXPERTS,
    more_rows=(choice_bias(),),
    fixed=CHOSEN_IN_GROUPS | {"qk_norm": True},
    windows=LocalWindows(is_local=lambda config, count: upper_layers(config, count, first=62)),
)
"""Also of others with experts chosen in this way."""
DEEPSEEK = (
    replace(
        _V3,
        model_type="deepseek_v2",
        keys=(
            *_LATENT_KEYS,
            _EVERY_LAYER,
            *with_defaults(_EXPERT_KEYS, num_experts_per_tok=REQUIRED),
            Key("mlp_bias", ("mlp_bias",), False),
            SCALED[0],
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
    like(_V3, "glm4_moe_lite", LAYER_TYPES, without=("first_k_dense_replace",)),
    Family(
        "youtu",
        (*with_defaults(_LATENT_KEYS, initializer_range=0.01976423537605237), _INTERLEAVED),
        fused=_LATENT,
        fixed={"self_attention.type": "latent"},
        layout="interleaved",
    ),
    DOTS1,
)  # fmt: skip
_GLM_KEYS = (*llama_keys(), Key("attention_bias", ("qkv_bias",)))
_GLM4_MOE = Family(
    "glm4_moe",
    (
        *llama_keys(heads=THEIRS),
        Key("attention_bias", ("qkv_bias",), False),
        Key("use_qk_norm", ("qk_norm",), False),
        *_EXPERT_KEYS,
        *SCALED,
    ),
    fused=SHARED_EXPERTS,
    more_rows=(choice_bias(),),
    fixed=CHOSEN_IN_GROUPS,
    defaults={"partial_rotary_factor": 0.5},
)
GLM = (
    Family(
        "glm",
        _GLM_KEYS,
        fused=GATE_UP,
        defaults={"partial_rotary_factor": 0.5},
        layout="interleaved",
    ),
    Family(
        "glm4",
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
        without=("intermediate_size", "first_k_dense_replace", "use_qk_norm"),
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
