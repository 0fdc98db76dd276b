"""The families with a mixture of experts."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from rope_jax.checkpoints.families.base import (
    ATTENTION_BIAS,
    CHUNKED,
    FIRST_LAYERS,
    FULL,
    REQUIRED,
    SLIDING,
    Family,
    Form,
    Key,
    Windows,
    llama_keys,
    llama_rows,
)
from rope_jax.checkpoints.families.rms_norm import granite_keys, upper_layers
from rope_jax.checkpoints.weights import Row
from rope_jax.config.messages import show_value
from rope_jax.config.model import ModelConfig


def _lower_layers(config: Mapping[str, Any], count: int) -> list[str]:
    """Qwen2-MoE: every second one of the first max_window_layers slides."""
    last = config.get("max_window_layers", 28)
    return [FULL if layer % 2 or layer >= last else SLIDING for layer in range(count)]


def _every_second(config: Mapping[str, Any], count: int) -> list[str]:
    """gpt-oss: every second layer slides, the first one as well."""
    return [FULL if layer % 2 else SLIDING for layer in range(count)]


def _gpt_oss_rows(model: ModelConfig) -> tuple[Row, ...]:
    """Return the rows of gpt-oss, whose experts' gate and up have a column each in turn."""
    layer, ours = "model.layers.{}.", "layers/mlp/experts/"
    rows = [Row(f"{layer}self_attn.sinks", ("layers/self_attn/sinks",))]
    for leaf, suffix in (("kernel", ""), ("bias", "_bias")):
        pair = f"{ours}gate_proj/{leaf}", f"{ours}up_proj/{leaf}"
        name = f"{layer}mlp.experts.gate_up_proj{suffix}"
        rows.append(Row(name, pair, model.intermediate_size, inputs_first=True))
        name = f"{layer}mlp.experts.down_proj{suffix}"
        rows.append(Row(name, (f"{ours}down_proj/{leaf}",), inputs_first=True))
    return (*llama_rows(model, fused={"mlp.router": ["mlp.router"]}), *rows)


def _expert_keys(name: str, experts: int, chosen: int) -> tuple[Key, ...]:
    """Return the keys about a router, with a family's defaults. name: that of the first one."""
    return (
        Key(name, ("feed_forward.num_experts",), experts),
        Key("num_experts_per_tok", ("feed_forward.num_experts_per_tok",), chosen),
    )


def _qwen_keys(experts: int, chosen: int, width: int) -> tuple[Key, ...]:
    return (
        *_expert_keys("num_experts", experts, chosen),
        Key("moe_intermediate_size", ("feed_forward.moe_intermediate_size",), width),
        _NORMALIZED,
        Key("mlp_only_layers", ("dense_layers",), None, form=FIRST_LAYERS),
        Key("decoder_sparse_step", (), 1, {1: ()}),
    )


def block_keys(slot: str, **defaults: Any) -> tuple[Key, ...]:
    """Return keys that are called as the fields of a block that they set."""
    return tuple(Key(name, (f"{slot}.{name}",), default) for name, default in defaults.items())


def deepseek_keys(
    dense: int,
    experts: int | object,
    chosen: int | object,
    width: int,
    shared: int | object,
    groups: int | None,
) -> tuple[Key, ...]:
    """Return the keys about experts in DeepSeek's names. dense: first layers without experts."""
    of_experts = Key("moe_intermediate_size", ("feed_forward.moe_intermediate_size",), width)
    one = Form(lambda value: 1 if value is None else value, lambda value: value)
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


def deepseek_rows(model: ModelConfig, others: Mapping[str, Sequence[str]] = {}) -> tuple[Row, ...]:
    """Return the rows of DeepSeek's experts, and of a Llama. others: see `llama_rows`, `fused`."""
    bias = "model.layers.{}.mlp.gate.e_score_correction_bias", ("layers/mlp/router/choice_bias",)
    shared = {f"mlp.shared_experts.{part}": [f"mlp.shared_expert.{part}"] for part in _PARTS}
    return (*llama_rows(model, fused=_ROUTED | shared | {**others}), Row(*bias))


