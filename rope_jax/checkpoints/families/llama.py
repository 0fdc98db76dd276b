"""Llama, and what others built like it."""

from collections.abc import Mapping
from typing import Any

from rope_jax.checkpoints.families.base import (
    EXPERTS,
    SLIDING,
    Family,
    Key,
    LocalWindows,
    expert_keys,
    llama_keys,
    mlp_modules,
)
from rope_jax.checkpoints.tensors import Row


def _rotated_layers(config: Mapping[str, Any], count: int) -> list[bool]:
    """Llama 4: the layers that rotate attend within chunks."""
    every = config.get("no_rope_layer_interval", 4)
    rotates = config.get("no_rope_layers") or [(i + 1) % every for i in range(count)]
    return [bool(rotated) for rotated in rotates]


def _unrotated_layers(config: Mapping[str, Any], count: int) -> list[bool]:
    """SmolLM3: the layers without positions slide, where windows are used at all."""
    return [not rotated for rotated in _rotated_layers(config, count)]


def _all_experts(config: dict[str, Any]) -> dict[str, Any]:
    """Llama 4: the layers with experts have to be all of them."""
    layers, every = config.pop("moe_layers", None), config.pop("interleave_moe_layer_step", 1)
    if layers is None:
        key, value, is_right = "interleave_moe_layer_step", every, every == 1
    else:
        key, value = "moe_layers", layers
        is_all = isinstance(layers, list) and layers == [*range(len(layers))]
        is_right = is_all and len(layers) == config.get("num_hidden_layers")
    if not is_right:
        raise ValueError(
            f"{key}: {value!r} leaves layers without experts between those with them, "
            "which the decoder here does not have"
        )
    return config


def _types_go_first(config: dict[str, Any]) -> dict[str, Any]:
    """SmolLM3: layers that are listed as sliding slide, even if use_sliding_window is false."""
    types = config.get("layer_types")
    is_listed = isinstance(types, list) and SLIDING in types
    return config | {"use_sliding_window": True} if is_listed else config


_LLAMA4_EXPERTS, _EXPERTS = "model.layers.{}.feed_forward.experts.", "layers/mlp/experts/"
LLAMA = (
    Family("llama", "LlamaForCausalLM", llama_keys(attention_bias=False, mlp_bias=False)),
    Family(
        "llama4_text",
        "Llama4ForCausalLM",
        (
            *llama_keys(
                heads=40,
                kv_heads=8,
                head_dim=128,
                eps=1e-5,
                attention_bias=False,
                without=("intermediate_size",),
            ),
            Key(
                "intermediate_size",
                ("intermediate_size", "feed_forward.shared_expert_intermediate_size"),
            ),
            *expert_keys("num_local_experts", 16, 1),
            Key("use_qk_norm", ("qk_norm",), True, {True: "rotated", False: False}),
        ),
        fused={
            "feed_forward.router": ["mlp.router"],
            **mlp_modules("feed_forward.shared_expert", "mlp.shared_expert"),
        },
        more_rows=(
            Row(
                f"{_LLAMA4_EXPERTS}gate_up_proj",
                (f"{_EXPERTS}gate_proj/kernel", f"{_EXPERTS}up_proj/kernel"),
                inputs_first=True,
            ),
            Row(f"{_LLAMA4_EXPERTS}down_proj", (f"{_EXPERTS}down_proj/kernel",), inputs_first=True),
        ),
        fixed={
            **EXPERTS,
            "feed_forward.scores": "sigmoid",
            "feed_forward.scaled": "inputs",
            "feed_forward.norm_topk_prob": False,
        },
        windows=LocalWindows(default=8192, is_local=_rotated_layers, chunked=True),
        layout="interleaved",
        upgrade=_all_experts,
        multimodal=("llama4",),
    ),
)
LIKE_LLAMA = (
    Family(
        "smollm3",
        "SmolLM3ForCausalLM",
        llama_keys(kv_heads=4, tied=True, attention_bias=False, mlp_bias=False),
        windows=LocalWindows(is_local=_unrotated_layers, switch=True),
        upgrade=_types_go_first,
    ),
    Family(
        "seed_oss",
        "SeedOssForCausalLM",
        (
            *llama_keys(kv_heads=8, head_dim=128, mlp_bias=False),
            Key("attention_bias", ("qkv_bias",), True),
            Key("attention_out_bias", ("o_bias",), False),
        ),
    ),
    Family(
        "arcee",
        "ArceeForCausalLM",
        llama_keys(
            activation=("hidden_act", "relu2"), eps=1e-5, attention_bias=False, mlp_bias=False
        ),
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
        (
            *llama_keys(kv_heads=20, head_dim=128, eps=1e-8, mlp_bias=False),
            Key("attention_bias", ("qkv_bias",), False),
        ),
        layout="interleaved",
    ),
    Family(
        "internlm3",
        "InternLM3ForCausalLM",
        llama_keys(kv_heads=2, head_dim=128, eps=1e-5, attention_bias=False, mlp_bias=False),
    ),
)
