"""What the code of model types does about positions that their config need not say."""

DEFAULT_BASES = {
    model_type: base
    for base, model_types in (
        (10_000.0, ("cohere2", "deepseek_v2", "deepseek_v3", "exaone_moe", "falcon", "gemma",
                    "gemma2", "glm4_moe_lite", "granite", "hunyuan_v1_dense",
                    "hunyuan_v1_moe", "llama", "mistral", "nanochat", "nemotron",
                    "olmo", "olmo2", "persimmon", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3",
                    "qwen3_moe", "stablelm", "starcoder2", "youtu")),
        (150_000.0, ("gpt_oss",)),
        (500_000.0, ("cohere", "ernie4_5_moe", "exaone", "llama4_text")),
        (1_000_000.0, ("mixtral", "phimoe", "solar_open")),
        (2_000_000.0, ("smollm3",)),
        (5_000_000.0, ("minimax_m2",)),
    )
    for model_type in model_types
}  # fmt: skip
"""The base if a config lacks it. For other types that is an error: 10,000 would spoil a model."""

DERIVES_HEAD_DIM = {
    *("apertus", "arcee", "bamba", "bitnet", "chameleon", "cohere", "cohere2", "diffllama"),
    *("dots1", "ernie4_5_moe", "exaone", "exaone4", "exaone_moe", "falcon", "falcon_h1"),
    *("flex_olmo", "glm4_moe", "glm4v_moe_text", "glm4v_text", "gpt_neox", "gpt_neox_japanese"),
    *("granite", "granitemoe", "granitemoehybrid", "granitemoeshared", "hunyuan_v1_dense"),
    *("hunyuan_v1_moe", "hyperclovax", "jais2", "lfm2", "lfm2_moe", "llama", "minimax"),
    *("ministral", "mistral", "mixtral", "mllama_text_model", "modernbert-decoder", "nanochat"),
    *("nemotron", "olmo", "olmo2", "olmo3", "olmo_hybrid", "olmoe", "persimmon", "phi", "phi3"),
    *("phi4_multimodal", "phimoe", "qwen2", "qwen2_5_vl_text", "qwen2_moe", "qwen2_vl_text"),
    *("qwen3_moe", "recurrent_gemma", "smollm3", "stablelm", "starcoder2"),
}
"""Types whose heads are hidden_size / num_attention_heads wide if their config does not say.

Others have a default of their own (Gemma 256, Qwen 3 128), so deriving theirs would be a guess.
"""

ROTATES_PART = {
    *("bamba", "glm", "glm4", "glm4_moe", "glm4v_moe_text", "gpt_neox", "mistral4", "nemotron"),
    *("persimmon", "phi", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"),
    *("recurrent_gemma", "stablelm"),
}
"""Types that rotate part of the head even if their config does not say so."""

MAY_ROTATE_PART = ROTATES_PART | {
    *("glm4_moe_lite", "glm4v_text", "gpt_neox_japanese", "minimax_m2", "phi3", "phi4_multimodal"),
    *("solar_open",),
}
"""Types that rotate part of the head if their config says so, also unscaled."""

ROTATES_WHOLE = (
    {*DEFAULT_BASES, *DERIVES_HEAD_DIM, "ernie4_5", "gemma3_text", "helium", "internlm3"}
    | {"ministral3", "seed_oss", "vaultgemma"}
) - MAY_ROTATE_PART
"""Types that, when unscaled, rotate the whole head, whatever their config says."""

GLOBAL_LAYERS_UNROTATED = {
    *("afmoe", "cohere2", "cohere2_moe", "exaone4", "exaone4_5", "exaone_moe", "flint", "kolibri1")
}
"""Types whose layers without a sliding window do not rotate; their config omits it."""

EVERY_FOURTH_UNROTATED = {"llama4", "llama4_text", "smollm3"}
"""Types in which every fourth layer does not rotate, unless their config lists others."""

UNROTATED_QUERIES_SCALED = {"llama4", "llama4_text"}
"""Types whose layers without rotation scale their queries by position."""

QUERIES_SCALED = {"ministral3", "mistral4"}
"""Types whose code reads llama_4_scaling_beta."""

SOFTMAX_SCALED = {*("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "youtu")}
"""Types whose logits are multiplied by `softmax_scale`."""
