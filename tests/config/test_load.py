"""From YAML and overrides to a validated config and back; and what bad input is told."""

import copy
import json
import re
from pathlib import Path
from typing import Annotated, Literal

import pytest
import yaml
from pydantic import BaseModel, Field, ValidationError, create_model

from rope_jax.config.data import StdlibData, TextData
from rope_jax.config.explain import validate
from rope_jax.config.keys import fields
from rope_jax.config.load import dump, load
from rope_jax.config.sweep import SweepConfig, SweepEntry
from rope_jax.config.training import Config
from rope_jax.errors import UserError
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

CONFIGS = sorted(Path(__file__).parents[2].glob("configs/*.yaml"))
SWEEPS = sorted(Path(__file__).parents[2].glob("configs/sweeps/*.yaml"))

TYPES = ", ".join(STRATEGIES)
# Those with a factor that is how many times longer the context becomes: a sweep's may be auto.
EXTENDING = [
    name
    for name, strategy in STRATEGIES.items()
    if "factor" in strategy.model_fields and name != "dynamic_ntk"
]

PLAIN = """\
name: plain
stages:
  - {steps: 200, seq_len: 128, batch_size: 16}
"""

# What PLAIN's model of 4 layers, each with heads of 16 pairs, has to be told of a scaling beside
# its factor. A new strategy without an example fails below.
EXAMPLES = {
    "none": {"query_scale": {"type": "logn"}},
    "pi": {"query_scale": {"type": "llama4", "attn_scale": 0.2, "floor_scale": 64}},
    "ntk": {"query_scale": {"type": "ministral", "beta": 0.3}},
    "dynamic_ntk": {"factor": 3.0},
    "dynamic_pi": {},
    "ntk_by_parts": {"ramp": "rotations"},
    "yarn": {"beta_fast": 16.0, "mscale": 0.7, "mscale_all_dim": 0.5},
    "dynamic_yarn": {"attention_factor": 1.5, "truncate": False},
    "longrope": {"short_factor": [1.0] * 16, "long_factor": [1 + n / 8 for n in range(16)]},
    "llama3": {"low_freq_factor": 0.5},
    "abf": {"base": 2e6},
    "mixed_base": {"e": 0.5},
    "p_rope": {"p": 0.25},
    "cope": {"c": 5},
    "drope": {"c": 0.103},
    "explicit": {
        "inv_freq": [[0.5**n / layer for n in range(16)] for layer in (1, 2, 3, 4)],
        "attention_factor": [1.0, 1.25, 1.5, 2.0],
    },
    "resonance": {"inner": {"type": "llama3", "factor": 4.0}},
}


def example(kind, **settings):
    """A scaling of this type as YAML says it; its factor, where it has one, is 2."""
    factor = {"factor": 2.0} if kind in EXTENDING else {}
    return {"type": kind} | factor | EXAMPLES[kind] | settings


# Every section, both kinds of list, every union; no key left out.
FULL = """\
name: full
runs_dir: elsewhere
seed: 7
log_every_steps: 10
model:
  hidden_size: 96
  intermediate_size: 200
  num_hidden_layers: 3
  num_attention_heads: 6
  num_key_value_heads: 2
  head_dim: 20
  tie_word_embeddings: false
  qk_norm: true
  rms_norm_eps: 1.0e-6
  initializer_range: 0.01
  dtype: bfloat16
  layers: scanned
  remat: true
  attention: xla
rope:
  base: 500000.0
  rotary_dim: 12
  train_length: 256
  layout: interleaved
  scaling: {type: yarn, factor: 4.0, beta_fast: 16, beta_slow: 2, truncate: false, ramp: index,
            attention_factor: 1.1, mscale: 0.0, mscale_all_dim: 0.5,
            query_scale: {type: llama4, attn_scale: 0.2, floor_scale: 64}}
  layer_pattern:
    - {scaling: {type: abf, base: 1.0e+6, query_scale: null}, base: null, sliding_window: 32}
    - {scaling: null, base: 1000.0, sliding_window: null}
data:
  type: parquet
  files: {train: [a, b], test: [c]}
  column: body
  validation_fraction: 0.2
  test_fraction: 0.3
  cache_dir: /somewhere
optim:
  learning_rate: 1.0e-4
  schedule: wsd
  warmup_steps: 5
  final_lr_fraction: 0.0
  decay_fraction: 0.5
  weight_decay: 0.0
  b1: 0.8
  b2: 0.99
  eps: 1.0e-9
  clip_norm: 0.5
stages:
  - {steps: 20, seq_len: 64, batch_size: 4, grad_accumulation: 2, learning_rate: null,
     scaling: {type: none, query_scale: null}}
  - {steps: 30, seq_len: 256, batch_size: 2, grad_accumulation: 1,
     scaling: {type: pi, factor: 4.0, query_scale: {type: ministral, beta: 0.2}},
     learning_rate: 5.0e-5}
validation: {every_steps: 3, batches: 2}
checkpoint: {every_steps: 4, keep: 1}
mesh: {data: 2, fsdp: 3}
distributed: {coordinator: 'host:1', num_processes: 3, process_id: 2, timeout: 7}
"""

