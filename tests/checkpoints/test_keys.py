"""Keys of config.json: which are read, which are ignored, and which end an import."""

import json
from typing import Any

import pytest

from rope_jax.checkpoints.families import FAMILIES, REQUIRED
from rope_jax.checkpoints.reading import POSITION_KEYS, read_description
from rope_jax.errors import UserError
from rope_jax.rope.messages import show_value
from tests.checkpoints.cases import FOLDER
from tests.checkpoints.folders import described, golden_case

READ_BY_TRANSFORMERS: dict[str, dict[str, Any]] = json.loads(
    (FOLDER / "config_keys.json").read_text()
)
OF_IMAGES = {"mm_tokens_per_image", "text_config", "vision_config"}  # in the same file of code


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
    harmless = {
        "_model_name_or_path": "Smollm2 135M 8k Lc100K Mix1 Ep2",
        "_name_or_path": "x",
        "unk_token_id": 3,
        "sep_token_id": 4,
        "decoder_start_token_id": 1,
        "image_token_index": 32000,
        "max_length": 20,
        "do_sample": True,
        "temperature": 0.6,
        "forced_eos_token_id": 2,
        "suppress_tokens": [1, 2],
        "attention_probs_dropout_prob": 0.1,
        "embd_pdrop": 0.1,
        "router_aux_loss_coef": 0.1,
        "initializer_factor": 1.0,
        "use_flash_attention_2": True,
        "attn_implementation": "sdpa",
        "cache_implementation": "hybrid",
        "model_max_length": 4096,
        "tokenizer_class": "GPT2Tokenizer",
        "rope_interleaved": False,
        "is_llama_config": True,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "quantization_config": {"quant_method": "gguf", "dequantize": False},
        "is_causal": True,
        "num_logits_to_keep": 1,
        "position_embedding_type": "rope",
        "use_liger_kernel": True,
        "n_positions": 2048,
    }
    assert described(**harmless) == described()


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
    with pytest.raises(UserError) as caught:
        described(**{key: value})
    assert str(caught.value) == (
        f"config.json: {key}: is {show_value(value)}, which nothing here reads for llama, and it "
        "may change the logits; if it does not, import the model with scripts/import_hf.py MODEL "
        f"'ignored_keys=[{key}]'"
    )
    assert described(ignored=(key,), **{key: value}) == described()


@pytest.mark.parametrize("value", [None, False, 0, "", [], {}])
def test_a_key_that_is_off_changes_nothing(value: Any) -> None:
    assert described(attention_multiplier=value) == described()


DEFAULT = {"rope_type": "default", "rope_theta": 10000.0}


def test_keys_left_over_beside_a_rope_that_does_not_scale() -> None:
    """transformers ignores them, so they are listed, unless one looks like a scaling."""
    left = {"original_max_position_embeddings": 32, "beta_fast": 32.0, "factor": 1.0}
    found = described(rope_parameters=DEFAULT | left)
    assert found.unread == tuple(f"rope_parameters.{name}" for name in left)
    assert found._replace(unread=()) == described(rope_parameters=DEFAULT)
    with pytest.raises(UserError) as caught:
        described(rope_parameters=DEFAULT | {"factor": 8.0})
    assert str(caught.value) == (
        "config.json: rope_parameters.factor: is 8.0, but rope_type default does not scale; give "
        "the rope_type, or leave the key out with 'ignored_keys=[factor]'"
    )
    untyped = {"rope_theta": 10000.0, "factor": 1.0}  # which transformers takes for default
    assert described(rope_parameters=untyped).unread == ("rope_parameters.factor",)
    ignored = described(ignored=("factor",), rope_parameters=DEFAULT | {"factor": 8.0})
    assert ignored == described(rope_parameters=DEFAULT)


def test_a_key_that_a_scaling_does_not_have_names_the_way_through() -> None:
    """transformers ignores DeepSeek's attn_factor, and vLLM multiplies m by it."""
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}
    yarn["original_max_position_embeddings"] = 32
    with pytest.raises(UserError) as caught:
        described(rope_parameters=yarn | {"attn_factor": 0.878})
    assert str(caught.value).startswith("config.json: attn_factor: is not used in rope parameters")
    assert str(caught.value).endswith(
        "if it is of no consequence, give 'ignored_keys=[attn_factor]'"
    )
    ignored = described(ignored=("attn_factor",), rope_parameters=yarn | {"attn_factor": 0.878})
    assert ignored == described(rope_parameters=yarn)
    linear = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
    found = described(rope_parameters=linear | {"original_max_position_embeddings": 32})
    assert found.unread == ("rope_parameters.original_max_position_embeddings",)
    assert found._replace(unread=()) == described(rope_parameters=linear)


def test_mscales_that_transformers_does_not_read_for_phi3_are_listed() -> None:
    config = json.loads(golden_case("phi3", "longrope").old_config)
    mscales = {"short_mscale": 1.5, "long_mscale": 1.5}
    own = config | {"rope_scaling": config["rope_scaling"] | mscales}
    found = read_description(own, "config.json")
    assert found.unread == ("rope_scaling.short_mscale", "rope_scaling.long_mscale")
    assert found._replace(unread=()) == read_description(config, "config.json")