def n_routed_experts(config: dict[str, Any]) -> dict[str, Any]:
    """The number of experts has other names in transformers, which a config may use."""
    for name in ("num_experts", _LOCAL):
        if name in config:
            config["n_routed_experts"] = config.pop(name)
    return config


def _renamed(config: dict[str, Any]) -> dict[str, Any]:
    """The number of experts as transformers 5 may write it, in the key that is published."""
    count = {"num_experts": config.pop("num_local_experts")} if _LOCAL in config else {}
    return config | count


_LOCAL = "num_local_experts"
_NORMALIZED = Key("norm_topk_prob", ("feed_forward.norm_topk_prob",), False)
_PARTS = ("gate_proj", "up_proj", "down_proj")
_ROUTED = {
    "mlp.gate": ["mlp.router"],
    **{f"mlp.experts.{{}}.{part}": [f"mlp.experts.{part}"] for part in _PARTS},
}
_QWEN = {
    **_ROUTED,
    **{f"mlp.shared_expert.{part}": [f"mlp.shared_expert.{part}"] for part in _PARTS},
    "mlp.shared_expert_gate": ["mlp.shared_expert_gate"],
}
_MIXTRAL = {
    "block_sparse_moe.gate": ["mlp.router"],
    "block_sparse_moe.experts.{}.w1": ["mlp.experts.gate_proj"],
    "block_sparse_moe.experts.{}.w3": ["mlp.experts.up_proj"],
    "block_sparse_moe.experts.{}.w2": ["mlp.experts.down_proj"],
}
_GRANITE = {
    "block_sparse_moe.router.layer": ["mlp.router"],
    "block_sparse_moe.input_linear": ["mlp.experts.gate_proj", "mlp.experts.up_proj"],
    "block_sparse_moe.output_linear": ["mlp.experts.down_proj"],
}
_OF_EXPERTS = {"feed_forward.type": "experts"}
_IN_TRAINING = frozenset({"output_router_logits", "router_jitter_noise"})
NOT_COMPUTED = _IN_TRAINING | {
    *("aux_loss_alpha", "seq_aux"),  # in training
    *("num_nextn_predict_layers", "num_mtp_layers"),  # whose tensors are left out
}
CHOSEN_IN_GROUPS = {
    "feed_forward.scores": "sigmoid",
    "feed_forward.choice_bias": True,
    "feed_forward.group_score": "best_two",
}


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
    **{f"feed_forward.shared_expert.{part}": [f"mlp.shared_expert.{part}"] for part in _PARTS},
}


def _llama4_rows(model: ModelConfig) -> tuple[Row, ...]:
    layer, paths = "model.layers.{}.feed_forward.experts.", "layers/mlp/experts/"
    gate, up, down = (f"{paths}{part}/kernel" for part in _PARTS)
    experts = (
        Row(f"{layer}gate_up_proj", (gate, up), inputs_first=True),
        Row(f"{layer}down_proj", (down,), inputs_first=True),
    )
    return (*llama_rows(model, _LLAMA4), *experts)


