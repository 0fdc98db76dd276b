"""Dense families with LayerNorm."""

import functools
from typing import Any

from rope_jax.checkpoints.families.base import (
    ACTIVATIONS,
    ATTENTION_BIAS,
    MLP_BIAS,
    PATTERN,
    SIZES,
    Family,
    Key,
    Windows,
    every,
    llama_keys,
    llama_rows,
    module_rows,
)
from rope_jax.checkpoints.weights import Row
from rope_jax.config.model import ModelConfig


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


def _falcon_rows(model: ModelConfig) -> tuple[Row, ...]:
    layer, shared = "transformer.h.{}.", model.norm_placement == "shared"
    modules = {
        "transformer.word_embeddings": ["embed_tokens"],
        "transformer.ln_f": ["norm"],
        layer + ("input_layernorm" if shared else "ln_attn"): ["layers/input_layernorm"],
        f"{layer}ln_mlp": ["layers/post_attention_layernorm"],
        f"{layer}self_attention.query_key_value": [f"layers/self_attn/{x}_proj" for x in "qkv"],
        f"{layer}self_attention.dense": ["layers/self_attn/o_proj"],
        f"{layer}mlp.dense_h_to_4h": ["layers/mlp/up_proj"],
        f"{layer}mlp.dense_4h_to_h": ["layers/mlp/down_proj"],
        "lm_head": ["lm_head"],
    }
    return module_rows(modules, groups=model.kv_heads)


def _falcon_40b(config: dict[str, Any]) -> dict[str, Any]:
    """Falcon 7B's attention and norms, in the keys of Falcon 40B's."""
    heads, norms = config.get("num_attention_heads"), config.get("num_ln_in_parallel_attn")
    is_new = config.get("new_decoder_architecture")
    one_head = not is_new and config.get("multi_query", True)
    kv_heads = 1 if one_head else config.get("num_kv_heads") or heads
    width = config.get("ffn_hidden_size") or 4 * config.get("hidden_size", 0)
    architecture = {"new_decoder_architecture": True, "num_kv_heads": kv_heads}
    norms = (norms or 2) if is_new else 1
    return config | architecture | {"num_ln_in_parallel_attn": norms, "ffn_hidden_size": width}


def _persimmon_rows(model: ModelConfig) -> tuple[Row, ...]:
    named = {
        "self_attn.query_key_value": [f"self_attn.{name}_proj" for name in "qkv"],
        "self_attn.dense": ["self_attn.o_proj"],
        "self_attn.q_layernorm": ["self_attn.q_norm"],
        "self_attn.k_layernorm": ["self_attn.k_norm"],
        "mlp.dense_h_to_4h": ["mlp.up_proj"],
        "mlp.dense_4h_to_h": ["mlp.down_proj"],
    }
    return llama_rows(model, named, "final_layernorm", model.num_attention_heads)


def _layer_norm_keys(activation: str, **changes: Any) -> tuple[Key, ...]:
    """Return the keys of most families with a LayerNorm."""
    of_act = ("hidden_act", activation)
    return llama_keys(activation=of_act, eps=1e-5, norm_eps="layer_norm_eps", **changes)


_PHI = {
    "self_attn.dense": ["self_attn.o_proj"],
    "self_attn.q_layernorm": ["self_attn.q_norm"],
    "self_attn.k_layernorm": ["self_attn.k_norm"],
    "mlp.fc1": ["mlp.up_proj"],
    "mlp.fc2": ["mlp.down_proj"],
}
_BIASES = {
    **{"norm": "layer_norm", "gated_mlp": False},
    **{"qkv_bias": True, "o_bias": True, "mlp_bias": True},
}
_BY_HEAD = {False: False, True: "by_head"}
_COHERE = {"norm": "layer_norm_no_bias", "norm_placement": "shared"}
_COHERE_KEYS = (
    *_layer_norm_keys("silu", tied=True),
    ATTENTION_BIAS,
    Key("logit_scale", ("logit_multiplier",), 0.0625),
)


