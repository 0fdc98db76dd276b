"""Command R of Cohere."""

import functools

from rope_jax.checkpoints.families.base import PATTERN, Family, Key, Windows, llama_rows
from rope_jax.checkpoints.families.parts import ATTENTION_BIAS, BY_HEAD, every, layer_norm_keys

_COHERE = {"norm": "layer_norm_no_bias", "norm_placement": "shared"}
_COHERE_KEYS = (
    *layer_norm_keys("silu", tied=True),
    ATTENTION_BIAS,
    Key("logit_scale", ("logit_multiplier",), 0.0625),
)


COHERE = (
    Family(
        "cohere",
        "CohereForCausalLM",
        (*_COHERE_KEYS, Key("use_qk_norm", ("qk_norm",), False, BY_HEAD)),
        rows=functools.partial(
            llama_rows,
            fused={f"self_attn.{name}_norm": [f"self_attn.{name}_norms"] for name in "qk"},
        ),
        fixed=_COHERE,
        layout="interleaved",
    ),
    Family(
        "cohere2",
        "Cohere2ForCausalLM",
        _COHERE_KEYS,
        fixed=_COHERE,
        windows=Windows(default=4096, types=every(4, PATTERN)),
        layout="interleaved",
    ),
)
