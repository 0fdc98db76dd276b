"""From YAML and overrides to a validated config and back."""

from pathlib import Path

import pytest
import yaml

from rope_jax.config.data import StdlibData, TextData
from rope_jax.config.load import dump, load
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import TrainingConfig
from rope_jax.rope import QUERY_SCALES
from rope_jax.rope.strategies import NoScaling, PIScaling
from tests.config.examples import FULL, PLAIN, SWEEP

ROOT = Path(__file__).parents[2] / "configs"
CONFIGS = sorted([*ROOT.glob("*.yaml"), *ROOT.glob("positions/*.yaml")])
SWEEPS = sorted(ROOT.glob("sweeps/*.yaml"))

# A file and its overrides


def test_every_value_of_a_file_is_read(read):
    config = read(FULL)
    assert yaml.safe_load(FULL) == config.model_dump(mode="json")
    ministral = QUERY_SCALES["ministral"](beta=0.2)
    assert config.stage_scaling(1) == PIScaling(factor=4, query_scale=ministral)


def test_an_omitted_key_has_its_default_and_overrides_suffice_without_a_file():
    config = load(
        TrainingConfig, None, ["name=bare", "stages=[{steps: 200, seq_len: 8, batch_size: 1}]"]
    )
    assert config == TrainingConfig(name="bare", stages=config.stages)
    assert config.stages[0].seq_len == 8
    assert (config.data, config.rope.scaling) == (StdlibData(), NoScaling())


def test_overrides_win_over_the_file_and_the_last_one_wins(read):
    assert read(FULL, "seed=1").seed == 1
    assert read(FULL, "seed=1", "model.hidden_size=60", "seed=2").seed == 2
    optim = read(FULL, "optim={warmup_steps: 3}", "optim.b1=0.5").optim
    assert (optim.warmup_steps, optim.b1, optim.b2) == (3, 0.5, 0.95)
    optim = read(FULL, "optim.b1=0.5", "optim={warmup_steps: 3}").optim
    assert (optim.warmup_steps, optim.b1, optim.b2) == (3, 0.9, 0.95)


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("model.head_dim=null", None),
        ("optim.learning_rate=1e-3", 0.001),
        ("optim.learning_rate=2", 2.0),
        ("seed=1e3", 1000),
        ("model.num_hidden_layers=10000", 10000),
        ("model.qk_norm=false", False),
        ("runs_dir=a=b", "a=b"),
        ("runs_dir=2026-01-02", "2026-01-02"),
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


def test_list_elements_are_addressed_by_number(read):
    before = read(FULL).stages
    after = read(FULL, "stages.1.steps=99", "stages.0.batch_size=8").stages
    assert after[0] == before[0].model_copy(update={"batch_size": 8})
    assert after[1] == before[1].model_copy(update={"steps": 99})
    lengths = read(SWEEP, "lengths.2=512", schema=SweepConfig).lengths
    assert lengths == (32, 64, 512)


def test_a_new_type_drops_the_old_types_keys_in_any_order(read):
    overrides = ["rope.scaling.type=pi", "seed=1", "rope.scaling.factor=8"]
    assert read(FULL, *overrides).rope.scaling == PIScaling(factor=8)
    assert read(FULL, *reversed(overrides)).rope.scaling == PIScaling(factor=8)
    assert read(FULL, "data.type=text", "data.files=[x]").data == TextData(files=["x"])
    assert read(FULL, "stages.1.scaling.type=none").stages[1].scaling == NoScaling()
    # a section given as a whole counts as one key
    overrides = ["rope.scaling={type: pi, factor: 4}", "rope.scaling.type=none"]
    assert read(PLAIN, *overrides).rope.scaling == NoScaling()


def test_setting_the_same_type_keeps_the_other_keys(read):
    scaling = read(FULL, "rope.scaling.type=yarn", "rope.scaling.factor=3").rope.scaling
    assert scaling == read(FULL).rope.scaling.model_copy(update={"factor": 3.0})


def test_an_alias_repeats_a_section_that_stays_independent(read):
    text = "name: a\nstages: [&stage {steps: 200, seq_len: 8, batch_size: 1}, *stage]\n"
    config = read(text + "optim: {<<: {b1: 0.5, b2: 0.6}, b1: 0.7}\n", "stages.1.steps=300")
    assert [stage.steps for stage in config.stages] == [200, 300]
    assert (config.optim.b1, config.optim.b2) == (0.7, 0.6)


# Back to YAML


@pytest.mark.parametrize(
    ("schema", "text", "overrides"),
    [
        (TrainingConfig, FULL, []),
        (TrainingConfig, PLAIN, ["data.type=jsonl", "data.files={train: [a], validation: [b]}"]),
        (
            TrainingConfig,
            PLAIN,
            ["rope.base=1.5e300", "optim.eps=5e-324", "optim.learning_rate=0.1"],
        ),
        (TrainingConfig, PLAIN, ["name='123'", "runs_dir=' a: b #c'", "data.cache_dir='null'"]),
        (TrainingConfig, PLAIN, ["name='0x1f'", "runs_dir='yes'", "data.cache_dir='2026-01-02'"]),
        (TrainingConfig, PLAIN, ["runs_dir='naïve/路'", "data.cache_dir=''"]),
        # text that some YAML readers take for a number
        *(
            (TrainingConfig, PLAIN, [f"name='{x}'", f"runs_dir='{x}'"])
            for x in ("1e3", "7e10", "1E5")
        ),
        (SweepConfig, SWEEP, ["tolerance=1e-3"]),
        *((TrainingConfig, path.read_text(), []) for path in CONFIGS),
        *((SweepConfig, path.read_text(), []) for path in SWEEPS),
    ],
)
def test_a_dump_loads_as_the_same_config(read, schema, text, overrides):
    config = read(text, *overrides, schema=schema)
    again = read(dump(config), schema=schema)
    assert again == config
    assert dump(again) == dump(config)
