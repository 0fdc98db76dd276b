"""The entries of a sweep: their scalings at each length, and their YAML."""

import json

import pytest
import yaml

from rope_jax.config.load import dump, load
from rope_jax.config.sweep import SweepConfig
from rope_jax.positions.maps.rerope import LeakyReRoPE
from rope_jax.rope import parse_scaling
from rope_jax.rope.strategies import NoScaling, YaRNScaling

ENTRIES = """\
scalings:
  - {type: trained, name: null, map: null}
  - {type: pi, query_scale: null, factor: auto, name: null, map: null}
  - {type: dynamic_ntk, query_scale: null, factor: 2.0, name: mine, map: null}
  - type: resonance
    query_scale: null
    inner: {type: ntk, query_scale: null, factor: auto}
    name: null
    map: null
  - {type: none, query_scale: null, name: null, map: {type: leaky_rerope, window: 96, k: auto}}
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text(ENTRIES)
    return load(SweepConfig, path)


def test_is_auto_marks_entries_with_an_automatic_factor(config):
    assert [entry.is_auto for entry in config.scalings] == [False, True, False, True, True]


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
        NoScaling(),
    ]


def test_an_entry_gives_its_map_with_numbers(config):
    own = LeakyReRoPE(window=64, k=2.0)
    # at the window, auto means no map; `trained` keeps the checkpoint's own
    assert [entry.map_at(128, 128, own) for entry in config.scalings] == [own, *[None] * 4]
    # k = (n − 1 − w)/(L − 1 − w) = 415/31, rounded up
    made = [entry.map_at(512, 128, own) for entry in config.scalings]
    assert made == [own, None, None, None, LeakyReRoPE(window=96, k=13.39)]
    assert config.scalings[4].label == "leaky_rerope"


def test_a_maps_numbers_may_not_go_with_the_automatic_ones(config):
    settings = {"type": "none", "map": {"type": "dual_chunk", "local": 200}}
    entry = SweepConfig.model_validate({"scalings": [settings]}).scalings[0]
    assert entry.map_at(128, 128, None) is None
    with pytest.raises(ValueError, match="local") as caught:
        entry.map_at(512, 128, None)
    assert str(caught.value) == (
        "local: 200 leaves no chunk of 96; give at most 95 (at a trained window of 128)"
    )


def test_a_fixed_factor_is_used_below_the_window_too():
    (entry,) = load(SweepConfig, None, ["scalings=[{type: pi, factor: 4}]"]).scalings
    assert {entry.at(n, 128, NoScaling()).factor for n in (32, 128, 512)} == {4.0}


def test_the_json_schema_offers_auto_and_a_name():
    """`auto` is offered in entries and inside resonance, except where it means nothing."""
    models = SweepConfig.model_json_schema()["$defs"]
    for name in ("PIScalingEntry", "LongRoPEScalingEntry", "YaRNScalingInner"):
        assert '"auto"' in json.dumps(models[name]["properties"]["factor"])
    assert "auto" not in json.dumps(models["DynamicNTKScalingEntry"]["properties"]["factor"])
    assert "name" in models["PIScalingEntry"]["properties"]
    assert "name" not in models["YaRNScalingInner"]["properties"]