SWEEP = """\
name: wide
lengths: [32, 64, 256]
protocols: [same_tokens, whole_window, sliding, per_position, yarn_compat]
stride: 16
scalings:
  - trained
  - none
  - {type: pi, factor: auto}
  - {type: ntk, factor: 8}
  - {type: ntk, factor: 8, name: again}
  - {type: yarn, factor: 2.5, beta_fast: 64, truncate: false, attention_factor: 1.0}
  - {type: resonance, inner: {type: ntk, factor: auto}, query_scale: {type: logn}}
  - {type: longrope, factor: auto, short_factor: [1, 1], long_factor: [1, 2.5]}
max_documents: 8
max_blocks: 3
targets: 10
bos: every_window
split: validation
seed: 3
memory_gib: 0.5
attention: blockwise
tolerance: 0.1
resamples: 100
distributed: {coordinator: 'host:1', num_processes: 3, process_id: 2, timeout: 7}
"""


@pytest.fixture
def read(tmp_path):
    """Load `text` (or bytes) as a file, with overrides."""

    def read(text, *overrides, schema=Config):
        path = tmp_path / "C.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load(schema, path, overrides)

    return read


@pytest.fixture
def complaint(read, tmp_path):
    """The message about bad input, its file called C.yaml."""

    def complaint(text, *overrides, schema=Config):
        with pytest.raises(UserError) as caught:
            read(text, *overrides, schema=schema)
        message = str(caught.value)
        assert "\n" not in message
        return message.replace(str(tmp_path / "C.yaml"), "C.yaml")

    return complaint


# What a file and its overrides say


def test_a_file_says_what_it_holds(read):
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


def test_what_is_left_out_has_its_default(read):
    config = read(PLAIN)
    assert config.model_dump(exclude={"name", "stages"}) == Config(
        name="other", stages=config.stages
    ).model_dump(exclude={"name", "stages"})
    assert config.data == StdlibData()
    assert config.rope.scaling == NoScaling()


def test_no_file_is_overrides_alone():
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


def test_list_elements_go_by_number(read):
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


def test_a_new_type_keeps_nothing_of_the_old(read, complaint):
    assert read(FULL, "data.type=text", "data.files=[x]").data == TextData(files=["x"])
    assert read(FULL, "data.type=stdlib").data == StdlibData()
    assert read(FULL, "stages.1.scaling.type=none").stages[1].scaling == NoScaling()
    message = complaint(FULL, "stages.1.scaling.type=ntk")
    assert message == "C.yaml: stages.1.scaling.factor: is required and was not given"


def test_the_same_type_keeps_the_rest(read):
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


def test_every_scaling_type_has_an_example():
    assert set(EXAMPLES) == set(STRATEGIES)


@pytest.mark.parametrize("place", ["rope.scaling", "stages.0.scaling"])
@pytest.mark.parametrize("kind", EXAMPLES)
def test_a_scaling_of_every_type_is_read_and_dumped(read, kind, place):
    config = read(PLAIN, f"{place}={json.dumps(example(kind))}")
    made = config.rope.scaling if place == "rope.scaling" else config.stages[0].scaling
    assert made == parse_scaling(example(kind))
    for key, value in example(kind).items():
        assert made.model_dump(mode="json")[key] == value or isinstance(value, dict)
    again = read(dump(config))
    assert again == config
    assert dump(again) == dump(config)


@pytest.mark.parametrize("kind", EXAMPLES)
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
    assert layers.each(config.stage_scaling(0)) == [*wanted, *wanted[:2]]


