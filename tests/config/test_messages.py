"""The key that an error names, wherever it is; tests/bad_input.yaml has the messages."""

import copy

import pytest
import yaml

from rope_jax.config.load import validate
from rope_jax.config.schema import TAG_KEYS, at
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import TrainingConfig
from rope_jax.errors import UserError
from tests.config.examples import FULL, SWEEP


def sections(node, path=()):
    """Yield the path of every mapping in a raw config."""
    if isinstance(node, dict):
        yield path
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, inner in items:
        if isinstance(inner, dict | list):
            yield from sections(inner, (*path, key))


def raw_configs():
    """Return FULL and SWEEP as raw configs, each with its schema."""
    sweep = yaml.safe_load(SWEEP)
    sweep["scalings"] = [s if isinstance(s, dict) else {"type": s} for s in sweep["scalings"]]
    return [(TrainingConfig, yaml.safe_load(FULL)), (SweepConfig, sweep)]


def assert_complaint(schema, raw, begins):
    with pytest.raises(UserError) as caught:
        validate(schema, raw, "C")
    assert str(caught.value).startswith(f"C: {begins}")


def test_a_misspelt_key_and_a_wrong_value_are_named_wherever_they_are():
    seen = 0
    for schema, full in raw_configs():
        for path in sections(full):
            for key, value in at(full, *path).items():
                dotted = ".".join(map(str, (*path, key)))
                if isinstance(value, str | int | float):
                    raw = copy.deepcopy(full)
                    at(raw, *path)[key] = {"a": "mapping"}
                    assert_complaint(schema, raw, f"{dotted}: ")
                    seen += 1
                if key not in (*TAG_KEYS, "train", "test"):
                    raw = copy.deepcopy(full)
                    at(raw, *path)[key + "x"] = at(raw, *path).pop(key)
                    says = f"{dotted}x: unknown key; did you mean {dotted}?"
                    assert_complaint(schema, raw, says)
    assert seen > 80


def test_a_missing_key_is_named_wherever_it_is():
    missing = {
        TrainingConfig: ["name", "stages", "stages.1.seq_len", "rope.scaling.factor", "data.files"],
        SweepConfig: ["scalings.2.factor", "tasks.5.mask"],
    }
    for schema, full in raw_configs():
        for dotted in missing[schema]:
            raw = copy.deepcopy(full)
            *path, last = (int(p) if p.isdigit() else p for p in dotted.split("."))
            del at(raw, *path)[last]
            assert_complaint(schema, raw, f"{dotted}: is required but was not given")
