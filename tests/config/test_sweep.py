"""The entries of a sweep: what each is at a length, and back to YAML."""

import json

import pytest
import yaml

from rope_jax.config.load import dump, load
from rope_jax.config.sweep import SweepConfig
from rope_jax.rope import parse_scaling
from rope_jax.rope.strategies import NoScaling, YaRNScaling

ENTRIES = """\
scalings:
  - {type: trained, name: null}
  - {type: pi, query_scale: null, factor: auto, name: null}
  - {type: dynamic_ntk, query_scale: null, factor: 2.0, name: mine}
  - type: resonance
    query_scale: null
    inner: {type: ntk, query_scale: null, factor: auto}
    name: null
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text(ENTRIES)
    return load(SweepConfig, path)


def test_which_factors_are_chosen_by_length(config):
    assert [entry.is_auto for entry in config.scalings] == [False, True, False, True]


def test_an_entry_is_dumped_as_it_was_given(config):
    assert yaml.safe_load(dump(config))["scalings"] == yaml.safe_load(ENTRIES)["scalings"]


def test_using_an_entry_changes_neither_it_nor_its_yaml(config):
    before, copy = dump(config), config.model_copy(deep=True)
    for entry in config.scalings:
        for length in (64, 512):
            entry.at(length, 128, NoScaling())
    assert dump(config) == before
    assert config == copy


def test_an_entry_gives_a_scaling_without_a_name(config):
    trained = YaRNScaling(factor=3)
    made = [entry.at(512, 128, trained) for entry in config.scalings]
    assert made == [
        trained,
        parse_scaling({"type": "pi", "factor": 4.0}),
        parse_scaling({"type": "dynamic_ntk", "factor": 2.0}),
        parse_scaling({"type": "resonance", "inner": {"type": "ntk", "factor": 4.0}}),
    ]


def test_a_fixed_factor_is_used_below_the_window_too():
    (entry,) = load(SweepConfig, None, ["scalings=[{type: pi, factor: 4}]"]).scalings
    assert {entry.at(n, 128, NoScaling()).factor for n in (32, 128, 512)} == {4.0}


def test_the_schema_completes_auto_and_a_name():
    """In an entry, and in the inner strategy of resonance; not where `auto` means nothing."""
    models = SweepConfig.model_json_schema()["$defs"]
    for name in ("PIScalingEntry", "LongRoPEScalingEntry", "YaRNScalingInner"):
        assert '"auto"' in json.dumps(models[name]["properties"]["factor"])
    assert "auto" not in json.dumps(models["DynamicNTKScalingEntry"]["properties"]["factor"])
    assert "name" in models["PIScalingEntry"]["properties"]
    assert "name" not in models["YaRNScalingInner"]["properties"]