EXPERTS = (
    Family(
        "mixtral",
        "MixtralForCausalLM",
        (*llama_keys(kv_heads=8, eps=1e-5), *_expert_keys(_LOCAL, 8, 2)),
        rows=functools.partial(llama_rows, fused=_MIXTRAL),
        fixed=_OF_EXPERTS,
        windows=Windows(),
        defaults={"rope_theta": 1_000_000.0},
        ignored=_IN_TRAINING,
    ),
    Family(
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        (*llama_keys(heads=32, kv_heads=4), ATTENTION_BIAS, *_qwen_keys(128, 8, 768)),
        rows=functools.partial(llama_rows, fused=_QWEN),
        fixed=_OF_EXPERTS | {"qk_norm": True},
        windows=Windows(default=4096, switch=True),
        ignored=_IN_TRAINING | {"max_window_layers"},
        modern=_renamed,
    ),
    Family(
        "qwen2_moe",
        "Qwen2MoeForCausalLM",
        (
            *llama_keys(heads=16, kv_heads=16),
            *_qwen_keys(60, 4, 1408),
            Key(
                "shared_expert_intermediate_size",
                ("feed_forward.shared_expert_intermediate_size",),
                5632,
            ),
            Key("qkv_bias", ("qkv_bias",), True),
        ),
        rows=functools.partial(llama_rows, fused=_QWEN),
        fixed=_OF_EXPERTS | {"feed_forward.shared_expert_gate": True},
        windows=Windows(default=4096, types=_lower_layers, switch=True),
        ignored=_IN_TRAINING | {"max_window_layers"},
    ),
    Family(
        "olmoe",
        "OlmoeForCausalLM",
        (
            *llama_keys(eps=1e-5, without=("head_dim",)),
            ATTENTION_BIAS,
            Key("clip_qkv", ("clip_qkv",), None),
            *_expert_keys("num_experts", 64, 8),
            _NORMALIZED,
        ),
        rows=functools.partial(llama_rows, fused=_QWEN),
        fixed=_OF_EXPERTS | {"qk_norm": "all_heads"},
        ignored=_IN_TRAINING,
        modern=_renamed,
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
            *_expert_keys(_LOCAL, 16, 1),
            Key("use_qk_norm", ("qk_norm",), True, {True: "rotated", False: False}),
        ),
        rows=_llama4_rows,
        fixed=_OF_EXPERTS
        | {
            "feed_forward.scores": "sigmoid",
            "feed_forward.scaled": "inputs",
            "feed_forward.norm_topk_prob": False,
        },
        windows=Windows(default=8192, types=_rotated_layers, chunked=True),
        defaults={"rope_theta": 500_000.0},
        ignored=_IN_TRAINING | {"intermediate_size_mlp", "for_llm_compressor"},
        nope="listed",
        tempered=True,
        layout="interleaved",
        modern=_llama4,
        multimodal=("llama4",),
    ),
    Family(
        "granitemoe",
        "GraniteMoeForCausalLM",
        (
            *llama_keys(),
            ATTENTION_BIAS,
            *granite_keys(-1, 1.0),
            *_expert_keys(_LOCAL, 8, 2),
        ),
        rows=functools.partial(llama_rows, fused=_GRANITE),
        fixed=_OF_EXPERTS,
        ignored=_IN_TRAINING,
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
        rows=deepseek_rows,
        fixed=_OF_EXPERTS | CHOSEN_IN_GROUPS,
        defaults={"partial_rotary_factor": 0.5},
        ignored=NOT_COMPUTED,
        partial=True,
        modern=n_routed_experts,
    ),
    Family(
        "dots1",
        "Dots1ForCausalLM",
        (
            *llama_keys(heads=32, kv_heads=32),
            ATTENTION_BIAS,
            *deepseek_keys(0, REQUIRED, REQUIRED, width=1408, shared=REQUIRED, groups=1),
            *block_keys("feed_forward", routed_scaling_factor=1.0, norm_topk_prob=False),
        ),
        rows=deepseek_rows,
        fixed=_OF_EXPERTS | CHOSEN_IN_GROUPS | {"qk_norm": True},
        windows=Windows(default=4096, types=functools.partial(upper_layers, first=62)),
        ignored=NOT_COMPUTED | {"max_window_layers"},
        modern=n_routed_experts,
    ),
    Family(
        "gpt_oss",
        "GptOssForCausalLM",
        (
            *llama_keys(heads=64, kv_heads=8, head_dim=64, eps=1e-5),
            ATTENTION_BIAS._replace(default=True),
            *_expert_keys(_LOCAL, 128, 4),
            Key("swiglu_limit", ("feed_forward.swiglu_limit",), 7.0),
            Key("swiglu_alpha", (), 1.702, {1.702: ()}),
        ),
        rows=_gpt_oss_rows,
        fixed=_OF_EXPERTS
        | {"feed_forward.router_bias": True, "feed_forward.expert_bias": True}
        | {"attention_sinks": True},
        windows=Windows(default=128, types=_every_second),
        defaults={
            "rope_theta": 150_000.0,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 32.0,
                "truncate": False,
                "original_max_position_embeddings": 4096,
            },
        },
        # published, but no code reads them
        ignored=_IN_TRAINING | {"experts_per_token", "initial_context_length"},
    ),
)
