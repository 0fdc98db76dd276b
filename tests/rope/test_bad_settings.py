"""Errors of strategies and geometries: one line that begins with the field."""

import math

import numpy as np
import pytest

from rope_jax.rope import RotaryGeometry, parse_scaling
from tests.rope.test_strategies import LENGTH_DEPENDENT, SETTINGS, scaling


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"type": "yan", "factor": 2}, r"^type: 'yan' is not a scaling; choose from none, .*yarn"),
        ({"factor": 2}, r"^type: None is not a scaling"),
        ({"type": ["yarn"], "factor": 2}, r"^type: \['yarn'\] is not a scaling"),
        ("yan", r"^type: 'yan' is not a scaling; choose from none, .*yarn"),
        ("yarn", r"^factor: is required but was not given$"),
        ("longrope", r"^short_factor: is required but was not given$"),
        ("explicit", r"^inv_freq, factors: give one of the two"),
        ({"type": "pi", "factor": 2, "betas": 1}, r"^betas: .*; pi has type, query_scale, factor$"),
        ({"type": "none", "factor": 2}, r"^factor: .*; none has type, query_scale$"),
        ({"type": "pi"}, r"^factor: .*required"),
        ({"type": "pi", "factor": 0}, r"^factor: .*greater than or equal to 1 \(got 0\)"),
        ({"type": "ntk", "factor": -1}, r"^factor: .*greater than or equal to 1 \(got -1\)"),
        ({"type": "yarn", "factor": 0.5}, r"^factor: .*greater than or equal to 1 \(got 0.5\)"),
        ({"type": "ntk", "factor": math.nan}, r"^factor: .*finite number \(got nan\)"),
        ({"type": "yarn", "factor": math.inf}, r"^factor: .*finite number \(got inf\)"),
        ({"type": "yarn", "factor": None}, r"^factor: .*number \(got None\)"),
        ({"type": "yarn", "factor": 2, "beta_slow": 0}, r"^beta_slow: .*greater than 0"),
        ({"type": "yarn", "factor": 2, "beta_fast": math.inf}, r"^beta_fast: .*finite number"),
        ({"type": "yarn", "factor": 2, "attention_factor": 0}, r"^attention_factor: .*than 0"),
        (
            {"type": "yarn", "factor": 2, "beta_fast": 2, "beta_slow": 2},
            r"beta_fast \(2\) must be above beta_slow \(2\)",
        ),
        (
            {"type": "yarn", "factor": 2, "beta_fast": 0.5},
            r"beta_fast \(0.5\) must be above beta_slow \(1\)",
        ),
        ({"type": "yarn", "factor": 2, "truncate": False, "ramp": "rotations"}, r"^truncate: "),
        (
            {"type": "yarn", "factor": 2, "mscale": 1.0},
            r"^mscale: has no effect without",
        ),
        (
            {"type": "yarn", "factor": 2, "mscale": 1, "mscale_all_dim": 1, "attention_factor": 1},
            r"^attention_factor: sets m itself",
        ),
        ({"type": "llama3", "low_freq_factor": 5.0}, r"^high_freq_factor \(4\) must not be below"),
        ({"type": "dynamic_ntk", "factor": 0.5}, r"^factor: .*greater than or equal to 1"),
        ({"type": "dynamic_pi", "factor": 2.0}, r"^factor: .*; dynamic_pi has type, query_scale$"),
        (
            {"type": "longrope", "short_factor": [1], "long_factor": [1]},
            r"^factor: is needed to",
        ),
        (
            {"type": "longrope", "short_factor": [0], "long_factor": [1], "factor": 2},
            r"^short_factor.0: .*greater than 0",
        ),
        ({"type": "p_rope"}, r"^p: .*required"),
        ({"type": "p_rope", "p": 1.5}, r"^p: .*less than or equal to 1"),
        ({"type": "cope", "c": 1}, r"^c: .*greater than or equal to 2"),
        ({"type": "drope", "factor": 4.0}, r"^c: drope needs it for a factor above 1"),
        ({"type": "mixed_base", "factor": 2, "e": 0}, r"^e: .*greater than 0"),
        ({"type": "abf", "base": 0.5}, r"^base: .*greater than or equal to 1"),
        ({"type": "explicit"}, r"^inv_freq, factors: give one of the two"),
        ({"type": "explicit", "inv_freq": [4.0]}, r"inv_freq.*less than or equal to 3.14"),
        ({"type": "explicit", "inv_freq": [-1.0]}, r"inv_freq.*greater than or equal to 0"),
        ({"type": "resonance", "inner": {"type": "resonance"}}, r"^inner"),
        ({"type": "resonance", "inner": {"type": "pi"}}, r"^inner.*factor: .*required"),
        ({"type": "none", "query_scale": {"type": "log"}}, r"^query_scale"),
    ],
)
def test_bad_settings_name_the_field(settings, message):
    with pytest.raises(ValueError, match=message) as caught:
        parse_scaling(settings)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize("settings", [4, None, ["yarn"]])
