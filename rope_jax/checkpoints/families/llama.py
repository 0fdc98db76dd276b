"""Llama, and what others built like it."""

from collections.abc import Mapping
from typing import Any

from rope_jax.checkpoints.families.base import (
    CHUNKED,
    FULL,
    SLIDING,
    Family,
    Key,
    ModelSizes,
    Windows,
    llama_rows,
)
from rope_jax.checkpoints.families.parts import (
    ATTENTION_BIAS,
    EXPERTS,
    MLP,
    MLP_BIAS,
    QKV_BIAS,
    expert_keys,
    llama_keys,
    renamed,
)
from rope_jax.checkpoints.tensors import Row
from rope_jax.config.messages import show_value


def _rotated_layers(config: Mapping[str, Any], count: int) -> list[str]:
    """Llama 4: the layers that rotate attend within chunks."""
    every = config.get("no_rope_layer_interval", 4)
    rotates = config.get("no_rope_layers") or [(i + 1) % every for i in range(count)]
    return [CHUNKED if own else FULL for own in rotates]


def _llama4(config: dict[str, Any]) -> dict[str, Any]:
    """Llama 4's layers with experts, which have to be all of them."""
    every, count = config.pop("interleave_moe_layer_step", 1), config.get("num_hidden_layers")
    layers = config.pop("moe_layers", None)
    if layers is None and every != 1:
        raise ValueError(f"interleave_moe_layer_step: {every} leaves layers without experts{_NO}")
    every_layer = isinstance(layers, list) and layers == [*range(len(layers))]
    if layers is not None and not (every_layer and len(layers) == count):
        raise ValueError(f"moe_layers: {show_value(layers)} leaves layers without experts{_NO}")
    return config


_NO = " between those with them, which the decoder here does not have"
_LLAMA4 = {
    "feed_forward.router": ["mlp.router"],
    **{f"feed_forward.shared_expert.{part}": [f"mlp.shared_expert.{part}"] for part in MLP},
}


def _llama4_rows(model: ModelSizes) -> tuple[Row, ...]:
    layer, paths = "model.layers.{}.feed_forward.experts.", "layers/mlp/experts/"
    gate, up, down = (f"{paths}{part}/kernel" for part in MLP)
    experts = (
        Row(f"{layer}gate_up_proj", (gate, up), inputs_first=True),
        Row(f"{layer}down_proj", (down,), inputs_first=True),
    )
    return (*llama_rows(model, _LLAMA4), *experts)


def _types_go_first(config: dict[str, Any]) -> dict[str, Any]:
    """SmolLM3: layers that are listed as sliding slide, even if use_sliding_window is false."""
    found = config.get("layer_types")
    is_listed = isinstance(found, list) and SLIDING in found
    return config | {"use_sliding_window": True} if is_listed else config


def _unrotated_layers(config: Mapping[str, Any], count: int) -> list[str]:
    """SmolLM3: the layers without positions slide, where windows are used at all."""
    every = config.get("no_rope_layer_interval", 4)
    rotates = config.get("no_rope_layers") or [(i + 1) % every for i in range(count)]
    return [FULL if own else SLIDING for own in rotates]


LLAMA = (
    Family(
        "llama",
        "LlamaForCausalLM",
        (*llama_keys(), ATTENTION_BIAS, MLP_BIAS),
    ),
    Family(
        "llama4_text",
        "Llama4ForCausalLM",
        (
            *llama_keys(
                heads=40, kv_heads=8, head_dim=128, eps=1e-5, without=("intermediate_size",)
            ),
            Key(
                "intermediate_size",
                ("intermediate_size", "feed_forward.shared_expert_intermediate_size"),
            ),
            ATTENTION_BIAS,
            *expert_keys("num_local_experts", 16, 1),
            Key("use_qk_norm", ("qk_norm",), True, {True: "rotated", False: False}),
        ),
        rows=_llama4_rows,
        fixed=EXPERTS
        | {
            "feed_forward.scores": "sigmoid",
            "feed_forward.scaled": "inputs",
            "feed_forward.norm_topk_prob": False,
        },
        windows=Windows(default=8192, types=_rotated_layers, chunked=True),
        layout="interleaved",
        upgrade=_llama4,
        multimodal=("llama4",),
    ),
)
LIKE_LLAMA = (
    Family(
        "smollm3",
        "SmolLM3ForCausalLM",
        (*llama_keys(kv_heads=4, tied=True), ATTENTION_BIAS, MLP_BIAS),
        windows=Windows(types=_unrotated_layers, switch=True),
        upgrade=_types_go_first,
    ),
    Family(
        "seed_oss",
        "SeedOssForCausalLM",
        (
            *llama_keys(kv_heads=8, head_dim=128),
            QKV_BIAS._replace(default=True),
            Key("attention_out_bias", ("o_bias",), False),
            MLP_BIAS,
        ),
    ),
    Family(
        "arcee",
        "ArceeForCausalLM",
        (*llama_keys(activation=("hidden_act", "relu2"), eps=1e-5), ATTENTION_BIAS, MLP_BIAS),
        fixed={"gated_mlp": False},
    ),
    Family(
        "ernie4_5",
        "Ernie4_5ForCausalLM",
        (
            *llama_keys(kv_heads=2, head_dim=128, eps=1e-5, tied=True),
            Key("use_bias", ("qkv_bias", "o_bias", "mlp_bias"), False),
        ),
        layout="interleaved",
    ),
    Family(
        "helium",
        "HeliumForCausalLM",
        (*llama_keys(kv_heads=20, head_dim=128, eps=1e-8), QKV_BIAS, MLP_BIAS),
        layout="interleaved",
    ),
    Family(
        "internlm3",
        "InternLM3ForCausalLM",
        (*llama_keys(kv_heads=2, head_dim=128, eps=1e-5), ATTENTION_BIAS, MLP_BIAS),
        upgrade=renamed(qkv_bias="attention_bias", bias="mlp_bias"),
    ),
)
