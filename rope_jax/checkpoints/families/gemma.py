"""Gemma."""

from rope_jax.checkpoints.families.base import (
    ACTIVATIONS,
    Family,
    Key,
    LocalWindows,
    every,
    llama_keys,
)

# What Gemma 1's configs mean by gelu is its fit; an export writes the first name.
_GELUS = {"gelu_pytorch_tanh": "gelu_tanh"} | ACTIVATIONS | {"gelu": "gelu_tanh"}
_GEMMA1 = {"norm": "rms_norm_plus_one", "scale_embeddings": "sqrt_hidden_size"}
_GEMMA = _GEMMA1 | {"norm_placement": "both"}
_GEMMA_KEYS = (
    *llama_keys(
        heads=8,
        kv_heads=4,
        head_dim=256,
        activation=("hidden_activation", "gelu_pytorch_tanh"),
        tied=True,
        attention_bias=False,
    ),
    Key("query_pre_attn_scalar", ("query_pre_attn_scalar",), 256),
)
_GEMMA_CAPS = (
    Key("attn_logit_softcapping", ("attention_softcap",), 50.0),
    Key("final_logit_softcapping", ("logit_softcap",), 30.0),
)


GEMMA = (
    Family(
        "gemma2",
        "Gemma2ForCausalLM",
        (*_GEMMA_KEYS, *_GEMMA_CAPS),
        fixed=_GEMMA,
        windows=LocalWindows(default=4096, is_local=every(2)),
    ),
    Family(
        "gemma3_text",
        "Gemma3ForCausalLM",
        (*_GEMMA_KEYS, Key("final_logit_softcapping", ("logit_softcap",), None)),
        fixed=_GEMMA | {"qk_norm": True},
        windows=LocalWindows(default=4096, is_local=every(6, from_config=True)),
        defaults={"rope_theta": 1_000_000.0, "rope_local_base_freq": 10_000.0},
        local=True,
        # which the configs of the multimodal models leave out
        upgrade=lambda given: {"vocab_size": 262_208, "max_position_embeddings": 131_072} | given,
        multimodal=("gemma3",),
    ),
    Family(
        "gemma",
        "GemmaForCausalLM",
        (
            *llama_keys(
                heads=16,
                kv_heads=16,
                head_dim=256,
                tied=True,
                attention_bias=False,
                without=("hidden_act",),
            ),
            Key("hidden_act", ("activation",), "gelu_pytorch_tanh", _GELUS),
        ),
        fixed=_GEMMA1,
    ),
    Family(
        "vaultgemma",
        "VaultGemmaForCausalLM",
        (*_GEMMA_KEYS, *_GEMMA_CAPS),
        fused={"pre_feedforward_layernorm": ["post_attention_layernorm"]},
        fixed=_GEMMA1,
        windows=LocalWindows(default=4096, is_local=every(2)),
    ),
)