LAYER_NORM = (
    Family(
        "gpt_neox",
        "GPTNeoXForCausalLM",
        (
            *_layer_norm_keys("gelu", without=("num_key_value_heads", "head_dim")),
            Key("use_parallel_residual", ("parallel_residual",), True),
            Key("attention_bias", ("qkv_bias", "o_bias"), True),
        ),
        rows=_gpt_neox_rows,
        fixed={"norm": "layer_norm", "gated_mlp": False, "mlp_bias": True},
        defaults={"rope_theta": 10_000.0, "partial_rotary_factor": 0.25},
        aliases={"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"},
        partial=True,
    ),
    Family(
        "cohere",
        "CohereForCausalLM",
        (*_COHERE_KEYS, Key("use_qk_norm", ("qk_norm",), False, _BY_HEAD)),
        rows=functools.partial(
            llama_rows,
            fused={f"self_attn.{name}_norm": [f"self_attn.{name}_norms"] for name in "qk"},
        ),
        fixed=_COHERE,
        defaults={"rope_theta": 500_000.0},
        layout="interleaved",
    ),
    Family(
        "cohere2",
        "Cohere2ForCausalLM",
        _COHERE_KEYS,
        fixed=_COHERE,
        windows=Windows(default=4096, types=every(4, PATTERN)),
        defaults={"rope_theta": 10_000.0},
        nope="full",
        layout="interleaved",
        # what these say of Command R7B is how the code is written
        ignored=frozenset(
            {
                *("layer_switch", "order_of_interleaved_layers", "use_embedding_sharing"),
                *("use_gated_activation", "use_parallel_block", "use_parallel_embedding"),
            }
        ),
    ),
    Family(
        "phi",
        "PhiForCausalLM",
        (*_layer_norm_keys("gelu_new"), Key("qk_layernorm", ("qk_norm",), False)),
        rows=functools.partial(llama_rows, fused=_PHI, final_norm="final_layernorm"),
        fixed=_BIASES | {"norm_placement": "shared", "head_bias": True},
        defaults={"rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
        partial=True,
    ),
    Family(
        "stablelm",
        "StableLmForCausalLM",
        (
            *_layer_norm_keys("silu", kv_heads=32, without=("head_dim",)),
            Key("use_qkv_bias", ("qkv_bias",), False),
            Key(
                "use_parallel_residual",
                ("norm_placement",),
                False,
                {False: "before", True: "shared"},
            ),
            Key("qk_layernorm", ("qk_norm",), False, _BY_HEAD),
        ),
        rows=functools.partial(
            llama_rows,
            fused={
                f"self_attn.{name}_layernorm.norms.{{}}": [f"self_attn.{name}_norms"]
                for name in "qk"
            },
        ),
        ignored=frozenset({"rotary_scaling_factor", "use_norm_bias"}),
        fixed={"norm": "layer_norm"},
        defaults={"rope_theta": 10_000.0, "partial_rotary_factor": 0.25},
        partial=True,
    ),
    Family(
        "falcon",
        "FalconForCausalLM",
        (
            *(key for key in SIZES if key.name != "intermediate_size"),
            Key("num_attention_heads", ("num_attention_heads",)),
            Key("num_kv_heads", ("num_key_value_heads",)),
            Key("ffn_hidden_size", ("intermediate_size",)),
            Key("activation", ("activation",), "gelu", ACTIVATIONS),
            Key("layer_norm_epsilon", ("rms_norm_eps",), 1e-5),
            Key("initializer_range", ("initializer_range",), 0.02),
            Key("tie_word_embeddings", ("tie_word_embeddings",), True),
            Key("bias", ("qkv_bias", "o_bias", "mlp_bias"), False),
            Key(
                "num_ln_in_parallel_attn",
                ("parallel_residual", "norm_placement"),
                values={1: (False, "shared"), 2: (True, "before")},
            ),
            Key("new_decoder_architecture", (), values={True: ()}),
            Key("parallel_attn", (), True, {True: ()}),
            Key("alibi", (), False, {False: ()}),
        ),
        rows=_falcon_rows,
        fixed={"norm": "layer_norm", "gated_mlp": False},
        defaults={"rope_theta": 10_000.0, "max_position_embeddings": 2048},
        ignored=frozenset({"multi_query", "_is_quantized"}),
        modern=_falcon_40b,
    ),
    Family(
        "olmo",
        "OlmoForCausalLM",
        (
            *llama_keys(without=("rms_norm_eps",)),  # it is 1e-5
            ATTENTION_BIAS,
            Key("clip_qkv", ("clip_qkv",), None),
        ),
        fixed={"norm": "layer_norm_plain"},
    ),
    Family(
        "nemotron",
        "NemotronForCausalLM",
        (
            *llama_keys(
                activation=("hidden_act", "relu2"),
                eps=1e-5,
                norm_eps="norm_eps",
                initializer_range=0.0134,
            ),
            ATTENTION_BIAS,
            MLP_BIAS,
        ),
        fixed={"norm": "layer_norm_plus_one", "gated_mlp": False},
        defaults={"rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
        partial=True,
    ),
    Family(
        "persimmon",
        "PersimmonForCausalLM",
        (
            *_layer_norm_keys("relu2", without=("num_key_value_heads", "head_dim")),
            Key("qk_layernorm", ("qk_norm",), True),
        ),
        rows=_persimmon_rows,
        fixed=_BIASES,
        ignored=frozenset({"num_key_value_heads"}),
        defaults={"rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
        partial=True,
    ),
    Family(
        "starcoder2",
        "Starcoder2ForCausalLM",
        (
            *llama_keys(
                kv_heads=2,
                activation=("hidden_act", "gelu_pytorch_tanh"),
                norm_eps="norm_epsilon",
                eps=1e-5,
                initializer_range=0.018042,
                tied=True,
            ),
            Key("use_bias", ("qkv_bias", "o_bias", "mlp_bias"), True),
        ),
        rows=functools.partial(
            llama_rows, fused={"mlp.c_fc": ("mlp.up_proj",), "mlp.c_proj": ("mlp.down_proj",)}
        ),
        fixed={"norm": "layer_norm", "gated_mlp": False},
        windows=Windows(),
        ignored=frozenset(
            {"activation_function", "attention_softmax_in_fp32", "layer_norm_epsilon", "mlp_type"}
            | {"norm_type", "rms_norm_eps", "scale_attention_softmax_in_fp32"}
        ),
    ),
    Family(
        "jais2",
        "Jais2ForCausalLM",
        (
            *_layer_norm_keys("relu2"),
            ATTENTION_BIAS._replace(default=True),
            MLP_BIAS._replace(default=True),
        ),
        fixed={"norm": "layer_norm", "gated_mlp": False},
    ),
)
