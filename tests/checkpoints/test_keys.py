"""config.json: which keys are read, which are ignored, and which or whose values are refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from rope_jax.checkpoints.families import FAMILIES, REQUIRED
from rope_jax.checkpoints.keys import POSITION_KEYS
from rope_jax.checkpoints.reading import read_description, text_part
from rope_jax.config.messages import show_value
from rope_jax.errors import UserError
from tests.checkpoints.cases import FOLDER
from tests.checkpoints.folders import config_of, described, golden_case, says

READ_BY_TRANSFORMERS: dict[str, dict[str, Any]] = json.loads(
    (FOLDER / "config_keys.json").read_text()
)
# in the same file of code
OF_IMAGES = {
    *("image_size", "mm_tokens_per_image", "num_channels", "patch_size", "pixel_shuffle_ratio"),
    *("projector_input_dim", "projector_output_dim", "text_config", "vision_config"),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_key_that_transformers_reads_is_read_or_ignored_with_its_default(family: str) -> None:
    table = {key.name: key for key in FAMILIES[family].keys}
    for name, default in READ_BY_TRANSFORMERS[family].items():
        if key := table.get(name):
            if key.default is not REQUIRED and key.default is not None:
                assert key.read({}) == key.read({name: default}), name
        elif name not in POSITION_KEYS | OF_IMAGES | {"use_bidirectional_attention"}:
            assert described(family, **{name: default or "x"}).unread == (), name


def test_keys_of_published_configs_change_nothing() -> None:
    """SmolLM2's, Gemma's, Llama's and those that tools add to them."""
    harmless: dict[str, Any] = {
        **dict.fromkeys(("_model_name_or_path", "_name_or_path", "tokenizer_class"), "x"),
        **dict.fromkeys(("unk_token_id", "sep_token_id", "image_token_index"), 3),
        **dict.fromkeys(("decoder_start_token_id", "forced_eos_token_id", "max_length"), 2),
        **dict.fromkeys(("temperature", "attention_probs_dropout_prob", "embd_pdrop"), 0.1),
        **dict.fromkeys(("router_aux_loss_coef", "initializer_factor"), 0.1),
        **dict.fromkeys(("do_sample", "use_flash_attention_2", "is_llama_config"), True),
        **dict.fromkeys(("is_causal", "use_liger_kernel"), True),
        **dict.fromkeys(("rope_interleaved", "use_sliding_window"), False),
        **dict.fromkeys(("model_max_length", "n_positions", "sliding_window"), 4096),
        "suppress_tokens": [1, 2],
        "attn_implementation": "sdpa",
        "cache_implementation": "hybrid",
        "quantization_config": {"quant_method": "gguf", "dequantize": False},
        "num_logits_to_keep": 1,
        "position_embedding_type": "rope",
    }
    assert described(**harmless) == described()


PUBLISHED: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("published.yaml").read_text())


@pytest.mark.parametrize("name", PUBLISHED)
def test_configs_of_published_models_are_read(name: str) -> None:
    found = read_description(PUBLISHED[name], "config.json")
    given = text_part(PUBLISHED[name]).get("vocab_size", 262_208)  # Gemma 3's if there is none
    assert config_of(found).model.vocab_size == given
    assert set(found.unread) <= {"ff_factor"}


