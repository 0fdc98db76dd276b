"""From YAML and overrides to a validated config and back."""

import json
import re
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel, ValidationError

from rope_jax.config.data import StdlibData, TextData
from rope_jax.config.load import dump, load
from rope_jax.config.sweep import SweepConfig, SweepEntry
from rope_jax.config.training import Config
from rope_jax.rope import (
    QUERY_SCALES,
    STRATEGIES,
    LayerOverride,
    RotaryGeometry,
    RotaryLayers,
    parse_scaling,
)
from rope_jax.rope.strategies import (
    ABFScaling,
    DRoPEScaling,
    ExplicitScaling,
    NoScaling,
    NTKScaling,
    PIScaling,
    ResonanceScaling,
    YaRNScaling,
)
from tests.config.examples import EXAMPLES, EXTENDING, FULL, PLAIN, SWEEP, TYPES, example

CONFIGS = sorted(Path(__file__).parents[2].glob("configs/*.yaml"))
SWEEPS = sorted(Path(__file__).parents[2].glob("configs/sweeps/*.yaml"))

# A file and its overrides


def test_every_value_of_a_file_is_read(read):
    config = read(FULL)
    assert yaml.safe_load(FULL) == config.model_dump(mode="json")
    assert config.rope.scaling == YaRNScaling(
        factor=4,
        beta_fast=16,
        beta_slow=2,
        truncate=False,
        attention_factor=1.1,
        mscale=0,
        mscale_all_dim=0.5,
        query_scale=QUERY_SCALES["llama4"](attn_scale=0.2, floor_scale=64),
    )
    ministral = QUERY_SCALES["ministral"](beta=0.2)
    assert [stage.scaling for stage in config.stages] == [
        NoScaling(),
        PIScaling(factor=4, query_scale=ministral),
    ]


def test_an_omitted_key_has_its_default(read):
    config = read(PLAIN)
    assert config.model_dump(exclude={"name", "stages"}) == Config(
        name="other", stages=config.stages
    ).model_dump(exclude={"name", "stages"})
    assert config.data == StdlibData()
    assert config.rope.scaling == NoScaling()


def test_overrides_suffice_without_a_file():
    config = load(Config, None, ["name=bare", "stages=[{steps: 200, seq_len: 8, batch_size: 1}]"])
    assert (config.name, config.stages[0].seq_len) == ("bare", 8)


def test_overrides_win_over_the_file_and_the_last_one_wins(read):
    assert read(FULL, "seed=1").seed == 1
    assert read(FULL, "seed=1", "model.hidden_size=60", "seed=2").seed == 2
    assert read(FULL, "model.hidden_size=60", "seed=2").model.hidden_size == 60


def test_an_override_of_a_section_replaces_it_and_a_later_one_adds_to_that(read):
    optim = read(FULL, "optim={warmup_steps: 3}", "optim.b1=0.5").optim
    assert (optim.warmup_steps, optim.b1, optim.b2) == (3, 0.5, 0.95)
    optim = read(FULL, "optim.b1=0.5", "optim={warmup_steps: 3}").optim
    assert (optim.warmup_steps, optim.b1, optim.b2) == (3, 0.9, 0.95)


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("model.head_dim=null", None),
        ("model.head_dim=32", 32),
        ("optim.learning_rate=1e-3", 0.001),
        ("optim.learning_rate=2", 2.0),
        ("model.qk_norm=false", False),
        ("runs_dir=a=b", "a=b"),
        ("runs_dir='1e3'", "1e3"),
        ("data.files=[x, 'y*']", ["x", "y*"]),
        ("data.files={train: [x]}", {"train": ["x"]}),
    ],
)
def test_an_overrides_value_is_yaml(read, override, value):
    node = read(FULL, override)
    for part in override.partition("=")[0].split("."):
        node = getattr(node, part)
    assert node == value
    assert type(node) is type(value)


