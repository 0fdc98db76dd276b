"""EXAONE."""

from typing import Any

from rope_jax.checkpoints.families.base import (
    PATTERN,
    Family,
    ModelSizes,
    Windows,
    every,
    llama_keys,
    module_rows,
    renamed,
)
from rope_jax.checkpoints.tensors import Row


def _exaone_rows(model: ModelSizes) -> tuple[Row, ...]:
    layer = "transformer.h.{}."
    modules = {
        "transformer.wte": ["embed_tokens"],
        "transformer.ln_f": ["norm"],
        f"{layer}ln_1": ["layers/input_layernorm"],
        f"{layer}ln_2": ["layers/post_attention_layernorm"],
        **{f"{layer}attn.attention.{x}_proj": [f"layers/self_attn/{x}_proj"] for x in "qkv"},
        f"{layer}attn.attention.out_proj": ["layers/self_attn/o_proj"],
        f"{layer}mlp.c_fc_0": ["layers/mlp/gate_proj"],
        f"{layer}mlp.c_fc_1": ["layers/mlp/up_proj"],
        f"{layer}mlp.c_proj": ["layers/mlp/down_proj"],
        "lm_head": ["lm_head"],
    }
    return module_rows(modules)


def _pattern_of_letters(config: dict[str, Any]) -> dict[str, Any]:
    """EXAONE 4: LLLG, for three local layers before each global one, is 4; 0 is none at all."""
    every = config.get(PATTERN)
    every = len(every) if isinstance(every, str) else every or None
    return config | {PATTERN: every}


EXAONE = (
    Family(
        "exaone",
        "ExaoneForCausalLM",
        llama_keys(kv_heads=8, eps=1e-5, attention_bias=False, mlp_bias=False),
        other_rows=_exaone_rows,
        upgrade=renamed(
            num_layers="num_hidden_layers",
            layer_norm_epsilon="rms_norm_eps",
            activation_function="hidden_act",
        ),
    ),
    Family(
        "exaone4",
        "Exaone4ForCausalLM",
        llama_keys(kv_heads=32, eps=1e-5),
        fixed={"norm_placement": "after", "qk_norm": True},
        windows=Windows(default=4096, is_local=every(4, from_config=True)),
        upgrade=_pattern_of_letters,
    ),
)
