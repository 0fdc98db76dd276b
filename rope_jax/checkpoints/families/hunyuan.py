"""Hunyuan."""

from collections.abc import Mapping
from typing import Any

from rope_jax.checkpoints.families.base import (
    EXPERTS,
    REQUIRED,
    Family,
    Form,
    Key,
    like,
    llama_keys,
    mlp_modules,
)


def _stretched(config: dict[str, Any]) -> dict[str, Any]:
    """Return a config with another base in place of an alpha, which no text's length changes."""
    for name in ("rope_parameters", "rope_scaling"):
        rope = config.get(name) or {}
        if rope.get("rope_type", rope.get("type")) == "dynamic" and rope.get("alpha"):
            width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
            base = rope.get("rope_theta", config.get("rope_theta", 10_000.0))
            base *= rope["alpha"] ** (width / (width - 2))
            config = config | {name: {"rope_type": "default", "rope_theta": base}}
            config.pop("rope_theta", None)
    return config


def _of_all(numbers: Any, _: Mapping[str, Any]) -> Any:
    """Return the number of every layer. ValueError: they differ."""
    listed = {*numbers} if isinstance(numbers, list) else {numbers}
    if len(listed) != 1:
        raise ValueError("differs between layers")
    return listed.pop()


_FORM = Form(_of_all, lambda number, _: number)
_DENSE = Family(
    "hunyuan_v1_dense",
    llama_keys("attention_bias"),
    fused={
        "self_attn.query_layernorm": ["self_attn.q_norm"],
        "self_attn.key_layernorm": ["self_attn.k_norm"],
    },
    fixed={"qk_norm": "after_rotation"},
    upgrade=_stretched,
)
HUNYUAN = (
    _DENSE,
    like(
        _DENSE,
        "hunyuan_v1_moe",
        Key("intermediate_size",
            ("intermediate_size", "feed_forward.shared_expert_intermediate_size"), REQUIRED),
        Key("num_experts", ("feed_forward.num_experts",), REQUIRED, form=_FORM),
        Key("moe_topk", ("feed_forward.num_experts_per_tok",), REQUIRED, form=_FORM),
        without=("intermediate_size",),
        fused={
            **_DENSE.fused,
            "mlp.gate.wg": ["mlp.router"],
            **mlp_modules("mlp.experts.{}", "mlp.experts"),
            **mlp_modules("mlp.shared_mlp", "mlp.shared_expert"),
        },
        fixed={**EXPERTS, **_DENSE.fixed},
    ),
)  # fmt: skip
