"""Dense families with RMSNorm: Llama and what was built after it."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from rope_jax.checkpoints.families.base import (
    ACTIVATIONS,
    ATTENTION_BIAS,
    FULL,
    MLP_BIAS,
    PATTERN,
    SLIDING,
    Family,
    Key,
    Windows,
    every,
    every_layer,
    llama_keys,
    llama_rows,
    module_rows,
    power_of,
)
from rope_jax.checkpoints.weights import Row
from rope_jax.config.model import ModelConfig


def _renamed(**names: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a function for configs whose keys have other names, given with those of Llama's."""
    return lambda config: {names.get(key, key): value for key, value in config.items()}


def _exaone_rows(model: ModelConfig) -> tuple[Row, ...]:
    layer, mlp = "transformer.h.{}.", ("gate_proj", "up_proj", "down_proj")
    modules = {
        "transformer.wte": ["embed_tokens"],
        "transformer.ln_f": ["norm"],
        f"{layer}ln_1": ["layers/input_layernorm"],
        f"{layer}ln_2": ["layers/post_attention_layernorm"],
        **{f"{layer}attn.attention.{x}_proj": [f"layers/self_attn/{x}_proj"] for x in "qkv"},
        f"{layer}attn.attention.out_proj": ["layers/self_attn/o_proj"],
        **{
            f"{layer}mlp.{theirs}": [f"layers/mlp/{ours}"]
            for theirs, ours in zip(("c_fc_0", "c_fc_1", "c_proj"), mlp, strict=True)
        },
        "lm_head": ["lm_head"],
    }
    return module_rows(modules)


def _pattern_of_letters(config: dict[str, Any]) -> dict[str, Any]:
    """EXAONE 4: LLLG, for three local layers before each global one, is 4; 0 is none at all."""
    every = config.get(PATTERN)
    every = len(every) if isinstance(every, str) else every or None
    return config | {PATTERN: every}


def _called_full_attention(config: dict[str, Any]) -> dict[str, Any]:
    """Granite 4: what is full_attention in later configs is attention in its own."""
    found = config.get("layer_types")
    if not isinstance(found, list):
        return config
    return config | {"layer_types": [FULL if kind == "attention" else kind for kind in found]}


def upper_layers(config: Mapping[str, Any], count: int, first: int = 28) -> list[str]:
    """Qwen: the layers from max_window_layers on slide. first: its default."""
    first = config.get("max_window_layers", first)
    return [SLIDING if layer >= first else FULL for layer in range(count)]


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


_GATE_UP: dict[str, tuple[str, ...]] = {"mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj")}
_PHI3_FUSED = _GATE_UP | {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
}


def _both_norms(after_attention: str, after_mlp: str) -> dict[str, tuple[str, ...]]:
    """Return the modules of norms before and after, of which those before are called as Llama's."""
    return {
        after_attention: ("post_attention_layernorm",),
        "post_attention_layernorm": ("pre_feedforward_layernorm",),
        after_mlp: ("post_feedforward_layernorm",),
    }


# What Gemma 1's configs mean by gelu is its fit; an export writes the first name.
_GELUS = {"gelu_pytorch_tanh": "gelu_tanh"} | ACTIVATIONS | {"gelu": "gelu_tanh"}
_QKV_BIAS = Key("attention_bias", ("qkv_bias",), False)
_GEMMA1 = {"norm": "rms_norm_plus_one", "scale_embeddings": "sqrt_hidden_size"}
_GEMMA = _GEMMA1 | {"norm_placement": "both"}
_GEMMA_ACTIVATION = ("hidden_activation", "gelu_pytorch_tanh")
_GEMMA_KEYS = (
    *llama_keys(heads=8, kv_heads=4, head_dim=256, activation=_GEMMA_ACTIVATION, tied=True),
    ATTENTION_BIAS,
    Key("query_pre_attn_scalar", ("query_pre_attn_scalar",), 256),
)
_GEMMA_CAPS = (
    Key("attn_logit_softcapping", ("attention_softcap",), 50.0),
    Key("final_logit_softcapping", ("logit_softcap",), 30.0),
)


def granite_keys(logit_power: int, attention: float | None) -> tuple[Key, ...]:
    """Return Granite's multipliers. attention: the default of that of attention's logits."""
    return (
        Key("embedding_multiplier", ("scale_embeddings",), 1.0, form=power_of(1)),
        Key("residual_multiplier", ("residual_multiplier",), 1.0, form=power_of(1)),
        Key("attention_multiplier", ("query_pre_attn_scalar",), attention, form=power_of(-2)),
        Key("logits_scaling", ("logit_multiplier",), 1.0, form=power_of(logit_power)),
    )


