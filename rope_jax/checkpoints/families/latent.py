"""The families with latent attention."""

from typing import Any

from rope_jax.checkpoints.families.base import (
    ANY,
    REQUIRED,
    Family,
    Form,
    Key,
    llama_keys,
    llama_rows,
)
from rope_jax.checkpoints.weights import Row
from rope_jax.config.model import ModelConfig

_PARTS = ("gate_proj", "up_proj", "down_proj")
_OTHERS = {
    **{
        f"self_attn.{name}": [f"self_attn.{name}"]
        for name in ("q_a_proj", "q_a_layernorm", "q_b_proj", "kv_a_layernorm", "kv_b_proj")
    },
    "self_attn.kv_a_proj_with_mqa": ["self_attn.kv_a_proj"],
    "mlp.gate": ["mlp.router"],
    **{f"mlp.experts.{{}}.{part}": [f"mlp.experts.{part}"] for part in _PARTS},
    **{f"mlp.shared_experts.{part}": [f"mlp.shared_expert.{part}"] for part in _PARTS},
}
_CHOICE_BIAS = Row(
    "model.layers.{}.mlp.gate.e_score_correction_bias", ("layers/mlp/router/choice_bias",)
)
_OR_ONE = Form(lambda value: 1 if value is None else value, lambda value: value)


def _renamed(config: dict[str, Any]) -> dict[str, Any]:
    """The number of experts has other names in transformers, which a config may use."""
    for name in ("num_experts", "num_local_experts"):
        if name in config:
            config["n_routed_experts"] = config.pop(name)
    return config


def _rows(model: ModelConfig) -> tuple[Row, ...]:
    return (*llama_rows(model, fused=_OTHERS), _CHOICE_BIAS)


def _own(slot: str, **defaults: Any) -> tuple[Key, ...]:
    """Return keys that are called as the fields of a block that they set."""
    return tuple(Key(name, (f"{slot}.{name}",), default) for name, default in defaults.items())


def _keys(
    dense: int, experts: int, chosen: int | object, width: int, shared: int, groups: int | None
) -> tuple[Key, ...]:
    """Return the keys that both families have. dense: how many first layers have no experts."""
    of_experts = Key("moe_intermediate_size", ("feed_forward.moe_intermediate_size",), width)
    return (
        *llama_keys(without=("head_dim",)),
        Key("attention_bias", ("qkv_bias", "o_bias"), False),
        *_own(
            "self_attention",
            q_lora_rank=1536,
            kv_lora_rank=512,
            qk_nope_head_dim=128,
            qk_rope_head_dim=64,
            v_head_dim=128,
        ),
        Key("first_k_dense_replace", ("dense_layers",), dense),
        Key("moe_layer_freq", (), 1, {1: ()}),
        Key("n_routed_experts", ("feed_forward.num_experts",), experts),
        *_own("feed_forward", num_experts_per_tok=chosen),
        of_experts,
        Key("n_shared_experts", ("feed_forward.shared_expert_intermediate_size",), shared,
            times=of_experts),
        Key("n_group", ("feed_forward.n_group",), groups, form=_OR_ONE),
        Key("topk_group", ("feed_forward.topk_group",), groups and groups // 2, form=_OR_ONE),
    )  # fmt: skip


_IGNORED = frozenset(
    {
        *("aux_loss_alpha", "seq_aux", "output_router_logits"),  # in training
        *("num_nextn_predict_layers", "num_mtp_layers"),  # whose tensors are left out
        *("qk_head_dim", "ep_size"),  # follows from its parts; devices
    }
)
_FIXED = {"feed_forward.type": "experts", "self_attention.type": "latent"}

LATENT = (
    Family(
        "deepseek_v2",
        "DeepseekV2ForCausalLM",
        (
            *_keys(dense=0, experts=64, chosen=REQUIRED, width=1407, shared=2, groups=None),
            Key("mlp_bias", ("mlp_bias",), False),
            *_own("feed_forward", routed_scaling_factor=1.0),
            # transformers' code never divides by their sum
            Key("norm_topk_prob", ("feed_forward.norm_topk_prob",), False, {False: False}),
            Key("scoring_func", ("feed_forward.scores",), "softmax", {"softmax": "softmax"}),
            Key("topk_method", ("feed_forward.n_group", "feed_forward.topk_group"), "greedy",
                {"greedy": (1, 1), "group_limited_greedy": (ANY, ANY)}),
        ),
        rows=_rows,
        fixed=_FIXED,
        ignored=_IGNORED,
        layout="interleaved",
        modern=_renamed,
    ),
    Family(
        "deepseek_v3",
        "DeepseekV3ForCausalLM",
        (
            *_keys(dense=3, experts=256, chosen=8, width=2048, shared=1, groups=8),
            *_own("feed_forward", routed_scaling_factor=2.5, norm_topk_prob=True),
            Key("scoring_func", ("feed_forward.scores",), "sigmoid", {"sigmoid": "sigmoid"}),
            Key("topk_method", (), "noaux_tc", {"noaux_tc": ()}),
            Key("rope_interleave", (), True, {True: ()}),
        ),
        rows=_rows,
        fixed=_FIXED | {"feed_forward.choice_bias": True, "feed_forward.group_score": "best_two"},
        ignored=_IGNORED,
        layout="interleaved",
        modern=_renamed,
    ),
)  # fmt: skip