def test_without_a_pattern_all_layers_are_alike(read):
    config = read(PLAIN, "rope.scaling={type: ntk, factor: 2}")
    assert config.sliding_windows == (None,)
    assert config.rotary_layers.each(config.rope.scaling) == [
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
        made = [scaling for _, scaling in config.rotary_layers.each(config.stage_scaling(stage))]
        assert made == [ABFScaling(), shared] * 2


def test_explicit_numbers_by_layer_reach_their_layers(read):
    config = read(PLAIN, f"rope.scaling={json.dumps(example('explicit'))}")
    made = [scaling for _, scaling in config.rotary_layers.each(config.rope.scaling)]
    rows, m = EXAMPLES["explicit"]["inv_freq"], EXAMPLES["explicit"]["attention_factor"]
    assert made == [
        ExplicitScaling(inv_freq=row, attention_factor=own)
        for row, own in zip(rows, m, strict=True)
    ]


def test_any_number_of_layers_is_checked_at_once(read):
    assert read(PLAIN, "model.num_hidden_layers=2147483647").model.num_hidden_layers == 2**31 - 1


# And back


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
def test_a_dump_keeps_text_that_only_some_yaml_readers_take_for_a_number(read, text):
    config = read(PLAIN, f"name='{text}'", f"data.cache_dir='{text}'")
    assert config.name == text
    assert read(dump(config)) == config


def test_a_dump_keeps_a_dollar_brace(read):
    config = read(PLAIN, r"runs_dir='\${HOME}/runs'")
    assert config.runs_dir == "${HOME}/runs"
    assert read(dump(config)) == config


def models_in(value):
    """A config's own model and all those inside it."""
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


# Bad input: one line that names the key, what was wrong, and the nearest valid choice

TOP = (
    "there are name, runs_dir, seed, log_every_steps, model, rope, data, optim, stages, "
    "validation, checkpoint, mesh, distributed"
)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        # unknown keys
        ("nme=x", "nme: unknown key; did you mean name?"),
        ("zzz=1", f"zzz: unknown key; {TOP}"),
        ("hidden_size=64", "hidden_size: unknown key; did you mean model.hidden_size?"),
        ("model.hiden_size=64", "model.hiden_size: unknown key; did you mean model.hidden_size?"),
        ("stages.0.stepz=3", "stages.0.stepz: unknown key; did you mean stages.0.steps?"),
        (
            "rope.scaling.type=yarn rope.scaling.factor=2 rope.scaling.beta_fats=3",
            "rope.scaling.beta_fats: unknown key; did you mean rope.scaling.beta_fast?",
        ),
        (
            "stages.0.scaling.type=pi stages.0.scaling.factor=2 stages.0.scaling.factr=3",
            "stages.0.scaling.factr: unknown key; did you mean stages.0.scaling.factor?",
        ),
        (
            "stages.0.scaling.type=pi stages.0.scaling.fctor=3",
            "stages.0.scaling.fctor: unknown key; did you mean stages.0.scaling.factor?"
            " (and 1 more)",
        ),
        (
            "data.type=text data.files=[a] data.flies=[b]",
            "data.flies: unknown key; did you mean data.files?",
        ),
        (
            "validation.zzz=3",
            "validation.zzz: unknown key; there are every_steps, batches",
        ),
        # missing
        ("data.type=text", "data.files: is required and was not given"),
        ("rope.scaling.type=pi", "rope.scaling.factor: is required and was not given"),
        (
            "rope.scaling.factor=2",
            f"rope.scaling.type: is required; it is one of {TYPES}",
        ),
        # which of a union
        (
            "rope.scaling.type=yran",
            f"rope.scaling.type: 'yran' is not one of {TYPES}; did you mean yarn?",
        ),
        ("data.type=csv", "data.type: 'csv' is not one of stdlib, text, jsonl, parquet, hub"),
        # values that do not go together
        ("model.head_dim=33", "model: head_dim 33 is odd; rotation works on pairs"),
        (
            "model.num_attention_heads=5",
            "model: hidden_size 128 is not a multiple of num_attention_heads 5; "
            "set head_dim or change one of them",
        ),
        (
            "model.num_key_value_heads=3",
            "model: num_attention_heads 4 is not a multiple of num_key_value_heads 3",
        ),
        (
            "optim.warmup_steps=200",
            "optim.warmup_steps 200 is not below the 200 steps of the schedule that starts "
            "at stages[0]",
        ),
        (
            "stages.0.grad_accumulation=3",
            "stages.0: batch_size 16 is not a multiple of grad_accumulation 3",
        ),
        ("rope.rotary_dim=34", "rope.rotary_dim 34 is above head_dim 32"),
        (
            "rope.scaling.type=yarn rope.scaling.factor=2 rope.scaling.beta_slow=32",
            "rope.scaling: beta_fast (32) must be above beta_slow (32)",
        ),
        (
            "rope.scaling.type=ntk rope.scaling.factor=2 rope.rotary_dim=2",
            "rope.rotary_dim: ntk needs at least 4, not 2 (its exponent is d/(d−2))",
        ),
        (
            "stages.0.scaling.type=yarn stages.0.scaling.factor=2 rope.base=1",
            "rope.base: yarn needs a base above 1 (all pairs turn alike at base 1)",
        ),
        (
            "data.test_fraction=0.95",
            "data: validation_fraction and test_fraction leave nothing to train on",
        ),
    ],
)
def test_bad_keys_and_combinations(complaint, overrides, message):
    assert complaint(PLAIN, *overrides.split(" ")) == f"C.yaml: {message}"