def test_list_elements_are_named_by_number(read):
    before = read(FULL).stages
    after = read(FULL, "stages.1.steps=99", "stages.0.batch_size=8").stages
    assert after[0] == before[0].model_copy(update={"batch_size": 8})
    assert after[1] == before[1].model_copy(update={"steps": 99})
    lengths = read(SWEEP, "lengths.2=512", schema=SweepConfig).lengths
    assert lengths == (32, 64, 512)


@pytest.mark.parametrize(
    "overrides",
    [
        ["rope.scaling.type=pi", "rope.scaling.factor=8"],
        ["rope.scaling.factor=8", "rope.scaling.type=pi"],
        ["seed=1", "rope.scaling.factor=8", "model.qk_norm=true", "rope.scaling.type=pi"],
    ],
)
def test_a_new_type_drops_the_old_ones_keys_whatever_the_order(read, overrides):
    assert read(FULL, *overrides).rope.scaling == PIScaling(factor=8)


def test_a_new_type_drops_every_key_of_the_old_one(read, complaint):
    assert read(FULL, "data.type=text", "data.files=[x]").data == TextData(files=["x"])
    assert read(FULL, "data.type=stdlib").data == StdlibData()
    assert read(FULL, "stages.1.scaling.type=none").stages[1].scaling == NoScaling()
    message = complaint(FULL, "stages.1.scaling.type=ntk")
    assert message == "C.yaml: stages.1.scaling.factor: is required but was not given"


def test_the_same_type_keeps_the_other_keys(read):
    scaling = read(FULL, "rope.scaling.type=yarn", "rope.scaling.factor=3").rope.scaling
    assert scaling == read(FULL).rope.scaling.model_copy(update={"factor": 3.0})


def test_a_type_where_there_was_none(read):
    assert read(PLAIN, "stages.0.scaling.type=ntk", "stages.0.scaling.factor=2").stages[
        0
    ].scaling == NTKScaling(factor=2)


def test_a_type_after_the_whole_section_wins(read):
    overrides = ["rope.scaling={type: pi, factor: 4}", "rope.scaling.type=none"]
    assert read(PLAIN, *overrides).rope.scaling == NoScaling()
    assert read(PLAIN, *reversed(overrides)).rope.scaling == PIScaling(factor=4)


def test_a_type_inside_a_list_given_before_it(read):
    config = read(
        PLAIN,
        "stages=[{steps: 300, seq_len: 64, batch_size: 4}]",
        "stages.0.scaling.type=pi",
        "stages.0.scaling.factor=2",
    )
    assert config.stages[0].steps == 300
    assert config.stages[0].scaling == PIScaling(factor=2)


def test_interpolations_are_resolved(read):
    text = PLAIN + "rope: {train_length: '${stages.0.seq_len}'}\nruns_dir: ${name}-runs\n"
    config = read(text, "stages.0.seq_len=64", "name=other")
    assert (config.rope.train_length, config.runs_dir) == (64, "other-runs")


# Scalings of every type, and layers that differ


@pytest.mark.parametrize("place", ["rope.scaling", "stages.0.scaling"])
@pytest.mark.parametrize("kind", STRATEGIES)
def test_a_scaling_of_every_type_is_read_and_dumped(read, kind, place):
    config = read(PLAIN, f"{place}={json.dumps(example(kind))}")
    made = config.rope.scaling if place == "rope.scaling" else config.stages[0].scaling
    assert made == parse_scaling(example(kind))
    for key, value in example(kind).items():
        assert made.model_dump(mode="json")[key] == value or isinstance(value, dict)
    again = read(dump(config))
    assert again == config
    assert dump(again) == dump(config)


@pytest.mark.parametrize("kind", STRATEGIES)
def test_a_sweeps_entry_of_every_type_is_read_and_dumped(read, kind):
    sweep = read("{}", f"scalings=[{json.dumps(example(kind))}]", schema=SweepConfig)
    assert sweep.scalings[0].at(512, 128, NoScaling()) == parse_scaling(example(kind))
    assert read(dump(sweep), schema=SweepConfig) == sweep