def test_unknown_keys_are_listed() -> None:
    found = described(
        megatron_version="2.1",
        corpus={"name": "pile"},
        languages=["en", "de"],  # as many as layers, but no numbers
        nothing=None,
        auto_map={"AutoModelForCausalLM": "modeling.Model"},
    )
    assert found.unread == (
        *("megatron_version", "corpus", "languages"),
        "auto_map (code that comes with a model is never run)",
    )
    assert found._replace(unread=()) == described()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[(name, 0.5) for name in ("attention_multiplier", "residual_multiplier", "mup_width")],
        *[(name, 16.0) for name in ("logits_scaling", "embedding_scale", "final_logit_softcap")],
        *[(name, 8) for name in ("num_experts", "n_routed_experts", "attn_window", "chunk_len")],
        *[(name, True) for name in ("use_qk_norm", "attn_output_gate", "qkv_bias", "tied_layers")],
        *[(name, "relu2") for name in ("act_fn", "hidden_activation", "norm_type", "ffn_kind")],
        ("rotary_emb_scale_base", 512),
        ("xpos_theta", 512),
        # off, which the models here are not
        *[(name, False) for name in ("is_causal", "use_rope", "use_rotary_embeddings")],
        *[(name, False) for name in ("use_causal_mask", "scale_attn_weights")],
        # with words that would otherwise be those of training, generation or ways to compute
        *[(name, 64) for name in ("layer_scale_init_value", "mup_init_scale", "kv_cache_window")],
        *[(name, True) for name in ("sink_token", "softmax_token", "use_subln", "use_mup")],
        *[(name, True) for name in ("zero_centered_gamma", "nope", "differential", "rezero")],
        *[(name, "learned") for name in ("pos_emb", "pe_type")],
        ("per_layer_value", [1, 2]),  # one for each layer
        ("lens", [1.0, 1.1, 1.2, 1.3, 1.4, 1.5]),  # one for each pair
        ("extras", {"num_heads": 4}),
        ("more", {"a": {"b": {"attn": 1}}}),
    ],
)
def test_keys_that_may_change_the_logits_are_refused(key: str, value: Any) -> None:
    said = says(described, **{key: value})
    assert said.startswith(f"config.json: {key}: is {show_value(value)}, which nothing here reads")
    assert said.endswith(f"'ignored_keys=[{key}]'")
    assert described(ignored=(key,), **{key: value}) == described()


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("qwen3_moe", "use_qk_norm", True),
        ("phi", "rotary_dim", 8),
        ("cohere2", "rotary_pct", 1.0),
        ("llama", "layer_norm_epsilon", 1e-5),
        ("starcoder2", "rms_norm_eps", 0.5),  # which a LayerNorm never reads
    ],
)
def test_a_key_of_another_family_may_say_what_the_model_has_anyway(
    family: str, key: str, value: Any
) -> None:
    assert described(family, **{key: value}) == described(family)


@pytest.mark.parametrize("value", [None, False, 0, "", [], {}])
def test_a_key_that_is_off_changes_nothing(value: Any) -> None:
    assert described(attention_multiplier=value) == described()


DEFAULT = {"rope_type": "default", "rope_theta": 10000.0}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
YARN = LINEAR | {"rope_type": "yarn", "original_max_position_embeddings": 32}
LEFT = {"original_max_position_embeddings": 32, "beta_fast": 32.0, "factor": 1.0}


@pytest.mark.parametrize(
    ("rope", "left"),
    [
        (DEFAULT, LEFT),
        ({"rope_theta": 10000.0}, {"factor": 1.0}),  # which transformers takes for default
        (LINEAR, {"original_max_position_embeddings": 32}),
    ],
)
def test_keys_left_over_beside_a_rope_of_another_type_are_listed(
    rope: dict[str, Any], left: dict[str, Any]
) -> None:
    found = described(rope_parameters=rope | left)
    assert found.unread == tuple(f"rope_parameters.{name}" for name in left)
    assert found._replace(unread=()) == described(rope_parameters=rope)


@pytest.mark.parametrize(
    ("rope", "key", "begin", "end"),
    [
        # a scaling that was meant to be used
        (DEFAULT, "factor", "rope_parameters.factor: is 8.0, but rope_type default does not scale",
         "'ignored_keys=[factor]'"),
        # transformers ignores DeepSeek's, and vLLM multiplies m by it
        (YARN, "attn_factor", "attn_factor: is not used in rope parameters",
         "if it is of no consequence, give 'ignored_keys=[attn_factor]'"),
    ],
)  # fmt: skip
def test_a_key_that_a_scaling_does_not_have_names_the_way_through(
    rope: dict[str, Any], key: str, begin: str, end: str
) -> None:
    said = says(described, rope_parameters=rope | {key: 8.0})
    assert said.startswith(f"config.json: {begin}")
    assert said.endswith(end)
    ignored = described(ignored=(key,), rope_parameters=rope | {key: 8.0})
    assert ignored == described(rope_parameters=rope)


