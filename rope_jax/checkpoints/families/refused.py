"""Model types that are known, and that no entry of the table can describe."""

_HYBRID = "has layers of {}, which have no positions to scale"
_REASONS = {
    _HYBRID.format("linear attention (Gated DeltaNet)"): (
        *("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"),
        *("olmo_hybrid", "kimi_linear", "bailing_hybrid"),
    ),
    _HYBRID.format("linear attention (Lightning Attention)"): ("minimax",),
    _HYBRID.format("a state space model (Mamba)"): (
        *("mamba", "mamba2", "falcon_mamba", "jamba", "bamba", "falcon_h1", "zamba", "zamba2"),
        "nemotron_h",
    ),
    _HYBRID.format("convolutions"): ("lfm2", "lfm2_moe", "lfm3"),
    _HYBRID.format("recurrences"): ("recurrent_gemma", "rwkv", "xlstm"),
    "has several residual streams (AltUp) and embeddings in every layer, which the decoder lacks": (
        *("gemma3n", "gemma3n_text"),
    ),
    "has wider heads in some layers, which the decoder lacks": ("gemma4", "gemma4_text"),
    "has an activation with learned numbers (xIELU), which the decoder lacks": ("apertus",),
    "rotates backwards and normalizes embeddings, which the decoder does not": ("nanochat",),
    "normalizes queries and keys with weights after their rotation, which the decoder lacks": (
        *("hunyuan_v1_dense", "hunyuan_v1_moe"),
    ),
    "has learned positions, or biases in their place, and no rotation": (
        *("gpt2", "gpt_neo", "gpt_bigcode", "opt", "biogpt", "bloom", "mpt"),
    ),
}
REFUSED = {kind: reason for reason, kinds in _REASONS.items() for kind in kinds}
"""Why, by model_type."""
