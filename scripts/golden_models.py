"""The tiny models of `golden_checkpoints.py`: every family with every rope type that it accepts.

A family is one function of its model_type, listed in `MODELS`. It yields (name, settings of its
config class, lengths of the texts).
"""

from collections.abc import Iterator
from typing import Any

Settings = dict[str, Any]
Models = Iterator[tuple[str, Settings, tuple[int, ...]]]

VOCABULARY = 64
WINDOW = 32
"""The length for which the scaled models were "trained"."""
LENGTHS = (24, 80)
"""Inside and past the window."""
AT_THE_SWITCH = (WINDOW, WINDOW + 1, 80)
FAR = (600,)


def tiny(**settings: Any) -> Settings:
    """Return what most models share: 4 heads of 12 dimensions, 2 of keys and values."""
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4 * WINDOW,
        "pad_token_id": None,
        "bos_token_id": 1,
        "eos_token_id": 2,
    } | settings


def scaled(kind: str, pairs: int, theta: float = 10000.0) -> Settings:
    """Return rope_parameters of one type, extending WINDOW four times."""
    own: dict[str, Settings] = {
        "default": {},
        "linear": {"factor": 4.0},
        "dynamic": {"factor": 4.0},
        "yarn": {"factor": 4.0, "original_max_position_embeddings": WINDOW},
        "llama3": {
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": WINDOW,
        },
        "longrope": {
            "factor": 4.0,
            "original_max_position_embeddings": WINDOW,
            "short_factor": [round(1.0 + 0.05 * pair, 2) for pair in range(pairs)],
            "long_factor": [round(1.2 + 1.1 * pair, 2) for pair in range(pairs)],
        },
        "proportional": {"partial_rotary_factor": 0.5, "factor": 2.0},
    }
    return {"rope_type": kind, "rope_theta": theta} | own[kind]


TYPES = ("default", "linear", "dynamic", "yarn", "llama3", "longrope", "proportional")


def every_type(base: Settings, pairs: int, theta: float = 10000.0, **rope: Any) -> Models:
    """Yield (name, settings, text lengths) of a model with each rope type."""
    for kind in TYPES:
        longest = WINDOW if kind == "dynamic" else 4 * WINDOW
        parameters = scaled(kind, pairs, theta) | rope
        settings = base | {"max_position_embeddings": longest, "rope_parameters": parameters}
        yield kind, settings, AT_THE_SWITCH if kind in ("dynamic", "longrope") else LENGTHS


def llama() -> Models:
    yield from every_type(tiny(rms_norm_eps=1e-5), 6)
    llama3 = scaled("llama3", 6, 500000.0)
    yield "biases", tiny(attention_bias=True, mlp_bias=True), LENGTHS
    yield "tied", tiny(tie_word_embeddings=True, rope_parameters=llama3), LENGTHS
    wide = tiny(head_dim=16, num_key_value_heads=4, rope_parameters=scaled("linear", 8))
    yield "head_dim", wide, LENGTHS
    yarn = scaled("yarn", 6) | {
        "beta_fast": 4.0,
        "beta_slow": 0.5,
        "mscale": 0.8,
        "mscale_all_dim": 0.4,
        "truncate": False,
    }
    yield "yarn_settings", tiny(rope_parameters=yarn), LENGTHS
    given = scaled("longrope", 6) | {"attention_factor": 1.4}
    yield "longrope_attention_factor", tiny(rope_parameters=given), LENGTHS


def mistral() -> Models:
    # 48: shorter than the long text, so far keys are hidden, but longer than the trained window
    yield from every_type(tiny(sliding_window=48), 6, 1000000.0)
    yield "short_window", tiny(sliding_window=16, rope_parameters=scaled("yarn", 6)), LENGTHS
    yield "no_window", tiny(sliding_window=None, head_dim=16), LENGTHS
    # with layer_types, AutoModel reads "mistral" as Ministral, where only some layers slide
    kinds = ["sliding_attention", "full_attention"]
    yield "layer_types", tiny(sliding_window=16, layer_types=kinds), LENGTHS