@pytest.mark.parametrize(
    ("here", "file"),
    [
        ({}, {"inv_freq": [0.5**n for n in range(16)]}),
        ({}, {"factors": [[1 + n / layer for n in range(16)] for layer in (1, 2, 3, 4)]}),
        ({}, {"factors": [2] * 16, "attention_factor": [1.1, 1.2, 1.3, 1.4]}),
        ({"factors": [2] * 16}, {"attention_factor": 1.5}),
    ],
)
def test_explicit_numbers_take_the_place_of_their_files_path(read, tmp_path, here, file):
    path = tmp_path / "numbers.json"
    path.write_text(json.dumps(file))
    config = read(
        PLAIN, f"rope.scaling={json.dumps({'type': 'explicit', 'path': str(path), **here})}"
    )
    assert config.rope.scaling == ExplicitScaling(**here, **file)
    dumped = dump(config)
    assert yaml.safe_load(dumped)["rope"]["scaling"].items() >= (here | file).items()
    assert path.name not in dumped
    path.unlink()
    assert read(dumped) == config


def test_a_pattern_says_what_layers_have_of_their_own(read):
    text = PLAIN + (
        "model: {num_hidden_layers: 5}\n"
        "rope:\n"
        "  base: 500.0\n"
        "  rotary_dim: 16\n"
        "  scaling: {type: pi, factor: 2}\n"
        "  layer_pattern:\n"
        "    - {sliding_window: 32, base: 100}\n"
        "    - {scaling: {type: drope}}\n"
        "    - {}\n"
    )
    config = read(text)
    # of the layers that the pattern leaves as they are
    assert config.geometry == RotaryGeometry(rotary_dim=16, base=500.0, train_length=128)
    assert config.sliding_windows == (32, None, None)
    layers = config.rotary_layers
    pattern = (LayerOverride(base=100.0), LayerOverride(scaling=DRoPEScaling()), LayerOverride())
    assert layers == RotaryLayers(config.geometry, 5, pattern, head_dim=32)
    shared, own = PIScaling(factor=2), RotaryGeometry(16, 100.0, 128)
    wanted = [(own, shared), (config.geometry, DRoPEScaling()), (config.geometry, shared)]
    assert layers.per_layer(config.stage_scaling(0)) == [*wanted, *wanted[:2]]


def test_without_a_pattern_all_layers_are_alike(read):
    config = read(PLAIN, "rope.scaling={type: ntk, factor: 2}")
    assert config.sliding_windows == (None,)
    assert config.rotary_layers.per_layer(config.rope.scaling) == [
        (RotaryGeometry(32, 10000.0, 128), NTKScaling(factor=2))
    ]


def test_a_layers_scaling_stays_in_every_stage_and_the_others_change(read):
    config = read(
        PLAIN,
        "stages=[{steps: 200, seq_len: 64, batch_size: 1}, {steps: 9, seq_len: 128, batch_size: 1,"
        " scaling: {type: yarn, factor: 2}}]",
        "rope.layer_pattern=[{scaling: {type: abf}}, {}]",
    )
    assert config.geometry.train_length == 64  # the first stage's
    for stage, shared in enumerate([NoScaling(), YaRNScaling(factor=2)]):
        made = [
            scaling for _, scaling in config.rotary_layers.per_layer(config.stage_scaling(stage))
        ]
        assert made == [ABFScaling(), shared] * 2


def test_explicit_numbers_by_layer_reach_their_layers(read):
    config = read(PLAIN, f"rope.scaling={json.dumps(example('explicit'))}")
    made = [scaling for _, scaling in config.rotary_layers.per_layer(config.rope.scaling)]
    rows, m = EXAMPLES["explicit"]["inv_freq"], EXAMPLES["explicit"]["attention_factor"]
    assert made == [
        ExplicitScaling(inv_freq=row, attention_factor=own)
        for row, own in zip(rows, m, strict=True)
    ]