def test_mscales_that_transformers_does_not_read_for_phi3_are_listed() -> None:
    config = json.loads(golden_case("phi3", "longrope").old_config)
    mscales = {"short_mscale": 1.5, "long_mscale": 1.5}
    own = config | {"rope_scaling": config["rope_scaling"] | mscales}
    found = read_description(own, "config.json")
    assert found.unread == ("rope_scaling.short_mscale", "rope_scaling.long_mscale")
    assert found._replace(unread=()) == read_description(config, "config.json")


def test_phi3s_length_counts_at_the_top_level_alone() -> None:
    """In transformers, 32 in rope_parameters gives way to the default of the top level."""
    rope = json.loads(golden_case("phi3", "longrope").config)["rope_parameters"]
    found = described("phi3", rope_parameters=rope, original_max_position_embeddings=...)
    assert found.rope["train_length"] == 4096
    assert found.unread == ("rope_parameters.original_max_position_embeddings",)


@pytest.mark.parametrize("form", [{}, {"rope_parameters": None}, {"rope_scaling": {}}])
def test_ministral3_without_rope_parameters_is_scaled_16_times(form: dict[str, Any]) -> None:
    rope = described("ministral3", **({"rope_parameters": ...} | form)).rope
    assert (rope["base"], rope["train_length"]) == (1e6, 16384)
    scaling = {"type": "yarn", "factor": 16.0, "query_scale": {"type": "ministral", "beta": 0.1}}
    assert rope["scaling"].items() >= (scaling | {"mscale": 1.0, "mscale_all_dim": 1.0}).items()


@pytest.mark.parametrize("family", ["gemma2", "vaultgemma", "olmo3"])
def test_a_pattern_that_the_family_ignores_is_listed(family: str) -> None:
    found = described(family, layer_types=..., sliding_window_pattern=3)
    assert found.unread == ("sliding_window_pattern",)
    assert found._replace(unread=()) == described(family, layer_types=...) == described(family)


# Values


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("no_rope_layers", [0, 1]),
        ("sliding_window", 8),
        ("layer_types", ["sliding_attention", "full_attention"]),
    ],
)
def test_a_key_about_layers_that_the_family_ignores(key: str, value: Any) -> None:
    """transformers' Llama ignores them, so a model with one is not what its config seems to say."""
    said = says(described, **{key: value})
    assert said.startswith(f"config.json: {key}: is {value}, which nothing here reads for llama")
    assert described(ignored=(key,), **{key: value}) == described()