def qwen2() -> Models:
    none = {"bos_token_id": None, "eos_token_id": None}
    yield from every_type(tiny(**none), 6, 1000000.0)
    three = tiny(num_hidden_layers=3, use_sliding_window=True, sliding_window=16, **none)
    yield "sliding", three | {"max_window_layers": 1}, LENGTHS
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    yield "layer_types", three | {"layer_types": kinds}, LENGTHS
    yield "tied", tiny(tie_word_embeddings=True, **none), LENGTHS


def qwen3() -> Models:
    own = tiny(hidden_size=32, head_dim=16, bos_token_id=None, eos_token_id=None)
    yield from every_type(own, 8, 1000000.0)
    yield "biases", own | {"attention_bias": True, "tie_word_embeddings": True}, LENGTHS
    sliding = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}
    yield "sliding", own | sliding, LENGTHS


def smollm3() -> Models:
    own = tiny(num_hidden_layers=4)  # with the default interval, the fourth layer has no positions
    yield from every_type(own, 6, 2000000.0)
    some = {"no_rope_layers": [0, 1, 0, 1], "rope_parameters": scaled("yarn", 6, 5000000.0)}
    yield "no_rope_layers", own | some, LENGTHS
    untied = own | {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True}
    yield "biases", untied, LENGTHS
    sliding = {"use_sliding_window": True, "sliding_window": 16, "no_rope_layer_interval": 2}
    yield "sliding", own | sliding, LENGTHS
    kinds = ["sliding_attention", "full_attention"] * 2  # these count without use_sliding_window
    yield "layer_types", own | {"layer_types": kinds, "sliding_window": 16}, LENGTHS


def phi3() -> Models:
    own = tiny(original_max_position_embeddings=WINDOW)
    yield "default", own, LENGTHS
    longrope = scaled("longrope", 6)
    del longrope["factor"]  # as in Phi-3's configs: the ratio of the two lengths
    yield "longrope", own | {"rope_parameters": longrope}, AT_THE_SWITCH
    wide = own | {"num_attention_heads": 3, "num_key_value_heads": 1}  # 16 dimensions per head
    part = {"partial_rotary_factor": 0.75}
    yield "partial", wide | {"rope_parameters": scaled("default", 6) | part}, LENGTHS
    yield (
        "partial_longrope",
        wide | {"rope_parameters": longrope | part},
        AT_THE_SWITCH,
    )
    given = {"rope_parameters": scaled("longrope", 6) | {"attention_factor": 1.25}}
    yield "longrope_attention_factor", own | given | {"sliding_window": 20}, LENGTHS
    far = wide | {"max_position_embeddings": 1024, "tie_word_embeddings": True}
    yield "far", far | {"rope_parameters": scaled("default", 6) | part}, FAR
    far_scaled = far | {"original_max_position_embeddings": 512}
    yield "far_longrope", far_scaled | {"rope_parameters": longrope | part}, FAR


def gemma2() -> Models:
    own = tiny(
        head_dim=16,
        query_pre_attn_scalar=24,
        sliding_window=16,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0,
        num_hidden_layers=3,
    )
    yield from every_type(own, 8)
    uncapped = {"attn_logit_softcapping": None, "final_logit_softcapping": None}
    yield "no_caps", own | uncapped | {"attention_bias": True}, LENGTHS
    untied = {"tie_word_embeddings": False, "layer_types": ["full_attention"] * 3}
    yield "all_full", own | untied, LENGTHS


def gemma3_text() -> Models:
    own = tiny(
        head_dim=16,
        query_pre_attn_scalar=24,
        sliding_window=16,
        num_hidden_layers=3,
        sliding_window_pattern=3,  # the third layer is global
    )
    for name, settings, lengths in every_type(own, 8, 1000000.0):
        parts = {
            "full_attention": settings["rope_parameters"],
            "sliding_attention": scaled("default", 8, 10000.0),
        }
        yield name, settings | {"rope_parameters": parts}, lengths
    capped = {"final_logit_softcapping": 3.0, "attention_bias": True, "num_hidden_layers": 7}
    # transformers 5.23 ignores this cap in Gemma 3
    capped |= {"attn_logit_softcapping": 2.0, "sliding_window_pattern": 6}
    yield "caps", own | capped, LENGTHS
    vision = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    vision |= {"num_attention_heads": 1, "image_size": 4, "patch_size": 1}
    parts = {"text_config": own, "vision_config": vision, "mm_tokens_per_image": 4}
    yield "multimodal", {"model_type": "gemma3"} | parts, LENGTHS