YARN = "{type: yarn, factor: 2}"
BASE_1 = "yarn needs a base above 1 (all pairs turn alike at base 1)"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        # the key is the one that was given: of the layer, of the stage, or of all
        (["rope.base=1", f"rope.scaling={YARN}"], f"rope.base: {BASE_1}"),
        (
            ["rope.layer_pattern=[{}, {base: 1}]", f"stages.0.scaling={YARN}"],
            f"rope.layer_pattern.1.base: {BASE_1}",
        ),
        (
            ["rope.base=1", "rope.layer_pattern=[{}, {scaling: " + YARN + "}]"],
            f"rope.base: {BASE_1}",
        ),
        (
            ["rope.layer_pattern=[{}, {}, {scaling: {type: cope, c: 17}}]"],
            "rope.layer_pattern.2.scaling.c: 17 ",
        ),
        (
            [
                "rope.layer_pattern=[{}, {scaling: {type: none}}]",
                "stages.0.scaling={type: cope, c: 17}",
            ],
            "stages.0.scaling.c: 17 ",
        ),
        (
            ["rope.scaling={type: resonance, inner: {type: cope, c: 17}}"],
            "rope.scaling.inner.c: 17 ",
        ),
        (
            ["rope.scaling={type: explicit, inv_freq: [[1], [1], [1]]}"],
            "rope.scaling.inv_freq: 3 entries for 4 layers",
        ),
        (
            ["model.num_hidden_layers=1", "rope.scaling={type: explicit, inv_freq: [[1, 1]]}"],
            "rope.scaling.inv_freq: 2 numbers for the 16 pairs of rotary_dim 32",
        ),
        # what no layer has does nothing
        (
            ["rope.layer_pattern=[{scaling: {type: none}}]", "stages.0.scaling={type: cope}"],
            "stages.0.scaling: no layer has it",
        ),
        (
            ["rope.layer_pattern=[{scaling: {type: none}}]", "rope.scaling={type: cope}"],
            "rope.scaling: no layer has it",
        ),
        (["rope.layer_pattern=[{}, {}, {}, {}, {}]"], "rope.layer_pattern: 5 elements, more than "),
    ],
)
def test_what_does_not_fit_a_layer_is_named_where_it_was_given(complaint, overrides, message):
    assert complaint(PLAIN, *overrides).startswith(f"C.yaml: {message}")


def test_every_row_of_explicit_numbers_is_checked(complaint):
    rows = [[1.0] * 16, [1.0] * 16, [1.0] * 16, [1.0] * 15]
    message = complaint(PLAIN, f"rope.scaling={{type: explicit, factors: {rows}}}")
    assert message.startswith("C.yaml: rope.scaling.factors: 15 numbers for the 16 pairs")


def test_numbers_of_a_file_are_named_by_their_key(complaint, tmp_path):
    path = tmp_path / "numbers.json"
    override = f"rope.scaling={{type: explicit, path: {path}}}"
    for content, message in [
        ({"inv_freq": [1, "x"]}, "rope.scaling.inv_freq.1: should be a number, not 'x'"),
        (
            {"factors": [[1, 2], [1, 0]]},
            "rope.scaling.factors.1.1: should be greater than 0, not 0",
        ),
        ({"factors": 3}, "rope.scaling.factors: should be a list, not 3"),
    ]:
        path.write_text(json.dumps(content))
        assert complaint(PLAIN, override) == f"C.yaml: {message}"


@pytest.mark.parametrize(
    ("override", "right"),
    [
        ("rope.scaling={type: resonance, factor: 2}", "rope.scaling.inner.factor"),
        ("rope.scaling={type: yarn, factor: 2, beta: 1}", "rope.scaling.query_scale.beta"),
        ("rope.query_scale={type: logn}", "rope.scaling.query_scale"),
        ("rope.layer_pattern=[{type: drope}]", "rope.layer_pattern.0.scaling.type"),
        ("stages.0.factor=2", "stages.0.scaling.factor"),
        ("steps=2", "stages.N.steps"),
    ],
)
def test_a_key_that_belongs_one_section_deeper_is_told_where(complaint, override, right):
    message = complaint(PLAIN, override)
    assert f"unknown key; did you mean {right}?" in message


