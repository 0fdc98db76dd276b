"""config.json: which keys are read, which are ignored, and which or whose values are refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from rope_jax.checkpoints.families import FAMILIES, REQUIRED
from rope_jax.checkpoints.keys import OTHER_NAMES, POSITION_KEYS
from rope_jax.checkpoints.reading import read_description, text_part
from rope_jax.config.messages import show_value
from rope_jax.errors import UserError
from tests.checkpoints.cases import FOLDER, read_cases
from tests.checkpoints.folders import config_of, described, golden_case, says

READ_BY_TRANSFORMERS: dict[str, dict[str, Any]] = json.loads(
    (FOLDER / "config_keys.json").read_text()
)
KEYS = yaml.safe_load(Path(__file__).with_name("config_keys.yaml").read_text())
# in the same file of code
OF_OTHER_PARTS = {
    *("attention_chunk_size", "attention_context_left", "attention_context_right"),
    *("attention_invalid_logits_value", "attention_logit_cap", "audio_config", "conv_kernel_size"),
    *("gradient_clipping", "output_proj_dims", "pooling_kernel_size"),
    *("position_embedding_size", "residual_weight", "standardize", "subsampling_conv_channels"),
    "use_clipped_linears",
    *("image_size", "mm_tokens_per_image", "num_channels", "patch_size", "pixel_shuffle_ratio"),
    *("projector_input_dim", "projector_output_dim", "text_config", "vision_config"),
    *("depth", "in_channels", "num_heads", "num_position_embeddings", "out_hidden_size"),
    *("spatial_merge_size", "temporal_patch_size"),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_key_that_transformers_reads_is_read_or_ignored_with_its_default(family: str) -> None:
    table = {key.name: key for key in FAMILIES[family].keys}
    for name, default in READ_BY_TRANSFORMERS[family].items():
        if key := table.get(name):
            if key.default is not REQUIRED and key.default is not None:
                assert key.read({}) == key.read({name: default}), name
        elif name not in POSITION_KEYS | OF_OTHER_PARTS | {"use_bidirectional_attention"}:
            assert described(family, **{name: default or "x"}).unread == (), name


def test_keys_of_published_configs_change_nothing() -> None:
    """SmolLM2's, Gemma's, Llama's and those that tools add to them."""
    assert described(**KEYS["harmless"]) == described()


PUBLISHED: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("published.yaml").read_text())


@pytest.mark.parametrize("name", PUBLISHED)
def test_configs_of_published_models_are_read(name: str) -> None:
    found = read_description(PUBLISHED[name], "config.json")
    given = text_part(PUBLISHED[name]).get("vocab_size", 262_208)  # Gemma 3's if there is none
    assert config_of(found).model.vocab_size == given
    assert {name.split()[0] for name in found.unread} <= {*KEYS["listed"]}


def test_unknown_keys_are_listed() -> None:
    found = described(
        megatron_version="2.1",
        corpus={"name": "pile"},
        languages=["en", "de", "fr"],  # more than layers
        nothing=None,
    )
    assert found.unread == ("megatron_version", "corpus", "languages")
    assert found._replace(unread=()) == described()


@pytest.mark.parametrize(("key", "value"), KEYS["of_own_code"])
def test_keys_that_only_a_models_own_code_can_read(key: str, value: Any) -> None:
    assert described(**{key: value}).unread == (key,)
    code = {"auto_map": {"AutoModelForCausalLM": "modeling.Model"}}
    for own in (code, {"architectures": ["OwnForCausalLM"]}):
        assert says(described, **own, **{key: value}).startswith(f"config.json: {key}: is ")
    unread = described(**code).unread
    assert unread == ("auto_map (code that comes with a model is never run)",)


def test_a_misspelled_key_names_the_right_one() -> None:
    said = says(described, rms_norm_eps=..., rms_norm_esp=1e-5)
    assert "reads for llama (did you mean rms_norm_eps?), and" in said


@pytest.mark.parametrize(("key", "value"), KEYS["may_change_logits"])
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


@pytest.mark.parametrize(
    ("family", "other", "key"),
    [(family, *pair) for family, names in OTHER_NAMES.items() for pair in names.items()],
)
def test_other_names_that_transformers_accepts(family: str, other: str, key: str) -> None:
    content = json.loads(golden_case(family).config)
    given, twin = (key, other) if key in content else (other, key)
    if given in content:
        assert described(family, **{given: ..., twin: content[given]}) == described(family)


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


@pytest.mark.parametrize("bad", KEYS["refused"], ids=lambda bad: bad["says"][:30])
def test_a_value_that_a_family_does_not_take(bad: dict[str, Any]) -> None:
    changes = {key: ... if value == "absent" else value for key, value in bad["changes"].items()}
    assert says(described, bad["family"], **changes).startswith(f"config.json: {bad['says']}")


def test_code_that_comes_with_a_model_is_not_run() -> None:
    said = says(described, model_type="own", auto_map={"AutoModelForCausalLM": "m.M"})
    assert said.endswith("; code that comes with a model is never run")


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
    read_alike = FAMILIES["llama"].keys if family != "llama" else ()
    keys = {key.name for key in FAMILIES[family].keys if key not in read_alike}
    changes = [{key: wrong} for key in sorted({*keys, *POSITIONS}) for wrong in WRONG]
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


def test_dual_chunk_attention_becomes_a_map_and_its_length_that_of_the_formulas() -> None:
    """Qwen2.5-1M's config, with its values."""
    sizes = {"chunk_size": 262144, "local_size": 8192}
    dual = sizes | {"original_max_position_embeddings": 262144}
    found = described("qwen2", dual_chunk_attention_config=dual, max_position_embeddings=1010000)
    assert found.window == 1010000
    assert found.rope["map"] == {"type": "dual_chunk", "chunk": 262144, "local": 8192}
    config = config_of(found)
    assert config.rope.map is not None
    assert config.geometry.train_length == 262144


def test_flat_configs_of_models_with_images() -> None:
    """Those of transformers 4.45 have the text model's keys beside its other parts."""
    (case,) = (case for case in read_cases("qwen2") if case.name == "qwen2_5_vl")
    config = json.loads(case.old_config)
    text = config.pop("text_config")
    flat = {**text, **config, "architectures": ["Qwen2_5_VLForConditionalGeneration"]}
    flat["rope_scaling"] = {"type": "mrope", "mrope_section": [2, 2, 2]}
    found = read_description(flat, "config.json")
    assert found.family.model_type == "qwen2"
    assert found.rope["scaling"] == {"type": "none"}
    assert found.model == read_description(json.loads(case.config), "config.json").model