KNOWN = ", ".join(FAMILIES)


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("llama", {"model_type": ["llama"]}, f"model_type: ['llama'] is not one of {KNOWN}"),
        ("llama", {"model_type": "own", "auto_map": {"AutoModelForCausalLM": "m.M"}},
         f"model_type: 'own' is not one of {KNOWN}; code that comes with a model is never run"),
        ("llama", {"model_type": "qwen3_next"},
         "model_type: 'qwen3_next' has layers of linear attention (Gated DeltaNet), which have no "
         "positions to scale"),
        ("llama", {"model_type": "paligemma", "text_config": {"model_type": "gemma"}},
         f"model_type: 'paligemma' is not one of {KNOWN}"),
        ("granitemoehybrid", {"layer_types": ["mamba", "attention"]},
         "layer_types: is ['mamba', 'full_attention'], which nothing here reads"),
        ("llama", {"num_hidden_layers": 10**9}, "num_hidden_layers: 1000000000 is above 10,000"),
        ("llama", {"quantization_config": {"quant_method": "gptq"}},
         "quantization_config: quant_method 'gptq' is not one of fp8, mxfp4, which can be read; "),
        ("llama", {"use_bidirectional_attention": True},
         "use_bidirectional_attention: is not a causal model"),
        ("llama", {"hidden_size": ...}, "hidden_size: is required but was not given"),
        ("llama", {"max_position_embeddings": "128"},
         "max_position_embeddings: should be a whole number of at least 1, not '128'"),
        ("llama", {"hidden_act": "relu"}, "hidden_act: 'relu' is not one of silu, swish, gelu, "),
        ("llama", {"rope_parameters": {"rope_type": "spiral", "rope_theta": 1e4}},
         "rope_type: 'spiral' is not one of default, linear, dynamic, yarn, longrope, llama3, pro"),
        ("llama", {"rope_parameters": 3}, "rope_parameters: should be a mapping, not 3"),
        ("gemma2", {"layer_types": ["full_attention"]},
         "layer_types: should be a list of 3 types, one for each layer"),
        ("gemma2", {"layer_types": ["full_attention", "chunked_attention", "full_attention"]},
         "layer_types: 'chunked_attention' is not one of full_attention, sliding_attention"),
        ("gemma3_text", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
         "rope_parameters: gemma3_text needs one mapping for each layer type, full_attention and "),
        ("qwen3_moe", {"mlp_only_layers": [1]}, "mlp_only_layers: [1] are not the first layers"),
        ("qwen2_moe", {"decoder_sparse_step": 2}, "decoder_sparse_step: 2 is not one of 1"),
        ("falcon", {"alibi": True}, "alibi: True is not one of False"),
        ("falcon", {"parallel_attn": False}, "parallel_attn: False is not one of True"),
        ("llama4_text", {"moe_layers": None, "interleave_moe_layer_step": 2},
         "interleave_moe_layer_step: 2 leaves layers without experts between those with them"),
        ("llama4_text", {"moe_layers": [1, 3]},
         "moe_layers: [1, 3] leaves layers without experts between those with them"),
        ("phi", {"rotary_dim": 16}, "rotary_dim: is 16, which nothing here reads for phi"),
        ("cohere2", {"rotary_pct": 0.5}, "rotary_pct: is 0.5, which nothing here reads"),
        ("qwen2", {"rope_local_base_freq": 1e4}, "rope_local_base_freq: is 10000.0, which nothing"),
        ("smollm3", {"rope_parameters": DEFAULT | {"partial_rotary_factor": 0.5}},
         "partial_rotary_factor: is ignored by transformers' smollm3, which rotates the whole"),
        ("olmo3", {"rope_parameters": ..., "rope_theta": 5e5, "rope_scaling": {"type": "linear"}},
         "type: is ignored by olmo3; call it rope_type"),
        ("ministral3", {"rope_parameters": YARN | {"llama_4_scaling_beta": -1.0}},
         "llama_4_scaling_beta: should be greater than 0, not -1.0"),
        ("llama", {"rope_parameters": YARN | {"llama_4_scaling_beta": 0.1}},
         "llama_4_scaling_beta: is ignored by transformers' llama; leave it out"),
        ("gpt_neox", {"rope_theta": 5e5},
         "rope_theta: is ignored by gpt_neox, whose rotary_emb_base is 10000.0; remove it"),
    ],
)  # fmt: skip
def test_a_value_that_a_family_does_not_take(
    family: str, changes: dict[str, Any], message: str
) -> None:
    assert says(described, family, **changes).startswith(f"config.json: {message}")


POSITIONS = (
    *("rope_scaling", "rope_parameters", "rope_theta", "rope_local_base_freq", "head_dim"),
    *("partial_rotary_factor", "rotary_pct", "rotary_emb_base", "sliding_window", "layer_types"),
    *("original_max_position_embeddings", "use_sliding_window", "sliding_window_pattern"),
    *("max_window_layers", "no_rope_layers", "no_rope_layer_interval"),
)
WRONG: tuple[Any, ...] = (
    *(True, -1, 0, 2.5, 1e308, float("nan"), 10**400),
    *("x", [], [None], {}, {"a": 1}),
)


@pytest.mark.parametrize("family", FAMILIES)
def test_values_of_wrong_types_are_reported_or_have_no_effect(family: str) -> None:
    content = json.loads(golden_case(family).config)
    changes = [{key: wrong} for key in sorted({*content, *POSITIONS}) for wrong in WRONG]
    for wrong in WRONG:
        changes.append({"rope_parameters": {"rope_type": wrong, "rope_theta": 1e4}})
        changes.append({"rope_parameters": LINEAR | {"factor": wrong}})
    for change in changes:
        said = "config.json: "
        try:
            config_of(read_description(content | change, "config.json"))
        except UserError as error:
            said = str(error)
        assert said.startswith("config.json: "), change
        assert "\n" not in said, change