def test_the_beginning_of_several_types_is_told_all_of_them(complaint):
    # Hugging Face's name of dynamic_ntk, which is no more like it than like the others
    message = complaint(PLAIN, "rope.scaling.type=dynamic")
    assert message.endswith("; did you mean dynamic_ntk or dynamic_pi or dynamic_yarn?")


@pytest.mark.parametrize(
    ("override", "key", "wrong"),
    [
        ("stages.0.steps=many", "stages.0.steps", "whole number"),
        ("stages.0.steps=1.5", "stages.0.steps", "whole number"),
        ("stages.0.steps=0", "stages.0.steps", "greater than 0, not 0"),
        ("stages.0=3", "stages.0", "not 3"),
        ("stages=3", "stages", "not 3"),
        ("stages=[]", "stages", "at least one element, not []"),
        ("seed=-1", "seed", "greater than or equal to 0, not -1"),
        ("model=null", "model", "not null"),
        ("model=3", "model", "not 3"),
        ("model.qk_norm=maybe", "model.qk_norm", "true or false, not 'maybe'"),
        ("model.dtype=float16", "model.dtype", "'float32' or 'bfloat16', not 'float16'"),
        ("rope.layout=quarter", "rope.layout", "'half' or 'interleaved', not 'quarter'"),
        ("rope.base=0.5", "rope.base", "greater than or equal to 1, not 0.5"),
        ("rope.base=.nan", "rope.base", "not nan"),
        ("rope.scaling=null", "rope.scaling", "not null"),
        ("rope.scaling=pi", "rope.scaling", "not 'pi'; did you mean rope.scaling.type=pi?"),
        ("rope.rotary_dim=3", "rope.rotary_dim", "3 is not an even number"),
        ("optim.learning_rate=.inf", "optim.learning_rate", "finite number, not inf"),
        ("optim.learning_rate=0", "optim.learning_rate", "greater than 0, not 0"),
        ("optim.b1=1", "optim.b1", "less than 1, not 1"),
        ("optim.b1=.nan", "optim.b1", "not nan"),
        ("optim.final_lr_fraction=1.1", "optim.final_lr_fraction", "less than or equal to 1"),
        ("name=../up", "name", "not '../up'"),
        ("name=", "name", "not null"),
        ("name={a: 1}", "name", "not {'a': 1}"),
        ("validation.every_steps=0", "validation.every_steps", "greater than 0, not 0"),
    ],
)
def test_bad_values(complaint, override, key, wrong):
    message = complaint(PLAIN, override)
    assert message.startswith(f"C.yaml: {key}: ")
    assert wrong in message


def test_several_mistakes_are_counted(complaint):
    text = "name: a/b\nmodel: {hiden_size: 3, head_dim: -2}\nseed: x\n"
    assert complaint(text) == (
        "C.yaml: model.hiden_size: unknown key; did you mean model.hidden_size? (and 4 more)"
    )


def test_a_hint_is_never_the_key_itself(complaint):
    # data is stdlib unless it says otherwise, and stdlib has no files
    message = complaint(PLAIN, "data.files=[a]")
    assert message.startswith("C.yaml: data.files: unknown key")
    assert "did you mean data.files?" not in message


