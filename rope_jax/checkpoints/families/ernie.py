"""ERNIE."""

from typing import Any

from rope_jax.checkpoints.families.base import EXPERTS, Family, Key, LocalWindows, like, llama_keys
from rope_jax.checkpoints.families.deepseek import DOTS1, SCALED, choice_bias


def _experts_to_the_last(config: dict[str, Any]) -> dict[str, Any]:
    """The layers with experts have to be all but the first ones."""
    last, count = config.get("moe_layer_end_index"), config.get("num_hidden_layers", 0)
    return config | {"moe_layer_end_index": -1} if last == count - 1 else config


_WITH_BIAS = ("qkv_bias", "o_bias", "mlp_bias")
ERNIE = (
    Family("ernie4_5", (*llama_keys(), Key("use_bias", _WITH_BIAS, False)), layout="interleaved"),
    like(
        DOTS1,
        "ernie4_5_moe",
        Key("use_bias", (*_WITH_BIAS, "head_bias"), False),
        Key("moe_layer_end_index", (), None, {-1: (), None: ()}),
        Key("moe_layer_interval", (), 1, {1: ()}),
        Key("moe_norm_min", (), 1e-12, {1e-12: ()}),
        without=("attention_bias", "n_group", "topk_group", *(key.name for key in SCALED)),
        names={
            "first_k_dense_replace": "moe_layer_start_index",
            "n_routed_experts": "moe_num_experts",
            "num_experts_per_tok": "moe_k",
            "n_shared_experts": "moe_num_shared_experts",
        },
        more_rows=(choice_bias("mlp.moe_statics.e_score_correction_bias")._replace(one_row=True),),
        fixed=EXPERTS | {"feed_forward.choice_bias": True},
        windows=LocalWindows(exist=False),
        layout="interleaved",
        upgrade=_experts_to_the_last,
    ),
)
