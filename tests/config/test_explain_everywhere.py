"""Errors name the right key wherever it is: every key of two full configs is broken in turn."""

import copy

import pytest
import yaml

from rope_jax.config.explain import validate
from rope_jax.config.keys import TAG_KEYS
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import Config
from rope_jax.errors import UserError
from tests.config.examples import FULL, SWEEP


def sections(node, path=()):
    """Yield the path of every mapping in a raw config."""
    items = enumerate(node) if isinstance(node, list) else ()
    if isinstance(node, dict):
        yield path
        items = node.items()
    for key, inner in items:
        yield from sections(inner, (*path, key))


def leaves(node, path=()):
    """Yield the path of every value that is not a mapping or list."""
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
    """Return FULL and SWEEP as raw configs, each with its schema."""
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
            assert message.startswith(f"C: {dotted}: unknown key; the keys here are ")
            for name in at(full, path):
                assert name in message
            seen += 1
    assert seen >= 18


def test_the_right_key_is_suggested_for_a_misspelt_one_wherever_it_is():
    for schema, full in raw_configs():
        for path in sections(full):
            for key in at(full, path):
                if key in (*TAG_KEYS, "train", "test"):
                    continue
                raw = copy.deepcopy(full)
                at(raw, path)[key + "x"] = at(raw, path).pop(key)
                wrong, right = (".".join(map(str, (*path, k))) for k in (key + "x", key))
                expected = f"C: {wrong}: unknown key; did you mean {right}?"
                assert complaint_about(schema, raw).startswith(expected)


def test_a_value_of_the_wrong_type_is_named_wherever_it_is():
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
            assert complaint_about(schema, raw) == f"C: {dotted}: is required but was not given"