def test_any_number_of_layers_is_checked_at_once(read):
    assert read(PLAIN, "model.num_hidden_layers=2147483647").model.num_hidden_layers == 2**31 - 1


# Back to YAML


@pytest.mark.parametrize(
    ("schema", "text", "overrides"),
    [
        (Config, PLAIN, []),
        (Config, FULL, []),
        (Config, PLAIN, ["data.type=text", "data.files=['*.md']"]),
        (Config, PLAIN, ["data.type=jsonl", "data.files={train: [a], validation: [b]}"]),
        (Config, PLAIN, ["data.type=hub", "data.id=owner/set", "data.revision='7'"]),
        (Config, PLAIN, ["rope.base=1.5e300", "optim.eps=5e-324", "optim.learning_rate=0.1"]),
        (Config, PLAIN, ["name='123'", "runs_dir=' a: b #c'", "data.cache_dir='null'"]),
        (Config, PLAIN, ["name='0x1f'", "runs_dir='yes'", "data.cache_dir='2026-01-02'"]),
        (Config, PLAIN, ["runs_dir='naïve/路'", "data.cache_dir=''"]),
        (SweepConfig, SWEEP, []),
        (SweepConfig, "{}", []),
        (SweepConfig, "scalings: [trained, {type: yarn, factor: 1.5}]", ["tolerance=1e-3"]),
        *((Config, path.read_text(), []) for path in CONFIGS),
        *((SweepConfig, path.read_text(), []) for path in SWEEPS),
    ],
)
def test_a_dump_loads_as_the_same_config(read, schema, text, overrides):
    config = read(text, *overrides, schema=schema)
    again = read(dump(config), schema=schema)
    assert again == config
    assert dump(again) == dump(config)


@pytest.mark.parametrize("text", ["1e3", "7e10", "1E5"])
def test_a_dump_quotes_text_that_some_yaml_readers_take_for_a_number(read, text):
    config = read(PLAIN, f"name='{text}'", f"data.cache_dir='{text}'")
    assert config.name == text
    assert read(dump(config)) == config


def test_a_dump_keeps_a_dollar_brace(read):
    config = read(PLAIN, r"runs_dir='\${HOME}/runs'")
    assert config.runs_dir == "${HOME}/runs"
    assert read(dump(config)) == config


def models_in(value):
    """Yield a config's own model and all models inside it."""
    if isinstance(value, BaseModel):
        yield value
        for name in type(value).model_fields:
            yield from models_in(getattr(value, name))
    elif isinstance(value, tuple | list):
        for item in value:
            yield from models_in(item)


@pytest.mark.parametrize(("schema", "text"), [(Config, FULL), (SweepConfig, SWEEP)])
def test_every_part_is_frozen(read, schema, text):
    parts = list(models_in(read(text, schema=schema)))
    assert len(parts) > 6
    for part in parts:
        for name in type(part).model_fields:
            with pytest.raises(ValidationError, match="frozen"):
                setattr(part, name, getattr(part, name))


# The entries of a sweep


def entries(read, text, *overrides):
    return read(f"scalings: {text}", *overrides, schema=SweepConfig).scalings


def test_labels_are_made_of_type_and_factor_unless_named(read):
    made = entries(
        read,
        "[trained, none, {type: pi, factor: auto}, {type: pi, factor: 4}, "
        "{type: ntk, factor: 2.5}, {type: yarn, factor: 1.0e+6}, "
        "{type: yarn, factor: 4, beta_fast: 64, name: fast}, {type: abf}, "
        "{type: resonance, inner: {type: pi, factor: 3}}, {type: resonance}]",
    )
    assert [entry.label for entry in made] == [
        "trained",
        "none",
        "pi-auto",
        "pi-4",
        "ntk-2.5",
        "yarn-1e+06",
        "fast",
        "abf",
        "resonance-pi-3",
        "resonance-none",
    ]
    factors = ["", "", "auto", "4", "2.5", "1e+06", "4", "", "3", ""]
    assert [entry.factor_label for entry in made] == factors


