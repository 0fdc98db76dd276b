"""Scalings in a training config: every type, stages, and layers that differ."""

import json

import pytest
import yaml

from rope_jax.config.load import dump
from rope_jax.rope import STRATEGIES, LayerOverride, RotaryGeometry, RotaryLayers, parse_scaling
from rope_jax.rope.strategies import (
    ABFScaling,
    DRoPEScaling,
    ExplicitScaling,
    NoScaling,
    PIScaling,
    YaRNScaling,
)
from tests.config.examples import PLAIN, settings_of


def test_a_scaling_of_every_type_is_read_and_dumped(read):
    for kind in STRATEGIES:
        written = json.dumps(settings_of(kind))
        config = read(PLAIN, f"rope.scaling={written}", f"stages.0.scaling={written}")
        assert config.rope.scaling == config.stages[0].scaling == parse_scaling(settings_of(kind))
        assert read(dump(config)) == config


@pytest.mark.parametrize(
    ("here", "file"),
    [
        ({}, {"inv_freq": [0.5**n for n in range(16)]}),
        ({}, {"factors": [2] * 16, "attention_factor": [1.1, 1.2, 1.3, 1.4]}),
        ({"factors": [2] * 16}, {"attention_factor": 1.5}),
    ],
)
def test_a_dump_has_explicit_numbers_in_place_of_their_file(read, tmp_path, here, file):
    path = tmp_path / "numbers.json"
    path.write_text(json.dumps(file))
    config = read(
        PLAIN, f"rope.scaling={json.dumps({'type': 'explicit', 'path': str(path), **here})}"
    )
    assert config.rope.scaling == ExplicitScaling(**here, **file)
    dumped = dump(config)
    assert yaml.safe_load(dumped)["rope"]["scaling"].items() >= (here | file).items()
    path.unlink()
    assert read(dumped) == config


def test_a_layer_pattern_sets_base_scaling_and_sliding_window(read):
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
    # the geometry of layers that the pattern does not change
    assert config.geometry == RotaryGeometry(rotary_dim=16, base=500.0, train_length=128)
    assert [own.sliding_window for own in config.pattern] == [32, None, None]
    layers = config.rotary_layers
    pattern = (LayerOverride(base=100.0), LayerOverride(scaling=DRoPEScaling()), LayerOverride())
    assert layers == RotaryLayers(config.geometry, 5, pattern, head_dim=32)
    shared, own = PIScaling(factor=2), RotaryGeometry(16, 100.0, 128)
    wanted = [(own, shared), (config.geometry, DRoPEScaling()), (config.geometry, shared)]
    assert layers.per_layer(config.stage_scaling(0)) == [*wanted, *wanted[:2]]


def test_a_stages_scaling_changes_only_layers_without_their_own(read):
    config = read(
        PLAIN,
        "stages=[{steps: 200, seq_len: 64, batch_size: 1}, {steps: 9, seq_len: 128, batch_size: 1,"
        " scaling: {type: yarn, factor: 2}}]",
        "rope.layer_pattern=[{scaling: {type: abf}}, {}]",
    )
    assert config.geometry.train_length == 64  # the first stage's
    for stage, shared in enumerate([NoScaling(), YaRNScaling(factor=2)]):
        layers = config.rotary_layers.per_layer(config.stage_scaling(stage))
        assert [scaling for _, scaling in layers] == [ABFScaling(), shared] * 2