RMS_NORM = (
    Family(
        "llama",
        "LlamaForCausalLM",
        (*llama_keys(), ATTENTION_BIAS, MLP_BIAS),
        ignored=frozenset({"rope_interleaved"}),  # SmolLM2's
    ),
    Family(
        "mistral",
        "MistralForCausalLM",
        llama_keys(kv_heads=8),
        windows=Windows(default=4096, types=every_layer),
        multimodal=("mistral3",),
    ),
    Family(
        "qwen3",
        "Qwen3ForCausalLM",
        (*llama_keys(kv_heads=32, head_dim=128), ATTENTION_BIAS),
        fixed={"qk_norm": True},
        windows=Windows(default=4096, types=upper_layers, switch=True),
        ignored=frozenset({"max_window_layers"}),
    ),
    Family(
        "qwen2",
        "Qwen2ForCausalLM",
        llama_keys(kv_heads=32),
        fixed={"qkv_bias": True},
        windows=Windows(default=4096, types=upper_layers, switch=True),
        ignored=frozenset({"max_window_layers", "use_mrope"}),
    ),
    Family(
        "smollm3",
        "SmolLM3ForCausalLM",
        (*llama_keys(kv_heads=4, tied=True), ATTENTION_BIAS, MLP_BIAS),
        windows=Windows(types=_unrotated_layers, switch=True),
        defaults={"rope_theta": 2_000_000.0},
        ignored=frozenset({"max_window_layers"}),
        nope="listed",
        modern=_types_go_first,
    ),
    Family(
        "phi3",
        "Phi3ForCausalLM",
        llama_keys(eps=1e-5),
        rows=functools.partial(llama_rows, fused=_PHI3_FUSED),
        windows=Windows(),
        # at the top level, where alone it counts, whatever is in rope_parameters
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
        (*_GEMMA_KEYS, *_GEMMA_CAPS),
        fixed=_GEMMA,
        windows=Windows(default=4096, types=every(2)),
        ignored=frozenset({"hidden_act", "sliding_window_size"}),
    ),
    Family(
        "gemma3_text",
        "Gemma3ForCausalLM",
        (*_GEMMA_KEYS, Key("final_logit_softcapping", ("logit_softcap",), None)),
        fixed=_GEMMA | {"qk_norm": True},
        windows=Windows(default=4096, types=every(6, PATTERN)),
        defaults={"rope_theta": 1_000_000.0, "rope_local_base_freq": 10_000.0},
        # transformers' code of Gemma 3 does not apply a cap in attention
        ignored=frozenset({"attn_logit_softcapping", "hidden_act"}),
        local=True,
        # which the configs of the multimodal models leave out
        modern=lambda given: {"vocab_size": 262_208, "max_position_embeddings": 131_072} | given,
        multimodal=("gemma3",),
    ),
    Family(
        "olmo2",
        "Olmo2ForCausalLM",
        (*llama_keys(eps=1e-5), ATTENTION_BIAS),
        fixed={"norm_placement": "after", "qk_norm": "all_heads"},
    ),
    Family(
        "gemma",
        "GemmaForCausalLM",
        (
            *llama_keys(heads=16, kv_heads=16, head_dim=256, tied=True, without=("hidden_act",)),
            Key("hidden_act", ("activation",), "gelu_pytorch_tanh", _GELUS),
            ATTENTION_BIAS,
        ),
        fixed=_GEMMA1,
        ignored=frozenset({"hidden_activation"}),
    ),
    Family(
        "vaultgemma",
        "VaultGemmaForCausalLM",
        (*_GEMMA_KEYS, *_GEMMA_CAPS),
        rows=functools.partial(
            llama_rows, fused={"pre_feedforward_layernorm": ("post_attention_layernorm",)}
        ),
        fixed=_GEMMA1,
        windows=Windows(default=4096, types=every(2)),
    ),
    Family(
        "granite",
        "GraniteForCausalLM",
        (*llama_keys(), ATTENTION_BIAS, MLP_BIAS, *granite_keys(-1, 1.0)),
    ),
    Family(
        "granitemoehybrid",
        "GraniteMoeHybridForCausalLM",
        (
            *llama_keys(without=("intermediate_size",)),
            Key("shared_intermediate_size", ("intermediate_size",), 1024),
            ATTENTION_BIAS,
            *granite_keys(-1, 1.0),
            Key("num_local_experts", (), values={0: ()}),
            Key("position_embedding_type", (), None, {"rope": ()}),
        ),
        rows=functools.partial(
            llama_rows,
            fused={
                "shared_mlp.input_linear": ("mlp.gate_proj", "mlp.up_proj"),
                "shared_mlp.output_linear": ("mlp.down_proj",),
            },
        ),
        windows=Windows(types=lambda _, count: [FULL] * count, exist=False),
        # of layers and feed-forwards that these models lack
        ignored=frozenset(
            {
                *("intermediate_size", "num_experts_per_tok", "normalization_function"),
                *("output_router_logits", "time_step_limit"),
                *(f"mamba_{name}" for name in ("chunk_size", "conv_bias", "d_conv", "d_head")),
                *(f"mamba_{name}" for name in ("d_state", "expand", "n_groups", "n_heads")),
                "mamba_proj_bias",
            }
        ),
        modern=_called_full_attention,
    ),
    Family(
        "hyperclovax",
        "HyperCLOVAXForCausalLM",
        (
            *llama_keys(),
            ATTENTION_BIAS,
            MLP_BIAS,
            *granite_keys(1, None),
            Key("use_post_norm", ("norm_placement",), True, {True: "both"}),
        ),
        rows=functools.partial(llama_rows, fused=_both_norms("post_norm1", "post_norm2")),
    ),
    Family(
        "glm",
        "GlmForCausalLM",
        (*llama_keys(kv_heads=2, head_dim=128, eps=1.5625e-7), _QKV_BIAS._replace(default=True)),
        rows=functools.partial(llama_rows, fused=_GATE_UP),
        defaults={"partial_rotary_factor": 0.5},
        layout="interleaved",
        partial=True,
    ),
    Family(
        "glm4",
        "Glm4ForCausalLM",
        (*llama_keys(kv_heads=2, head_dim=128, eps=1.5625e-7), _QKV_BIAS._replace(default=True)),
        rows=functools.partial(
            llama_rows,
            fused=_GATE_UP | _both_norms("post_self_attn_layernorm", "post_mlp_layernorm"),
        ),
        fixed={"norm_placement": "both"},
        defaults={"partial_rotary_factor": 0.5},
        layout="interleaved",
        partial=True,
    ),
    Family(
        "olmo3",
        "Olmo3ForCausalLM",
        (*llama_keys(eps=1e-5), ATTENTION_BIAS),
        fixed={"norm_placement": "after", "qk_norm": "all_heads"},
        windows=Windows(default=4096, types=every(4)),
        local=True,
    ),
    Family(
        "seed_oss",
        "SeedOssForCausalLM",
        (
            *llama_keys(kv_heads=8, head_dim=128),
            _QKV_BIAS._replace(default=True),
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
        ignored=frozenset({"use_rmsnorm"}),
    ),
    Family(
        "helium",
        "HeliumForCausalLM",
        (*llama_keys(kv_heads=20, head_dim=128, eps=1e-8), _QKV_BIAS, MLP_BIAS),
        layout="interleaved",
    ),
    Family(
        "exaone",
        "ExaoneForCausalLM",
        (*llama_keys(kv_heads=8, eps=1e-5), ATTENTION_BIAS, MLP_BIAS),
        rows=_exaone_rows,
        defaults={"rope_theta": 500_000.0},
        modern=_renamed(
            num_layers="num_hidden_layers",
            layer_norm_epsilon="rms_norm_eps",
            activation_function="hidden_act",
        ),
    ),
    Family(
        "internlm3",
        "InternLM3ForCausalLM",
        (*llama_keys(kv_heads=2, head_dim=128, eps=1e-5), ATTENTION_BIAS, MLP_BIAS),
        modern=_renamed(qkv_bias="attention_bias", bias="mlp_bias"),
    ),
    Family(
        "exaone4",
        "Exaone4ForCausalLM",
        llama_keys(kv_heads=32, eps=1e-5),
        fixed={"norm_placement": "after", "qk_norm": True},
        windows=Windows(default=4096, types=every(4, PATTERN)),
        nope="full",
        modern=_pattern_of_letters,
    ),
    Family(
        "ministral3",
        "Ministral3ForCausalLM",
        llama_keys(kv_heads=8, head_dim=128, eps=1e-5),
        windows=Windows(),
        defaults={
            "rope_scaling": {
                **{"rope_type": "yarn", "rope_theta": 1_000_000.0, "factor": 16.0},
                **{"original_max_position_embeddings": 16_384, "llama_4_scaling_beta": 0.1},
                **{"mscale": 1.0, "mscale_all_dim": 1.0},
            }
        },
        rope_types=("yarn",),
        multimodal=("mistral3",),
        ministral=True,
    ),
    Family(
        "ministral",
        "MinistralForCausalLM",
        llama_keys(kv_heads=8),
        windows=Windows(default=4096, types=every_layer),
    ),
)