def test_a_later_stages_mistake_says_which_stage(complaint):
    stage = "{steps: 200, seq_len: 8, batch_size: 1, learning_rate: 0.1}"
    text = f"name: a\nstages: [{stage}, {stage}, {stage}]\n"
    assert complaint(text, "stages.2.steps=100") == (
        "C.yaml: optim.warmup_steps 100 is not below the 100 steps of the schedule that starts "
        "at stages[2]"
    )
    # without a learning rate of its own a stage goes on with the schedule before it
    assert complaint(text, "stages.1.learning_rate=null", "optim.warmup_steps=300") == (
        "C.yaml: optim.warmup_steps 300 is not below the 200 steps of the schedule that starts "
        "at stages[2]"
    )
    assert complaint(text, "stages.2.learning_rate=null", "optim.warmup_steps=200") == (
        "C.yaml: optim.warmup_steps 200 is not below the 200 steps of the schedule that starts "
        "at stages[0]"
    )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed", "seed: not an override; write key=value (see --help)"),
        ("=3", "=3: not an override; write key=value (see --help)"),
        ("", ": not an override; write key=value (see --help)"),
        ("--seed=3", "--seed=3: not an override; write key=value (see --help)"),
        ("name=[", "name: its value '[' is not valid YAML"),
        ("name={a: b: c}", "name: its value '{a: b: c}' is not valid YAML"),
        ("stages.1.steps=3", "stages.1.steps: stages has no element 1; the element is number 0"),
        (
            "stages.last.steps=3",
            "stages.last.steps: stages has no element last; the element is number 0",
        ),
        ("name=${nowhere}", "C.yaml: name: Interpolation key 'nowhere' not found"),
    ],
)
def test_bad_overrides(complaint, override, message):
    assert complaint(PLAIN, override).startswith(message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("name: [\n", "line 2: not valid YAML"),
        ("name: a\n  b: c\n", "line 2: not valid YAML (mapping values are not allowed"),
        ("name: a\nseed: 1\nseed: 2\n", "line 3: not valid YAML (found duplicate key seed)"),
        ("name: a\n\tb: 3\n", "line 2: not valid YAML (found a tab"),
        ("name: a\n---\nname: b\n", "line 2: not valid YAML"),
        ("name: !!python/name:os.system\n", "line 1: not valid YAML"),
        (bytes(range(256)), "is not UTF-8 (byte 128)"),
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", "is not UTF-8 (byte 0)"),
        ("name: é".encode("latin-1"), "is not UTF-8 (byte 6)"),
        ("- a\n- b\n", "should hold `key: value` lines"),
        ("3\n", "should hold `key: value` lines"),
        ("", "name: is required and was not given (and 1 more)"),
        ("name: ${nowhere}\n", "name: Interpolation key 'nowhere' not found"),
        ("name: ${seed\n", ""),
    ],
)
def test_bad_files(complaint, content, message):
    assert complaint(content).startswith(f"C.yaml: {message}")


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "file").write_text("")
    for path, wrong in [
        (tmp_path, "is a directory, not a YAML file"),
        (tmp_path / "none.yaml", "no such file"),
        (tmp_path / "file" / "c.yaml", "cannot be read (Not a directory)"),
        (tmp_path / ("x" * 300), "cannot be read (File name too long)"),
    ]:
        with pytest.raises(UserError) as caught:
            load(Config, path)
        assert str(caught.value) == f"{path}: {wrong}"


# The same, for every key there is


def sections(node, path=()):
    """The path of every mapping in a raw config."""
    items = enumerate(node) if isinstance(node, list) else ()
    if isinstance(node, dict):
        yield path
        items = node.items()
    for key, inner in items:
        yield from sections(inner, (*path, key))


def leaves(node, path=()):
    """The path of every value that is no mapping or list."""
    if isinstance(node, dict | list):
        for key, inner in node.items() if isinstance(node, dict) else enumerate(node):
            yield from leaves(inner, (*path, key))
    else:
        yield path


def at(node, path):
    for part in path:
        node = node[part]
    return node


def raw_configs():
    """Raw forms of FULL and SWEEP, with the schema of each."""
    sweep = yaml.safe_load(SWEEP)
    sweep["scalings"] = [s if isinstance(s, dict) else {"type": s} for s in sweep["scalings"]]
    return [(Config, yaml.safe_load(FULL)), (SweepConfig, sweep)]


def complaint_about(schema, raw):
    with pytest.raises(UserError) as caught:
        validate(schema, raw, "C")
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_an_unknown_key_is_named_wherever_it_is():
    seen = 0
    for schema, full in raw_configs():
        for path in sections(full):
            if path == ("data", "files"):  # not a section but a mapping from split to files
                continue
            raw = copy.deepcopy(full)
            at(raw, path)["qqqqqqqq"] = 1
            dotted = ".".join(map(str, (*path, "qqqqqqqq")))
            message = complaint_about(schema, raw)
            assert message.startswith(f"C: {dotted}: unknown key; there are ")
            for name in at(full, path):
                assert name in message
            seen += 1
    assert seen >= 18


def test_a_misspelt_key_is_told_the_right_one_wherever_it_is():
    for schema, full in raw_configs():
        for path in sections(full):
            for key in at(full, path):
                if key in ("type", "train", "test"):
                    continue
                raw = copy.deepcopy(full)
                at(raw, path)[key + "x"] = at(raw, path).pop(key)
                wrong, right = (".".join(map(str, (*path, k))) for k in (key + "x", key))
                expected = f"C: {wrong}: unknown key; did you mean {right}?"
                assert complaint_about(schema, raw).startswith(expected)


def test_a_value_of_another_kind_is_named_wherever_it_is():
    seen = 0
    for schema, full in raw_configs():
        for path in leaves(full):
            raw = copy.deepcopy(full)
            at(raw, path[:-1])[path[-1]] = {"a": "mapping"}
            dotted = ".".join(map(str, path))
            message = complaint_about(schema, raw)
            if path[:2] == ("data", "files"):  # a union of two shapes: both complain
                dotted = "data.files"
            assert message.startswith(f"C: {dotted}"), message
            seen += 1
    assert seen > 80