def gpt_neox() -> Models:
    own = tiny(hidden_size=64, bos_token_id=0, eos_token_id=0)  # 16 dimensions per head
    del own["num_key_value_heads"]
    yield from every_type(own, 4, partial_rotary_factor=0.5)
    quarter = scaled("default", 2) | {"partial_rotary_factor": 0.25}
    yield "quarter", own | {"rope_parameters": quarter}, LENGTHS
    whole = scaled("linear", 8) | {"partial_rotary_factor": 1.0}
    in_turn = {"use_parallel_residual": False, "rope_parameters": whole}
    yield "sequential", own | in_turn, LENGTHS
    plain = {"attention_bias": False, "tie_word_embeddings": True, "hidden_act": "gelu_fast"}
    yield "no_attention_bias", own | plain, LENGTHS
    yield "far", own | {"max_position_embeddings": 1024, "rope_parameters": quarter}, FAR
    far_scaled = scaled("yarn", 4) | {"partial_rotary_factor": 0.5}
    far_scaled |= {"factor": 2.0, "original_max_position_embeddings": 512}
    scaled_up = {"max_position_embeddings": 1024, "rope_parameters": far_scaled}
    yield "far_yarn", own | scaled_up, FAR


def olmo2() -> Models:
    own = tiny(bos_token_id=None)
    yield from every_type(own, 6, 500000.0)
    yield "biases", own | {"attention_bias": True, "tie_word_embeddings": True}, LENGTHS
    yield "all_key_heads", own | {"num_key_value_heads": 4, "rms_norm_eps": 1e-6}, LENGTHS


def cohere() -> Models:
    own = tiny(logit_scale=0.5)
    yield "default", own, LENGTHS
    yarn = {"rope_parameters": scaled("yarn", 6, 500000.0)}
    yield "norms_by_head", own | yarn | {"use_qk_norm": True, "attention_bias": True}, LENGTHS
    yield "untied", own | {"tie_word_embeddings": False, "head_dim": 16}, LENGTHS


def cohere2() -> Models:
    own = tiny(logit_scale=0.5, sliding_window=16, num_hidden_layers=4)
    yield "default", own, LENGTHS
    yarn = {"rope_parameters": scaled("yarn", 6, 50000.0), "sliding_window": 48}
    yield "yarn", own | yarn | {"sliding_window_pattern": 2}, LENGTHS


def phi() -> Models:
    own = tiny(hidden_size=64)  # 16 dimensions per head, of which the default rotates 8
    yield "default", own, LENGTHS
    share = {"partial_rotary_factor": 0.375}
    yield "yarn", own | {"rope_parameters": scaled("yarn", 3) | share}, LENGTHS
    yield "norms", own | {"qk_layernorm": True, "tie_word_embeddings": True}, LENGTHS


def stablelm() -> Models:
    own = tiny(hidden_size=64)
    yield "default", own, LENGTHS
    yarn = {"rope_parameters": scaled("yarn", 4) | {"partial_rotary_factor": 0.5}}
    yield "biases", own | yarn | {"use_qkv_bias": True}, LENGTHS
    one = {"use_parallel_residual": True, "qk_layernorm": True}
    yield "norms_by_head", own | one, LENGTHS


def falcon() -> Models:
    own = tiny()
    del own["num_key_value_heads"], own["intermediate_size"]
    yield "default", own, LENGTHS
    new = own | {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}
    yield "two_norms", new | {"ffn_hidden_size": 64}, LENGTHS
    yarn = {"rope_parameters": scaled("yarn", 6, 500042.0), "tie_word_embeddings": False}
    yield "one_norm", new | yarn | {"num_ln_in_parallel_attn": 1, "activation": "gelu_new"}, LENGTHS
    yield "all_key_heads", own | {"multi_query": False}, LENGTHS


def olmo() -> Models:
    own = tiny(bos_token_id=None)
    yield "default", own, LENGTHS
    yarn = {"rope_parameters": scaled("yarn", 6), "tie_word_embeddings": True}
    yield "clipped", own | yarn | {"clip_qkv": 0.75, "attention_bias": True}, LENGTHS