def test_settings_that_are_neither_a_mapping_nor_a_name(settings):
    with pytest.raises(ValueError, match=r"^type: .* is not a scaling; choose from none, "):
        parse_scaling(settings)


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("rotary_dim", value) for value in (3, 1, 0, -2)),
        *(("base", value) for value in (math.nan, math.inf, 0, -1e4, 0.5)),
        *(("train_length", value) for value in (0, -1, math.nan, 10.5, True)),
        *(("rotary_dim", value) for value in (8.0, "8", None)),
        *(("base", value) for value in (True, "x", None)),
    ],
)
def test_bad_geometry_names_the_field(field, value):
    with pytest.raises(ValueError, match=f"^{field}: {value!r} is not"):
        RotaryGeometry(**{"rotary_dim": 64, field: value})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"type": "longrope", "short_factor": [1] * 31, "long_factor": [2] * 32, "factor": 2},
            "^short_factor: 31 numbers for the 32 pairs of rotary_dim 64$",
        ),
        (
            {"type": "longrope", "short_factor": [1] * 32, "long_factor": [2] * 33, "factor": 2},
            "^long_factor: 33 numbers for the 32 pairs of rotary_dim 64$",
        ),
        (
            {"type": "explicit", "inv_freq": [1] * 64},
            "^inv_freq: 64 numbers for the 32 pairs of rotary_dim 64$",
        ),
        ({"type": "explicit", "factors": [0.1] * 32}, "^factors: make a pair turn 10 radians"),
        (
            {"type": "cope", "c": 33},
            "^c: 33 pairs to clip, but rotary_dim 64 has only 32; give 2 to 32$",
        ),
    ],
)
def test_settings_that_do_not_fit_the_geometry(settings, message):
    made = parse_scaling(settings)
    with pytest.raises(ValueError, match=message):
        made.frequencies(RotaryGeometry(64, 1e4, 2048), 100)


@pytest.mark.parametrize("name", sorted(LENGTH_DEPENDENT))
def test_a_strategy_that_needs_a_length_says_so(name):
    made = scaling(name, pairs=32)
    assert made.length_dependent
    with pytest.raises(ValueError, match=f"^seq_len: {name} depends on the text's length; give it"):
        made.frequencies(RotaryGeometry(64))
    for wrong in (
        0,
        -1,
        "100",
        math.nan,
        8192.0,
        np.float32(8192),
        [5, 0],
        np.array([5, 0]),
        np.array([1.5]),
    ):
        with pytest.raises(ValueError, match=r"^seq_len: .* is not a whole number of at least 1"):
            made.frequencies(RotaryGeometry(64), wrong)
    for right in (np.int64(9), [9, 10], (9,), np.array(9), np.array([9], np.uint32)):
        made.frequencies(RotaryGeometry(64), right)


def test_a_factor_that_changes_nothing_is_refused():
    idle = scaling("ntk_by_parts", beta_slow=0.01, beta_fast=0.02)
    with pytest.raises(ValueError, match=r"^factor: 8 changes no frequency at train_length 4096"):
        idle.check(RotaryGeometry(64, 1e4, 4096))
    inner = {"type": "resonance", "inner": idle.model_dump()}
    with pytest.raises(ValueError, match=r"^factor: 8 changes no frequency"):
        parse_scaling(inner).check(RotaryGeometry(64, 1e4, 4096))
    for name in SETTINGS:
        scaling(name, pairs=32).check(RotaryGeometry(64, 1e4, 4096), 10**5)


def test_yarn_needs_a_base_above_1():
    with pytest.raises(ValueError, match=r"^base: yarn needs a base above 1"):
        scaling("yarn").frequencies(RotaryGeometry(64, 1.0, 128))
