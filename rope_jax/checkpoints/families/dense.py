"""The families with one feed-forward for all tokens."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from rope_jax.checkpoints.families.base import (
    ACTIVATIONS,
    FULL,
    SIZES,
    SLIDING,
    Family,
    Key,
    Windows,
    every_layer,
    llama_keys,
    llama_rows,
    module_rows,
)
from rope_jax.checkpoints.weights import Row
from rope_jax.config.model import ModelConfig


def _every(period: int) -> Callable[[Mapping[str, Any], int], list[str]]:
    """Return a function for layer types of which every `period`-th is global."""

    def types(config: Mapping[str, Any], count: int) -> list[str]:
        every = config.get("sliding_window_pattern", config.get("_sliding_window_pattern", period))
        return [SLIDING if (layer + 1) % every else FULL for layer in range(count)]

    return types


def _upper_layers(config: Mapping[str, Any], count: int) -> list[str]:
    """Qwen: the layers from max_window_layers on slide."""
    first = config.get("max_window_layers", 28)
    return [SLIDING if layer >= first else FULL for layer in range(count)]


def _unrotated_layers(config: Mapping[str, Any], count: int) -> list[str]:
    """SmolLM3: the layers without positions slide, where windows are used at all."""
    every = config.get("no_rope_layer_interval", 4)
    rotates = config.get("no_rope_layers") or [(i + 1) % every for i in range(count)]
    return [FULL if own else SLIDING for own in rotates]


_PHI3_FUSED = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
}


def _gpt_neox_rows(model: ModelConfig) -> tuple[Row, ...]:
    layer = "gpt_neox.layers.{}."
    modules = {
        "gpt_neox.embed_in": ["embed_tokens"],
        "gpt_neox.final_layer_norm": ["norm"],
        f"{layer}input_layernorm": ["layers/input_layernorm"],
        f"{layer}post_attention_layernorm": ["layers/post_attention_layernorm"],
        f"{layer}attention.query_key_value": [f"layers/self_attn/{x}_proj" for x in "qkv"],
        f"{layer}attention.dense": ["layers/self_attn/o_proj"],
        f"{layer}mlp.dense_h_to_4h": ["layers/mlp/up_proj"],
        f"{layer}mlp.dense_4h_to_h": ["layers/mlp/down_proj"],
        "embed_out": ["lm_head"],
    }
    return module_rows(modules, groups=model.num_attention_heads)


_ATTENTION_BIAS = Key("attention_bias", ("qkv_bias", "o_bias"), False)
_MLP_BIAS = Key("mlp_bias", ("mlp_bias",), False)
_GEMMA = {"norm": "rms_norm_plus_one", "norm_placement": "both", "scale_embeddings": True}
_GEMMA_ACTIVATION = ("hidden_activation", "gelu_pytorch_tanh")
_GEMMA_KEYS = (
    *llama_keys(heads=8, kv_heads=4, head_dim=256, activation=_GEMMA_ACTIVATION, tied=True),
    _ATTENTION_BIAS,
    Key("query_pre_attn_scalar", ("query_pre_attn_scalar",), 256),
)

DENSE = (
    Family(
        "llama",
        "LlamaForCausalLM",
        (*llama_keys(), _ATTENTION_BIAS, _MLP_BIAS),
        ignored=frozenset({"rope_interleaved"}),  # SmolLM2's
    ),
    Family(
        "mistral",
        "MistralForCausalLM",
        llama_keys(kv_heads=8),
        windows=Windows(default=4096, types=every_layer),
    ),
    Family(
        "qwen3",
        "Qwen3ForCausalLM",
        (*llama_keys(kv_heads=32, head_dim=128), _ATTENTION_BIAS),
        fixed={"qk_norm": True},
        windows=Windows(default=4096, types=_upper_layers, switch=True),
        ignored=frozenset({"max_window_layers"}),
    ),
    Family(
        "qwen2",
        "Qwen2ForCausalLM",
        llama_keys(kv_heads=32),
        fixed={"qkv_bias": True},
        windows=Windows(default=4096, types=_upper_layers, switch=True),
        ignored=frozenset({"max_window_layers", "use_mrope"}),
    ),
    Family(
        "smollm3",
        "SmolLM3ForCausalLM",
        (*llama_keys(kv_heads=4, tied=True), _ATTENTION_BIAS, _MLP_BIAS),
        windows=Windows(types=_unrotated_layers, switch=True),
        defaults={"rope_theta": 2_000_000.0},
        ignored=frozenset({"max_window_layers"}),
        nope=True,
    ),
    Family(
        "phi3",
        "Phi3ForCausalLM",
        llama_keys(eps=1e-5),
        rows=functools.partial(llama_rows, fused=_PHI3_FUSED),
        windows=Windows(),
        # transformers' value counts even beside another one in rope_parameters
        defaults={"original_max_position_embeddings": 4096},
        ignored=frozenset(
            {"attention_bias", "full_attn_mod", "interpolate_factor", "lm_head_bias", "mlp_bias"}
        ),
        partial=True,
        rope_types=("default", "longrope"),
    ),
    Family(
        "gemma2",
        "Gemma2ForCausalLM",
        (
            *_GEMMA_KEYS,
            Key("attn_logit_softcapping", ("attention_softcap",), 50.0),
            Key("final_logit_softcapping", ("logit_softcap",), 30.0),
        ),
        fixed=_GEMMA,
        windows=Windows(default=4096, types=_every(2)),
        ignored=frozenset({"hidden_act", "sliding_window_size"}),
    ),
    Family(
        "gemma3_text",
        "Gemma3ForCausalLM",
        (*_GEMMA_KEYS, Key("final_logit_softcapping", ("logit_softcap",), None)),
        fixed=_GEMMA | {"qk_norm": True},
        windows=Windows(default=4096, types=_every(6)),
        defaults={"rope_theta": 1_000_000.0, "rope_local_base_freq": 10_000.0},
        # transformers' code of Gemma 3 does not apply a cap in attention
        ignored=frozenset({"attn_logit_softcapping", "hidden_act"}),
        local=True,
    ),
    Family(
        "olmo2",
        "Olmo2ForCausalLM",
        (*llama_keys(eps=1e-5), _ATTENTION_BIAS),
        fixed={"norm_placement": "after", "qk_norm": "all_heads"},
    ),
    Family(
        "gpt_neox",
        "GPTNeoXForCausalLM",
        (
            *SIZES,
            Key("num_attention_heads", ("num_attention_heads",)),
            Key("hidden_act", ("activation",), "gelu", ACTIVATIONS),
            Key("layer_norm_eps", ("rms_norm_eps",), 1e-5),
            Key("initializer_range", ("initializer_range",), 0.02),
            Key("tie_word_embeddings", ("tie_word_embeddings",), False),
            Key("use_parallel_residual", ("parallel_residual",), True),
            Key("attention_bias", ("qkv_bias", "o_bias"), True),
        ),
        rows=_gpt_neox_rows,
        fixed={"norm": "layer_norm", "gated_mlp": False, "mlp_bias": True},
        defaults={"rope_theta": 10_000.0, "partial_rotary_factor": 0.25},
        aliases={"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"},
        partial=True,
    ),
)
