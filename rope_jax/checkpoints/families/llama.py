"""Llama, and what others built like it; Hunyuan."""

from collections.abc import Mapping, Sequence
from typing import Any

from rope_jax.checkpoints.families.base import (
    EXPERTS,
    FUSED,
    REQUIRED,
    SLIDING,
    THEIRS,
    Family,
    Form,
    Key,
    LocalWindows,
    dense_layers,
    expert_keys,
    experts_in_one,
    like,
    llama_keys,
    mlp_modules,
    numbers_of,
)


def _rotated_layers(config: Mapping[str, Any], count: int) -> list[bool]:
    """Llama 4: the layers that rotate attend within chunks."""
    every = config.get("no_rope_layer_interval", 4)
    rotates = config.get("no_rope_layers") or [(i + 1) % every for i in range(count)]
    return [bool(rotated) for rotated in rotates]


def _without_experts(step: int, config: Mapping[str, Any]) -> int | list[int]:
    """Llama 4: the layers with experts are listed, or are every `step`-th."""
    count = config.get("num_hidden_layers", 0)
    experts = config.get("moe_layers") or range(step - 1, count, step)
    return dense_layers([layer for layer in range(count) if layer not in experts])


def _step(dense: int | Sequence[int], model: Mapping[str, Any]) -> int:
    step = 1 + min({*range(model["num_hidden_layers"])} - {*numbers_of(dense)})
    if numbers_of(_without_experts(step, model)) != numbers_of(dense):
        raise ValueError(f"no dense_layers {dense}, only all but every {step}")
    return step


def _types_go_first(config: dict[str, Any]) -> dict[str, Any]:
    """SmolLM3: layers that are listed as sliding slide, even if use_sliding_window is false."""
    types = config.get("layer_types")
    is_listed = isinstance(types, list) and SLIDING in types
    return config | {"use_sliding_window": True} if is_listed else config


_STEP = Form(_without_experts, _step)
_WIDTHS = tuple(f"feed_forward.{name}_intermediate_size" for name in ("moe", "shared_expert"))
LLAMA = (
    Family("llama", llama_keys("attention_bias", "mlp_bias")),
    Family(
        "llama4_text",
        (
            *llama_keys("attention_bias", heads=THEIRS, without=("intermediate_size",)),
            Key("intermediate_size", _WIDTHS, REQUIRED),
            Key("intermediate_size_mlp", ("intermediate_size",), 16384),
            Key("interleave_moe_layer_step", ("dense_layers",), 1, form=_STEP),
            *expert_keys("num_local_experts"),
            Key("use_qk_norm", ("qk_norm",), True, {True: "rotated", False: False}),
        ),
        fused={
            "feed_forward.router": ["mlp.router"],
            **mlp_modules("feed_forward", "mlp"),
            **mlp_modules("feed_forward.shared_expert", "mlp.shared_expert"),
        },
        more_rows=experts_in_one("feed_forward"),
        fixed={
            **EXPERTS,
            "feed_forward.scores": "sigmoid",
            "feed_forward.scaled": "inputs",
            "feed_forward.norm_topk_prob": False,
        },
        windows=LocalWindows(is_local=_rotated_layers, chunked=True),
        layout="interleaved",
        multimodal=("llama4",),
    ),
)
LIKE_LLAMA = (
    Family(
        "cwm",
        llama_keys("mlp_bias"),
        windows=LocalWindows(is_local=lambda _, count: [layer % 4 != 0 for layer in range(count)]),
    ),
    Family(
        "smollm3",
        llama_keys("attention_bias", "mlp_bias"),
        # the layers without positions slide, where windows are used at all
        windows=LocalWindows(lambda *given: [not x for x in _rotated_layers(*given)], switch=True),
        upgrade=_types_go_first,
    ),
    Family(
        "seed_oss",
        (
            *llama_keys("mlp_bias"),
            Key("attention_bias", ("qkv_bias",), True),
            Key("attention_out_bias", ("o_bias",), False),
        ),
    ),
    Family("arcee", llama_keys("attention_bias", "mlp_bias"), fixed={"gated_mlp": False}),
    Family(
        "helium",
        (*llama_keys("mlp_bias"), Key("attention_bias", ("qkv_bias",), False)),
        layout="interleaved",
    ),
    Family("internlm3", llama_keys("attention_bias", "mlp_bias")),
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
    listed = {*numbers} if isinstance(numbers, list) else {numbers}
    if len(listed) != 1:
        raise ValueError("differs between layers")
    return listed.pop()


_OF_ALL = Form(_of_all, lambda number, _: number)
_HUNYUAN = Family(
    "hunyuan_v1_dense",
    llama_keys("attention_bias"),
    fused=FUSED["hunyuan_v1_dense"],
    fixed={"qk_norm": "after_rotation"},
    upgrade=_stretched,
)
HUNYUAN = (
    _HUNYUAN,
    like(
        _HUNYUAN,
        "hunyuan_v1_moe",
        Key("intermediate_size",
            ("intermediate_size", "feed_forward.shared_expert_intermediate_size"), REQUIRED),
        Key("num_experts", ("feed_forward.num_experts",), REQUIRED, form=_OF_ALL),
        Key("moe_topk", ("feed_forward.num_experts_per_tok",), REQUIRED, form=_OF_ALL),
        without=("intermediate_size",),
        fused={
            **_HUNYUAN.fused,
            "mlp.gate.wg": ["mlp.router"],
            **mlp_modules("mlp.experts.{}", "mlp.experts"),
            **mlp_modules("mlp.shared_mlp", "mlp.shared_expert"),
        },
        fixed={**EXPERTS, **_HUNYUAN.fixed},
    ),
)  # fmt: skip