def nemotron() -> Models:
    yield "default", tiny(head_dim=16), LENGTHS
    yarn = {"rope_parameters": scaled("yarn", 6) | {"partial_rotary_factor": 1.0}}
    biases = {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}
    yield "biases", tiny() | yarn | biases, LENGTHS


def persimmon() -> Models:
    own = tiny(hidden_size=64)
    del own["num_key_value_heads"]
    yield "default", own, LENGTHS
    yarn = {"rope_parameters": scaled("yarn", 8) | {"partial_rotary_factor": 1.0}}
    yield "no_norms", own | yarn | {"qk_layernorm": False, "hidden_act": "gelu"}, LENGTHS


def some_types(base: Settings, pairs: int, *kinds: str, theta: float = 1e4, **rope: Any) -> Models:
    """Yield models of a family that rotates as Llama does, of `default` and other rope types."""
    for kind in ("default", *kinds):
        yield kind, base | {"rope_parameters": scaled(kind, pairs, theta) | rope}, LENGTHS


def gemma() -> Models:
    own = tiny(head_dim=16)
    yield from some_types(own, 8, "yarn")
    yield "legacy_gelu", own | {"hidden_act": "gelu", "attention_bias": True}, LENGTHS


def vaultgemma() -> Models:
    own = tiny(head_dim=16, query_pre_attn_scalar=24, sliding_window=16)
    caps = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
    yield from some_types(own | caps, 8, "linear")


_MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.125,
    "logits_scaling": 0.5,
}


def granite() -> Models:
    own = tiny(**_MULTIPLIERS)
    yield from some_types(own, 6, "yarn")
    biases = {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}
    yield "biases", own | biases, LENGTHS


def granitemoehybrid() -> Models:
    own = tiny(hidden_size=64, num_local_experts=0, shared_intermediate_size=64)
    own |= _MULTIPLIERS | {"layer_types": ["full_attention"] * 2, "position_embedding_type": "rope"}
    own |= {"time_step_limit": (0.0, 1.0)}  # infinity is written in a form that is not read
    yield from some_types(own, 8, "yarn", theta=1e7)


def hyperclovax() -> Models:
    yield from some_types(tiny(**_MULTIPLIERS), 6, "yarn")
    yield "attention_default", tiny(attention_bias=True), LENGTHS


def starcoder2() -> Models:
    own = tiny(bos_token_id=1, eos_token_id=2)
    yield from some_types(own, 6, "yarn", theta=1e6)
    plain = {"use_bias": False, "tie_word_embeddings": False, "sliding_window": 16}
    yield "sliding", own | plain, LENGTHS


def glm() -> Models:
    own = tiny(head_dim=16)
    yield from some_types(own, 4, "yarn", partial_rotary_factor=0.5)
    whole = scaled("longrope", 8) | {"partial_rotary_factor": 1.0}
    yield "whole", own | {"attention_bias": False, "rope_parameters": whole}, AT_THE_SWITCH


def olmo3() -> Models:
    own = tiny(bos_token_id=None, num_hidden_layers=4, sliding_window=16)
    for kind in ("default", "yarn"):
        parts = {
            "full_attention": scaled(kind, 6, 500000.0),
            "sliding_attention": scaled("default", 6, 500000.0),
        }
        yield kind, own | {"rope_parameters": parts}, LENGTHS
    kinds = ["full_attention", "sliding_attention"] * 2
    yield "layer_types", own | {"layer_types": kinds, "attention_bias": True}, LENGTHS


def seed_oss() -> Models:
    own = tiny(head_dim=16, attention_dropout=0.0, residual_dropout=0.0)
    yield from some_types(own, 8, "yarn", theta=1e7)
    biases = {"attention_bias": False, "attention_out_bias": True, "mlp_bias": True}
    yield "biases", own | biases, LENGTHS


def arcee() -> Models:
    yield from some_types(tiny(), 6, "yarn")
    yield "biases", tiny(attention_bias=True, mlp_bias=True, head_dim=16), LENGTHS


def jais2() -> Models:
    yield from some_types(tiny(), 6, "yarn", theta=5e5)
    yield "no_biases", tiny(attention_bias=False, mlp_bias=False), LENGTHS