def test_a_missing_key_is_named_wherever_it_is():
    missing = {
        (Config, "name"),
        (Config, "stages"),
        (Config, "stages.0.steps"),
        (Config, "stages.1.seq_len"),
        (Config, "stages.1.batch_size"),
        (Config, "stages.1.scaling.factor"),
        (Config, "rope.scaling.factor"),
        (Config, "data.files"),
        (SweepConfig, "scalings.2.factor"),
        (SweepConfig, "scalings.5.factor"),
    }
    for schema, full in raw_configs():
        for dotted in (key for s, key in missing if s is schema):
            raw = copy.deepcopy(full)
            *path, last = (int(p) if p.isdigit() else p for p in dotted.split("."))
            del at(raw, path)[last]
            assert complaint_about(schema, raw) == f"C: {dotted}: is required and was not given"


# The list of keys that --help shows


def keys_by_json_schema(schema):
    """{dotted key: [its JSON schema, in every union member that has it]}; N: a list's element."""
    root = schema.model_json_schema(mode="serialization")
    keys = {}

    def walk(node, prefix):
        """Collect what is below a node; whether there is anything."""
        while "$ref" in node:
            node = root["$defs"][node["$ref"].rpartition("/")[2]]
        found = False
        for choice in (*node.get("anyOf", ()), *node.get("oneOf", ())):
            found |= walk(choice, prefix)
        if node.get("type") == "array":
            found |= walk(node["items"], f"{prefix}N.")
        for name, inner in node.get("properties", {}).items():
            found = True
            if not walk(inner, f"{prefix}{name}."):
                keys.setdefault(prefix + name, []).append(inner)
        return found

    walk(root, "")
    return keys


def row_of(key, rows):
    """The row where a key is listed: its own, or that of the same union where it first stands."""
    for place in (key[:end] for end, letter in enumerate(key) if letter == "."):
        about = rows.get(f"{place}.type", ("", "", ""))[2]
        if elsewhere := re.search(r"; keys as of ([\w.]+)", about):
            if key == f"{place}.type":
                break
            return row_of(elsewhere[1] + key.removeprefix(place), rows)
    return rows[key]


@pytest.mark.parametrize("schema", [Config, SweepConfig])
def test_fields_lists_every_key_once_and_describes_it(schema):
    rows = {key: row for key, *row in fields(schema)}
    assert len(rows) == len(list(fields(schema)))
    keys = keys_by_json_schema(schema)
    assert len(keys) > 15
    for key, members in keys.items():
        about = row_of(key, rows)[2]
        if not key.endswith("type"):
            # what each of the types that share the key says of it
            assert all(each["description"] in about for each in members), key
    for key, (kind, default, about) in rows.items():
        assert about, f"{key} has no description"
        if key not in keys:
            # Beside the keys that hold a value there are headings: of lists, and of sections.
            assert kind in ("list", "section")
            assert default == ""
            assert any(other.startswith(key + ".") for other in rows)


@pytest.mark.parametrize("schema", [Config, SweepConfig])
def test_fields_list_a_union_again_only_by_naming_the_place(schema):
    """No key of such a union has a row, and the place that is named has rows of its own."""
    rows = {key: row for key, *row in fields(schema)}
    seen = 0
    for key, (kind, _, about) in rows.items():
        if elsewhere := re.search(r"; keys as of ([\w.]+)", about):
            section = key.removesuffix("type")
            assert [other for other in rows if other.startswith(section)] == [key]
            first = rows[f"{elsewhere[1]}.type"]
            assert "; keys as of" not in first[2]
            assert set(kind.split("|")) <= set(first[0].split("|"))
            seen += 1
    assert seen == {Config: 3, SweepConfig: 1}[schema]


def test_fields_name_another_place_only_where_it_lists_every_type():
    def kind(name, **annotations):
        fields = {key: (value, Field(description=key)) for key, value in annotations.items()}
        return create_model(name, type=(Literal[name], name), **fields)

    def one_of(first, second):
        return Annotated[first | second, Field(discriminator="type")]

    a, b, c = (kind(name, **{f"key_{name}": int}) for name in "abc")
    outer, other = kind("outer", part=one_of(a, b)), kind("other")
    fields_of = {
        "first": one_of(outer, other),
        "again": one_of(b, a),  # listed inside a type of another union
        "fewer": one_of(outer, other),
        "overlap": one_of(b, c),  # of which that place lists one alone
    }
    schema = create_model("Schema", **{key: (value, ...) for key, value in fields_of.items()})
    rows = {key: about for key, _, _, about in fields(schema)}
    assert rows["again.type"].endswith("; keys as of first.part")
    assert rows["fewer.type"].endswith("; keys as of first")
    assert {key for key in rows if not key.endswith("type")} == {
        "first.part.key_a",
        "first.part.key_b",
        "overlap.key_b",
        "overlap.key_c",
    }


