"""Gemma."""

from dataclasses import replace
from typing import Any

from rope_jax.checkpoints.families.base import (
    ACTIVATIONS,
    FULL,
    SLIDING,
    THEIRS,
    Family,
    Form,
    Key,
    LocalWindows,
    every,
    llama_keys,
)
from rope_jax.checkpoints.tensors import Row
from rope_jax.rope.hf.read import positive_int

# What Gemma 1's configs mean by gelu is its fit; an export writes the first name.
_GELUS = {"gelu_pytorch_tanh": "gelu_tanh"} | ACTIVATIONS | {"gelu": "gelu_tanh"}
_GEMMA1 = {"norm": "rms_norm_plus_one", "scale_embeddings": "sqrt_hidden_size"}
_GEMMA = _GEMMA1 | {"norm_placement": "both"}
_GEMMA_KEYS = (
    *llama_keys("attention_bias", heads=THEIRS, activation="hidden_activation"),
    Key("query_pre_attn_scalar", ("query_pre_attn_scalar",), 256),
)
_GEMMA_CAPS = (
    Key("attn_logit_softcapping", ("attention_softcap",), 50.0),
    Key("final_logit_softcapping", ("logit_softcap",), 30.0),
)


def _stating_layers(config: dict[str, Any]) -> dict[str, Any]:
    """Gemma 4: state what config.json leaves to the code, and which layers have what."""
    config = {"head_dim": 256, "num_key_value_heads": 4, "vocab_size": 262_144} | config
    count = positive_int(config, "num_hidden_layers")
    types = LocalWindows(is_local=every(6)).layer_types(config, count)
    own: dict[str, Any] = next(iter((config.pop("per_layer_config", None) or {}).values()), {})
    width = own.get("head_dim") or config.get("global_head_dim") or 512
    kv_heads = config.get("attention_k_eq_v") and config.get("num_global_key_value_heads")
    kv_heads = own.get("num_key_value_heads") or kv_heads or config["num_key_value_heads"]
    stated = {"global_head_dim": width, "num_global_key_value_heads": kv_heads}
    stated["layer_types"] = [*types[:-1], FULL]
    stated["vocab_size_per_layer_input"] = config["vocab_size"]
    if config.get("rope_parameters") is None:
        stated["rope_parameters"] = _GEMMA4_ROPE
    return config | stated


_GEMMA4_ROPE = {
    SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
}
_SLIDES = Form(
    lambda types, _: [kind == SLIDING for kind in types],
    lambda slides, _: [SLIDING if x else FULL for x in slides],
)
_OR_ZERO = Form(lambda value, _: value or None, lambda value, _: value or 0)
_PER_LAYER = {
    "model.embed_tokens_per_layer.weight": "per_layer/embed_tokens/embedding",
    "model.per_layer_model_projection.weight": "per_layer/projection/kernel",
    "model.per_layer_projection_norm.weight": "per_layer/norm/scale",
    "model.layers.{}.per_layer_input_gate.weight": "layers/per_layer_input_gate/kernel",
    "model.layers.{}.per_layer_projection.weight": "layers/per_layer_projection/kernel",
    "model.layers.{}.post_per_layer_input_norm.weight": "layers/post_per_layer_input_norm/scale",
    "model.layers.{}.layer_scalar": "layers/layer_scalar",
}
_GEMMA4 = Family(
    "gemma4_text",
    (
        *llama_keys(
            "attention_bias",
            heads=THEIRS,
            activation="hidden_activation",
            without=("head_dim", "num_key_value_heads"),
        ),
        Key("global_head_dim", ("head_dim",)),
        Key("num_global_key_value_heads", ("num_key_value_heads",)),
        Key("head_dim", ("alternate_mixer.width",)),
        Key("num_key_value_heads", ("alternate_mixer.kv_heads",)),
        Key("layer_types", ("alternate_layers",), form=_SLIDES),
        Key("attention_k_eq_v", ("self_attention.values_are_keys",), False),
        Key("num_kv_shared_layers", ("shared_kv_layers",), 0),
        Key("use_double_wide_mlp", ("shared_kv_wide_mlp",), False),
        Key("hidden_size_per_layer_input", ("per_layer_width",), 256, form=_OR_ZERO),
        Key("vocab_size_per_layer_input", ("vocab_size",)),
        Key("final_logit_softcapping", ("logit_softcap",), None),
        Key("enable_moe_block", (), False, {False: ()}),
        Key("use_bidirectional_attention", (), None, {None: (), "vision": ()}),
    ),
    more_rows=tuple(Row(theirs, (ours,)) for theirs, ours in _PER_LAYER.items()),
    fixed={
        **{"norm_placement": "both", "scale_embeddings": "sqrt_hidden_size", "qk_norm": True},
        **{"query_pre_attn_scalar": 1.0, "layer_scale": True},
        **{"self_attention.value_norm": True, "alternate_mixer.value_norm": True},
        **dict.fromkeys(("self_attention.type", "alternate_mixer.type"), "grouped_query"),
    },
    windows=LocalWindows(is_local=every(6)),
    local=True,
    upgrade=_stating_layers,
    multimodal=("gemma4",),
)

# Gemma 4 12B, which reads images without a vision tower
_UNIFIED = {"hidden_size_per_layer_input": 0, "sliding_window": 1024}
READ_AS = {
    "gemma4_unified_text": replace(
        _GEMMA4,
        upgrade=lambda given: _stating_layers(_UNIFIED | given),
        multimodal=("gemma4_unified",),
    )
}


GEMMA = (
    Family(
        "gemma2",
        (*_GEMMA_KEYS, *_GEMMA_CAPS),
        fixed=_GEMMA,
        windows=LocalWindows(is_local=every(2)),
    ),
    Family(
        "gemma3_text",
        (*_GEMMA_KEYS, Key("final_logit_softcapping", ("logit_softcap",), None)),
        fixed=_GEMMA | {"qk_norm": True},
        windows=LocalWindows(is_local=every(6, from_config=True)),
        defaults={"rope_theta": 1_000_000.0, "rope_local_base_freq": 10_000.0},
        local=True,
        # which the configs of the multimodal models leave out
        upgrade=lambda given: {"vocab_size": 262_208, "max_position_embeddings": 131_072} | given,
        multimodal=("gemma3",),
    ),
    _GEMMA4,
    Family(
        "gemma",
        (
            *llama_keys("attention_bias", heads=THEIRS, without=("hidden_act",)),
            Key("hidden_act", ("activation",), "gelu_pytorch_tanh", _GELUS),
        ),
        fixed=_GEMMA1,
    ),
    Family(
        "vaultgemma",
        (*_GEMMA_KEYS, *_GEMMA_CAPS),
        fused={"pre_feedforward_layernorm": ["post_attention_layernorm"]},
        fixed=_GEMMA1,
        windows=LocalWindows(is_local=every(2)),
    ),
)