def ernie4_5() -> Models:
    own = tiny(head_dim=16)
    yield from some_types(own, 8, "yarn", theta=5e5)
    yield "biases", own | {"use_bias": True, "tie_word_embeddings": False}, LENGTHS


def helium() -> Models:
    own = tiny(head_dim=12)
    yield from some_types(own, 6, "yarn", theta=1e5)
    yield "biases", own | {"attention_bias": True, "mlp_bias": True}, LENGTHS


def exaone() -> Models:
    yield from some_types(tiny(), 6, "llama3", theta=5e5)
    yield "biases", tiny(attention_bias=True, mlp_bias=True, head_dim=16), LENGTHS


def internlm3() -> Models:
    yield from some_types(tiny(head_dim=16), 8, "dynamic", theta=5e7)


def exaone4() -> Models:
    own = tiny(num_hidden_layers=4, sliding_window=16)
    yield from some_types(own, 6, "llama3", theta=1e6)
    kinds = ["full_attention", "sliding_attention"] * 2
    yield "layer_types", own | {"layer_types": kinds, "head_dim": 16}, LENGTHS


def ministral3() -> Models:
    own, yarn = tiny(head_dim=16), scaled("yarn", 8, 1e6)
    yarn |= {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}
    yield "default", own | {"rope_parameters": yarn}, LENGTHS
    yield "window", own | {"rope_parameters": yarn, "sliding_window": 48}, LENGTHS
    devstral = yarn | {"llama_4_scaling_beta": 0.0}
    yield "no_query_scale", own | {"rope_parameters": devstral}, LENGTHS


def ministral() -> Models:
    own = tiny(sliding_window=16, head_dim=16)
    yield from some_types(own, 8, "yarn", theta=1e6)
    kinds = ["full_attention", "sliding_attention"]
    yield "layer_types", own | {"layer_types": kinds}, LENGTHS


def mixtral() -> Models:
    own = tiny(num_local_experts=4)
    # without head_dim, transformers 5.24 cannot compute YaRN's frequencies for it
    yield from some_types(own | {"head_dim": 12}, 6, "yarn", theta=1e6)
    yield "sliding", own | {"sliding_window": 16, "num_experts_per_tok": 1}, LENGTHS


def qwen2_moe() -> Models:
    none = {"bos_token_id": None, "eos_token_id": None}
    own = tiny(num_experts=5, moe_intermediate_size=20, shared_expert_intermediate_size=24, **none)
    own |= {"num_hidden_layers": 3}
    yield from some_types(own, 6, "yarn", theta=1e6)
    sliding = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2}
    yield "sliding", own | sliding | {"norm_topk_prob": True, "mlp_only_layers": [0, 1]}, LENGTHS