@pytest.mark.parametrize("schema", [Config, SweepConfig])
def test_fields_hide_no_types_default(schema):
    """Where types of a union have one key with several defaults, each is shown."""
    rows = {key: row for key, *row in fields(schema)}
    seen = 0
    for key, members in keys_by_json_schema(schema).items():
        defaults = {each["default"] for each in members if isinstance(each.get("default"), float)}
        for default in defaults:
            _, shown, about = row_of(key, rows)
            assert str(default) in f"{shown} {about}", f"{key} may be {defaults}"
        seen += len(defaults)
    assert seen > 20


def test_fields_tell_types_that_share_a_key_apart():
    rows = {key: row for key, *row in fields(Config)}
    kind, default, about = rows["rope.scaling.factor"]
    assert kind == "float; longrope: float or null"
    assert default == "required; dynamic_ntk, p_rope, drope: 1.0; longrope: null; llama3: 8.0"
    assert about.startswith("s, how many times longer the context becomes; dynamic_ntk: a, how ")
    owners = [kind for kind in STRATEGIES if kind in (*EXTENDING, "dynamic_ntk")]
    assert about.endswith(f" [{', '.join(owners)}]")
    assert rows["rope.scaling.c"][0] == "int or null; drope: float or null"


def test_fields_say_type_default_and_owner():
    rows = {key: row for key, *row in fields(Config)}
    assert rows["name"] == ["str", "required", "the run directory's name"]
    assert rows["model.num_key_value_heads"][:2] == ["int or null", "null"]
    assert rows["model.tie_word_embeddings"][:2] == ["bool", "true"]
    assert rows["model.dtype"][:2] == ["float32|bfloat16", "float32"]
    assert rows["rope.base"][:2] == ["float", "10000.0"]
    assert rows["rope.scaling.type"][:2] == ["|".join(STRATEGIES), "none"]
    assert rows["rope.scaling.beta_fast"][2].endswith(" [ntk_by_parts, yarn, dynamic_yarn]")
    assert rows["rope.scaling.mscale"][2].endswith(" [yarn]")
    assert rows["rope.scaling.query_scale.type"][:2] == ["|".join(QUERY_SCALES), "null"]
    assert rows["rope.scaling.query_scale.beta"][2].endswith(" [ministral]")
    plain = [kind for kind in STRATEGIES if kind != "resonance"]
    assert rows["rope.scaling.inner.type"][:2] == ["|".join(plain), "none"]
    assert rows["rope.layer_pattern.N.sliding_window"][:2] == ["int or null", "null"]
    assert rows["data.type"][:2] == ["stdlib|text|jsonl|parquet|hub", "stdlib"]
    assert rows["data.column"][:2] == ["str", "text"]
    assert rows["stages.N.scaling.type"] == [
        "|".join(STRATEGIES),
        "null",
        "scaling from this stage on; null: as before; keys as of rope.scaling",
    ]
    assert rows["stages.N.steps"][:2] == ["int", "required"]
    rows = {key: row for key, *row in fields(SweepConfig)}
    assert rows["scalings.N.type"][0] == "|".join(["trained", *STRATEGIES])
    kind, default, about = rows["scalings.N.factor"]
    assert kind == "auto or float; dynamic_ntk: float; longrope: auto or float or null"
    assert default.startswith("required; ")
    assert about.startswith("s; auto: length / window, at least 1; dynamic_ntk: a, how ")
    assert rows["lengths"][:2] == ["list of int or null", "null"]


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
        ("scalings: [{type: pi}]", "scalings.0.factor: is required and was not given"),
        ("scalings: [pi]", "scalings.0.factor: is required and was not given"),
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
        ("scalings: trained", "scalings", "not 'trained'; a list of one is [trained]"),
        ("scalings: [3]", "scalings.0", "not 3"),
        ("scalings: [{type: pi, factor: aut}]", "scalings.0.factor", "auto"),
        (
            "scalings: [{type: pi, factor: 2, name: a/b}]",
            "scalings.0.name",
            "a letter or digit first, not 'a/b'",
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
    owners = " or ".join(kind for kind in STRATEGIES if kind in (*EXTENDING, "dynamic_ntk"))
    assert message == (
        f"C.yaml: scalings.0.factor: unknown key; it goes with scalings.0.type {owners}"
    )


def test_the_shortest_length_may_be_twice_the_targets(read):
    assert read("{lengths: [64], targets: 32}", schema=SweepConfig).targets == 32