def test_a_bare_word_is_a_type(read):
    assert entries(read, "[trained, none]") == entries(read, "[{type: trained}, {type: none}]")


def test_the_default_scalings(read):
    made = read("{}", schema=SweepConfig).scalings
    assert [entry.label for entry in made] == ["trained", "pi-auto", "ntk-auto", "yarn-auto"]


def test_a_scaling_as_it_was_trained_stays_itself(read):
    own = YaRNScaling(factor=16, beta_fast=20)
    (trained,) = entries(read, "[trained]")
    assert all(trained.at(n, 128, own) is own for n in (1, 128, 100_000))


def test_an_automatic_factor_is_length_over_window_and_at_least_1(read):
    pi, yarn = entries(read, "[{type: pi, factor: auto}, {type: yarn, factor: auto, name: y}]")
    for length, factor in [(32, 1.0), (128, 1.0), (129, 129 / 128), (192, 1.5), (4096, 32.0)]:
        assert pi.at(length, 128, NoScaling()) == PIScaling(factor=factor)
        assert yarn.at(length, 128, NTKScaling(factor=3)) == YaRNScaling(factor=factor)


@pytest.mark.parametrize("kind", EXTENDING)
def test_every_factor_that_is_an_extension_may_be_automatic(read, kind):
    settings = example(kind, factor="auto")
    (entry,) = entries(read, f"[{json.dumps(settings)}]")
    assert (entry.label, entry.factor_label) == (f"{kind}-auto", "auto")
    for length, factor in [(32, 1.0), (128, 1.0), (192, 1.5), (4096, 32.0)]:
        wanted = parse_scaling(settings | {"factor": factor})
        assert entry.at(length, 128, NTKScaling(factor=3)) == wanted


def test_an_automatic_factor_may_be_that_of_what_resonance_stands_on(read):
    (entry,) = entries(read, "[{type: resonance, inner: {type: yarn, factor: auto, beta_fast: 9}}]")
    assert (entry.label, entry.factor_label) == ("resonance-yarn-auto", "auto")
    for length, factor in [(32, 1.0), (192, 1.5)]:
        inner = YaRNScaling(factor=factor, beta_fast=9)
        assert entry.at(length, 128, NoScaling()) == ResonanceScaling(inner=inner)


@pytest.mark.parametrize("place", ["{}", "{{type: resonance, inner: {}}}"])
def test_a_factor_that_is_no_extension_is_not_automatic(read, complaint, place):
    # of dynamic_ntk: s = a·n/L − (a − 1); a is not how many times longer the context becomes
    message = complaint(
        "scalings: [" + place.format("{type: dynamic_ntk, factor: auto}") + "]", schema=SweepConfig
    )
    key = "scalings.0.factor" if place == "{}" else "scalings.0.inner.factor"
    assert message == f"C.yaml: {key}: should be a number, not 'auto'"
    (entry,) = entries(read, "[{type: dynamic_ntk, factor: 4}]")
    assert entry.label == "dynamic_ntk-4"


def test_a_given_factor_is_the_same_at_every_length(read):
    made = entries(
        read,
        "[{type: ntk, factor: 4}, {type: yarn, factor: 2, beta_slow: 3, attention_factor: 1.5}, "
        "none]",
    )
    wanted = [
        NTKScaling(factor=4),
        YaRNScaling(factor=2, beta_slow=3, attention_factor=1.5),
        NoScaling(),
    ]
    for length in (16, 128, 4096):
        assert [entry.at(length, 128, PIScaling(factor=9)) for entry in made] == wanted