def qwen3_moe() -> Models:
    own = tiny(hidden_size=32, head_dim=16, bos_token_id=None, eos_token_id=None)
    own |= {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
    yield from some_types(own | {"norm_topk_prob": True}, 8, "yarn", theta=1e6)
    sliding = {"use_sliding_window": True, "sliding_window": 16, "mlp_only_layers": [0]}
    yield "sliding", own | sliding | {"attention_bias": True, "tie_word_embeddings": True}, LENGTHS


def olmoe() -> Models:
    own = tiny(num_experts=6, num_experts_per_tok=3, bos_token_id=None)
    yield from some_types(own, 6, "yarn")
    limited = {"clip_qkv": 0.8, "norm_topk_prob": True, "attention_bias": True}
    yield "limited", own | limited | {"num_key_value_heads": 4}, LENGTHS


def glm4_moe() -> Models:
    own = tiny(n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=20, head_dim=16)
    own |= {"num_hidden_layers": 3}
    yield from some_types(own, 4, "yarn", partial_rotary_factor=0.5)
    groups = {"n_group": 3, "topk_group": 2, "routed_scaling_factor": 2.5, "n_shared_experts": 2}
    more = {"use_qk_norm": True, "attention_bias": True, "first_k_dense_replace": 2}
    yield "groups", own | groups | more, LENGTHS


def dots1() -> Models:
    own = tiny(n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=20)
    own |= {"n_shared_experts": 1, "sliding_window": 16, "max_window_layers": 1}
    yield from some_types(own, 6, "yarn")
    more = {"first_k_dense_replace": 1, "norm_topk_prob": True, "attention_bias": True}
    yield "dense_first", own | more | {"sliding_window": None}, LENGTHS


def granitemoe() -> Models:
    own = tiny(num_local_experts=4, **_MULTIPLIERS)
    yield from some_types(own, 6, "yarn")
    yield "biases", own | {"attention_bias": True, "tie_word_embeddings": True}, LENGTHS


_DEEPSEEK_ROPE = scaled("yarn", 4) | {"mscale": 1.0, "mscale_all_dim": 0.7}
_DEEPSEEK = {
    "num_key_value_heads": 4,
    "num_hidden_layers": 3,
    "q_lora_rank": 20,
    "kv_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 10,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 28,
    "first_k_dense_replace": 1,
}


def deepseek_v2() -> Models:
    own = tiny(**_DEEPSEEK)
    lite = own | {"q_lora_rank": None, "n_group": 1, "topk_group": 1}  # V2-Lite
    yarn = scaled("yarn", 4) | {"mscale": 0.707, "mscale_all_dim": 0.707}
    yield "lite", lite | {"rope_parameters": yarn, "rms_norm_eps": 1e-3}, LENGTHS
    groups = {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2}
    groups |= {"routed_scaling_factor": 1.7, "n_shared_experts": 1, "attention_bias": True}
    yield "groups", own | groups | {"rope_parameters": _DEEPSEEK_ROPE}, LENGTHS
    yield "default", own | {"first_k_dense_replace": 2, "mlp_bias": True}, LENGTHS


def deepseek_v3() -> Models:
    own = tiny(**_DEEPSEEK, n_group=4, topk_group=2, num_mtp_layers=0)
    yield "yarn", own | {"rope_parameters": _DEEPSEEK_ROPE}, LENGTHS
    flat = {"q_lora_rank": None, "n_group": 1, "topk_group": 1, "norm_topk_prob": False}
    yield "default", own | flat | {"attention_bias": True, "rms_norm_eps": 1e-3}, LENGTHS
    kimi = _DEEPSEEK_ROPE | {"beta_fast": 1.0, "beta_slow": 1.0, "mscale_all_dim": 1.0}
    yield "kimi_k2", own | {"rope_parameters": kimi}, LENGTHS


def gpt_oss() -> Models:
    own = tiny(num_hidden_layers=3, head_dim=16, num_local_experts=6, sliding_window=16)
    yield "default", own, LENGTHS  # YaRN as in gpt-oss itself
    yarn = {"rope_parameters": scaled("yarn", 8, 150000.0) | {"truncate": False}}
    others = {"layer_types": ["full_attention"] * 3, "attention_bias": False}
    yield "yarn", own | yarn | others | {"swiglu_limit": 1.0, "num_experts_per_tok": 3}, LENGTHS


def llama4_text() -> Models:
    own = tiny(num_hidden_layers=4, head_dim=16, attention_chunk_size=20, floor_scale=16)
    own |= {"num_local_experts": 4}
    yield from some_types(own, 8, "yarn", theta=5e5)
    scout = scaled("llama3", 8, 5e5) | {"high_freq_factor": 1.0}
    yield "scout", own | {"rope_parameters": scout, "no_rope_layers": [1, 0, 1, 0]}, LENGTHS
    plain = {"use_qk_norm": False, "attn_temperature_tuning": False, "attention_bias": True}
    yield "plain", own | plain | {"num_experts_per_tok": 2}, LENGTHS


_ALL = (
    *(llama, mistral, qwen2, qwen3, smollm3, phi3, gemma2, gemma3_text, gpt_neox, olmo2),
    *(cohere, cohere2, phi, stablelm, falcon, olmo, nemotron, persimmon),
    *(gemma, vaultgemma, granite, granitemoehybrid, hyperclovax),
    *(starcoder2, glm, olmo3, seed_oss, arcee),
    *(mixtral, qwen2_moe, qwen3_moe, olmoe, granitemoe, llama4_text, glm4_moe, dots1),
    *(deepseek_v2, deepseek_v3, gpt_oss),
    *(jais2, ernie4_5, helium, exaone, internlm3, exaone4, ministral3, ministral),
)

MODELS = {models.__name__: models for models in _ALL} | {"glm4": glm}
"""By model_type; a family is added here."""
