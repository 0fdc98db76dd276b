"""Command R of Cohere."""

from rope_jax.checkpoints.families.base import Family, Key, LocalWindows, every, llama_keys

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
        windows=LocalWindows(default=4096, is_local=every(4, from_config=True)),
        layout="interleaved",
    ),
)