def test_entries_replace_the_trained_scaling(read):
    # an entry's own factor is not multiplied with the checkpoint's
    (pi,) = entries(read, "[{type: pi, factor: 4}]")
    assert isinstance(pi, SweepEntry)
    assert pi.at(1024, 128, PIScaling(factor=2)) == PIScaling(factor=4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "scalings: [{type: pi, factor: 2}, {type: pi, factor: 2.0}]",
            "scalings: pi-2 occurs twice; give one a name",
        ),
        (
            "scalings: [trained, {type: pi, factor: 2, name: trained}]",
            "scalings.1.name: trained is the checkpoint's own scaling; choose another",
        ),
        ("scalings: [none, none, trained]", "scalings: none occurs twice; give one a name"),
        (
            "scalings: [yran]",
            f"scalings.0.type: 'yran' is not one of trained, {TYPES}; did you mean yarn?",
        ),
        ("scalings: [{type: pi}]", "scalings.0.factor: is required but was not given"),
        ("scalings: [pi]", "scalings.0.factor: is required but was not given"),
        (
            "scalings: [{factor: 3}]",
            f"scalings.0.type: is required; it is one of trained, {TYPES}",
        ),
        (
            "scalings: [{type: yarn, factor: 2, beta_fats: 3}]",
            "scalings.0.beta_fats: unknown key; did you mean scalings.0.beta_fast?",
        ),
        (
            "scalings: [{type: yarn, factor: 2, beta_fast: 1}]",
            "scalings.0: beta_fast (1) must be above beta_slow (1)",
        ),
        ("lengths: []", "lengths: give at least one"),
        ("lengths: [4, 2]", "lengths: [4, 2] must be ascending, without repeats"),
        ("lengths: [2, 4, 4]", "lengths: [2, 4, 4] must be ascending, without repeats"),
        ("lengths: [1, 2]", "lengths.0: should be greater than or equal to 2, not 1"),
        (
            "{lengths: [64, 128], targets: 33}",
            "lengths: 64 is too short for 33 scored targets; the shortest length must be at "
            "least 66, or targets at most 32",
        ),
    ],
)
def test_bad_sweeps(complaint, text, message):
    assert complaint(text, schema=SweepConfig) == f"C.yaml: {message}"


@pytest.mark.parametrize(
    ("text", "key", "wrong"),
    [
        ("scalings: []", "scalings", "at least one element"),
        ("scalings: trained", "scalings", "not 'trained'; a list of one element is [trained]"),
        ("scalings: [3]", "scalings.0", "not 3"),
        ("scalings: [{type: pi, factor: aut}]", "scalings.0.factor", "auto"),
        (
            "scalings: [{type: pi, factor: 2, name: a/b}]",
            "scalings.0.name",
            "starting with a letter or digit, not 'a/b'",
        ),
        ("protocols: []", "protocols", "at least one element"),
        ("protocols: [same]", "protocols.0", "'same_tokens'"),
        ("protocols: [same_tokens, same_tokens]", "protocols", "same_tokens"),
        ("bos: always", "bos", "'every_window'"),
        ("split: train", "split", "'test' or 'validation', not 'train'"),
        ("tolerance: 0", "tolerance", "greater than 0"),
    ],
)
def test_bad_values_of_a_sweep(complaint, text, key, wrong):
    message = complaint(text, schema=SweepConfig)
    assert message.startswith(f"C.yaml: {key}: ")
    assert wrong in message


def test_a_factor_too_small_is_told_the_least_one(complaint):
    # as it is where a strategy stands by itself: "auto" is not the only right answer
    message = complaint("scalings: [{type: pi, factor: 0.5}]", schema=SweepConfig)
    assert re.match(r"C.yaml: scalings\.0\.factor: .*(at least|equal to) 1\b.*not 0\.5", message)


def test_a_key_of_another_type_is_not_suggested(complaint):
    message = complaint("scalings: [{type: none, factor: 3}]", schema=SweepConfig)
    *owners, last = (kind for kind in STRATEGIES if kind in (*EXTENDING, "dynamic_ntk"))
    assert message == (
        "C.yaml: scalings.0.factor: unknown key; "
        f"it belongs to scalings.0.type {', '.join(owners)} or {last}"
    )


def test_the_shortest_length_may_be_twice_the_targets(read):
    assert read("{lengths: [64], targets: 32}", schema=SweepConfig).targets == 32
