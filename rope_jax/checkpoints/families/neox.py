"""GPT-NeoX, Phi, Command R of Cohere, and others with LayerNorm or fused projections."""

from typing import Any

from rope_jax.checkpoints.families.base import (
    ACTIVATIONS,
    ALL_BIASES,
    FUSED,
    GATE_UP,
    OUTSIDE,
    REQUIRED,
    SIZES,
    Family,
    Key,
    LocalWindows,
    every,
    keys_of,
    llama_keys,
    llama_rows,
)
from rope_jax.checkpoints.tensors import Row
from rope_jax.config.model import ModelConfig


def _fused_modules(attention: str) -> dict[str, list[str]]:
    """Return the modules of a layer in which queries, keys and values are one."""
    return {
        f"{attention}.query_key_value": [f"self_attn.{name}_proj" for name in "qkv"],
        f"{attention}.dense": ["self_attn.o_proj"],
        "mlp.dense_h_to_4h": ["mlp.up_proj"],
        "mlp.dense_4h_to_h": ["mlp.down_proj"],
    }


def _falcon_rows(model: ModelConfig) -> tuple[Row, ...]:
    """Return the rows of Falcon, whose norms are called otherwise where there are two."""
    fused = _fused_modules("self_attention")
    if model.norm_placement != "shared":
        fused |= {"ln_attn": ["input_layernorm"], "ln_mlp": ["post_attention_layernorm"]}
    outside = OUTSIDE["falcon"]
    return llama_rows(fused, outside, model.kv_heads)


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


_COHERE = {"norm": "layer_norm_no_bias", "norm_placement": "shared"}
_COHERE_KEYS = (
    *llama_keys("attention_bias", norm_eps="layer_norm_eps"),
    Key("logit_scale", ("logit_multiplier",), 0.0625),
)
COHERE = (
    Family(
        "cohere",
        (*_COHERE_KEYS, Key("use_qk_norm", ("qk_norm",), False, {False: False, True: "by_head"})),
        fused={f"self_attn.{name}_norm": [f"self_attn.{name}_norms"] for name in "qk"},
        fixed=_COHERE,
        layout="interleaved",
    ),
    Family(
        "cohere2",
        _COHERE_KEYS,
        fixed=_COHERE,
        windows=LocalWindows(is_local=every(4, from_config=True)),
        layout="interleaved",
    ),
)
PHI = (
    Family(
        "phi3",
        llama_keys(),
        fused=GATE_UP | {"self_attn.qkv_proj": [f"self_attn.{x}_proj" for x in "qkv"]},
        windows=LocalWindows(),
        # at the top level, where alone it counts, whatever is in rope_parameters
        defaults={"original_max_position_embeddings": 4096},
        rope_types=("default", "longrope"),
    ),
    Family(
        "phi",
        (*llama_keys(norm_eps="layer_norm_eps"), Key("qk_layernorm", ("qk_norm",), False)),
        fused=FUSED["phi"],
        outside={"norm": "model.final_layernorm"},
        fixed=ALL_BIASES | {"norm_placement": "shared", "head_bias": True},
        defaults={"partial_rotary_factor": 0.5},
    ),
)
_OWN_HEADS = ("num_key_value_heads", "head_dim")
NEOX = (
    Family(
        "gpt_neox",
        (
            *llama_keys("attention_bias", norm_eps="layer_norm_eps", without=_OWN_HEADS),
            Key("use_parallel_residual", ("parallel_residual",), True),
        ),
        fused=_fused_modules("attention"),
        outside=OUTSIDE["gpt_neox"],
        by_head=True,
        fixed={"norm": "layer_norm", "gated_mlp": False, "mlp_bias": True},
        defaults={"rope_theta": 10_000.0, "partial_rotary_factor": 0.25},
        aliases={"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"},
    ),
    Family(
        "falcon",
        (
            *(key for key in SIZES if key.name != "intermediate_size"),
            Key("num_attention_heads", ("num_attention_heads",), REQUIRED),
            Key("num_kv_heads", ("num_key_value_heads",)),
            Key("ffn_hidden_size", ("intermediate_size",)),
            Key("activation", ("activation",), "gelu", ACTIVATIONS),
            Key("layer_norm_epsilon", ("rms_norm_eps",), 1e-5),
            *keys_of("initializer_range", "tie_word_embeddings"),
            Key("bias", ("qkv_bias", "o_bias", "mlp_bias"), False),
            Key("num_ln_in_parallel_attn", ("parallel_residual", "norm_placement"),
                values={1: (False, "shared"), 2: (True, "before")}),
            Key("new_decoder_architecture", (), REQUIRED, {True: ()}),
            Key("parallel_attn", (), True, {True: ()}),
            Key("alibi", (), False, {False: ()}),
        ),
        other_rows=_falcon_rows,
        fixed={"norm": "layer_norm", "gated_mlp": False},
        defaults={"max_position_embeddings": 2048},
        upgrade=_falcon_40b,
    ),
    Family(
        "persimmon",
        (
            *llama_keys(norm_eps="layer_norm_eps", without=_OWN_HEADS),
            Key("qk_layernorm", ("qk_norm",), True),
        ),
        fused=_fused_modules("self_attn")
        | {f"self_attn.{name}_layernorm": [f"self_attn.{name}_norm"] for name in "qk"},
        outside={"norm": "model.final_layernorm"},
        by_head=True,
        fixed=ALL_BIASES,
        defaults={"partial_rotary_factor": 0.5},
    ),
    Family(
        "stablelm",
        (
            *llama_keys(norm_eps="layer_norm_eps", without=("head_dim",)),
            Key("use_qkv_bias", ("qkv_bias",), False),
            Key("use_parallel_residual", ("norm_placement",), False,
                {False: "before", True: "shared"}),
            Key("qk_layernorm", ("qk_norm",), False, {False: False, True: "by_head"}),
        ),
        fused={
            f"self_attn.{name}_layernorm.norms.{{}}": [f"self_attn.{name}_norms"] for name in "qk"
        },
        fixed={"norm": "layer_norm"},
        defaults={"partial_rotary_factor": 0.25},
    ),
    Family(
        "starcoder2",
        (
            *llama_keys(norm_eps="norm_epsilon"),
            Key("use_bias", ("qkv_bias", "o_bias", "mlp_bias"), True),
        ),
        fused={"mlp.c_fc": ["mlp.up_proj"], "mlp.c_proj": ["mlp.down_proj"]},
        fixed={"norm": "layer_norm", "gated_mlp": False},
        windows=LocalWindows(),
    ),
    Family(
        "nemotron",
        llama_keys("attention_bias", "mlp_bias", norm_eps="norm_eps"),
        fixed={"norm": "layer_norm_plus_one", "gated_mlp": False},
        defaults={"partial_rotary_factor": 0.5},
    ),
    Family(
        "jais2",
        llama_keys("attention_bias", "mlp_bias", norm_eps="layer_norm_eps"),
        fixed={"norm": "layer_norm", "gated_mlp": False},
    ),
)  # fmt: skip
