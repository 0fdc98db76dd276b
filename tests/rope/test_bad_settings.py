"""Errors of strategies and geometries: one line that begins with the field."""

import math

import numpy as np
import pytest

from rope_jax.rope import STRATEGIES, RotaryGeometry, parse_scaling
from tests.rope.test_strategies import LENGTH_DEPENDENT, SETTINGS, scaling

TYPES = ", ".join(STRATEGIES)


def bucketed(factors, inner, **settings):
    return {"type": "bucketed", "factors": factors, "inner": {"type": inner} | settings}


def over_none(**query_scale):
    return {"type": "none", "query_scale": query_scale}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        # the type
        ({"type": "yan"}, rf"^type: 'yan' is not one of {TYPES}; did you mean yarn\?$"),
        ({"factor": 2}, rf"^type: is required; it is one of {TYPES}$"),
        ({"type": ["yarn"], "factor": 2}, rf"^type: \['yarn'\] is not one of {TYPES}$"),
        ("", rf"^type: '' is not one of {TYPES}$"),
        (over_none(s=2), r"^query_scale.type: is required"),
        ({"type": "resonance", "inner": {"type": "resonance"}}, r"^inner"),
        (bucketed([1, 4], "dynamic_ntk"), r"^inner.type: 'dynamic_ntk' is not one of pi, ntk, "),
        # missing and unknown keys
        ("yarn", r"^factor: is required but was not given$"),
        ({"type": "pi", "factor": 2, "betas": 1}, r"^betas: unknown key; the keys of pi are "),
        ({"type": "yarn", "beta_fats": 1}, r"^beta_fats: unknown key; .* beta_fast\? \(and 1 more"),
        # values
        ({"type": "pi", "factor": 0.5}, r"^factor: .*greater than or equal to 1, not 0.5"),
        ({"type": "ntk", "factor": math.nan}, r"^factor: .*finite number, not nan"),
        ({"type": "cope", "cut": "sharp"}, r"^cut: should be 'soft' or 'hard', not 'sharp'$"),
        (bucketed([], "pi"), r"^factors: .*at least one element, not \[\]$"),
        (bucketed([1, 0.5], "pi"), r"^factors.1: .*greater than or equal to 1, not 0.5$"),
        ({"type": "longrope", "short_factor": [0], "long_factor": [1], "factor": 2},
         r"^short_factor.0: .*greater than 0"),
        ({"type": "explicit", "inv_freq": [4.0]}, r"inv_freq.*less than or equal to 3.14"),
        ({"type": "explicit", "inv_freq": [[1.0], [-1.0]]}, r"inv_freq.*greater than or eq.* 0"),
        (over_none(type="power", p=16.5), r"^query_scale.p: .*less than or equal to 16, not 16.5$"),
        # settings that do not go together
        ({"type": "yarn", "factor": 2, "beta_fast": 2, "beta_slow": 2},
         r"beta_fast \(2\) must be above beta_slow \(2\)"),
        ({"type": "yarn", "factor": 2, "truncate": False, "ramp": "rotations"}, r"^truncate: "),
        ({"type": "yarn", "factor": 2, "mscale": 1.0}, r"^mscale: has no effect without"),
        ({"type": "yarn", "factor": 2, "mscale": 1, "mscale_all_dim": 1, "attention_factor": 1},
         r"^attention_factor: sets m directly"),
        ({"type": "llama3", "low_freq_factor": 5.0}, r"^high_freq_factor \(4\) must not be below"),
        ({"type": "longrope", "short_factor": [1], "long_factor": [1]}, r"^factor: is needed to"),
        ({"type": "cope", "c": 1}, r"^c: should be at least 2, not 1"),
        ({"type": "drope", "factor": 4.0}, r"^c: drope needs it for a factor above 1"),
        ("explicit", r"^inv_freq, factors: give one of the two"),
        (bucketed([4, 4.0], "pi"), r"^factors: \[4, 4\] must be ascending, without repeats$"),
        (bucketed([1, 4], "pi", factor=4.0), r"^inner.factor: is chosen from factors; leave"),
        (bucketed([1, 4], "drope"), r"^inner.c: drope needs it for a factor above 1; fit it to"),
        (bucketed([1, 4], "yarn", query_scale={"type": "logn"}), r"^inner.query_scale: has no eff"),
        ({"type": "resonance", "inner": over_none(type="logn")}, r"^inner.query_scale: has no eff"),
    ],
)  # fmt: skip
def test_bad_settings_name_the_field(settings, message):
    with pytest.raises(ValueError, match=message) as caught:
        parse_scaling(settings)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("wrong_types")
def test_settings_that_are_neither_a_mapping_nor_a_name_are_refused():
    for settings in (4, None, ["yarn"]):
        with pytest.raises(ValueError, match=r"^scaling: should be the name of a scaling or a map"):
            parse_scaling(settings)


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("rotary_dim", (3, 0, -2, 8.0, "8", None)),
        ("base", (math.nan, math.inf, 0.5, True, "x")),
        ("train_length", (0, math.nan, 10.5, True)),
    ],
)
def test_bad_geometry_names_the_field(field, values):
    for value in values:
        with pytest.raises(ValueError, match=f"^{field}: {value!r} is not"):
            RotaryGeometry(**{"rotary_dim": 64, field: value})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"type": "longrope", "short_factor": [1] * 32, "long_factor": [2] * 33, "factor": 2},
         "^long_factor: 33 numbers for the 32 pairs of rotary_dim 64$"),
        ({"type": "explicit", "inv_freq": [1] * 64},
         "^inv_freq: 64 numbers for the 32 pairs of rotary_dim 64$"),
        ({"type": "explicit", "factors": [0.1] * 32}, "^factors: make a pair turn 10 radians"),
        ({"type": "cope", "c": 33},
         "^c: 33 pairs to clip, but rotary_dim 64 has only 32; give 2 to 32$"),
        (bucketed([1, 1e300], "ntk"),
         "^type: ntk with these settings and base 10000 exceeds the range of a float$"),
        (bucketed([1, 4], "yarn", beta_slow=1e8, beta_fast=1e9),
         r"^beta_fast, beta_slow: no pair turns between 1e\+08 and 1e\+09 times"),
        (bucketed([1, 4], "p_rope", p=0.5), "^type: p_rope works on whole heads; rotary_dim 64"),
        (bucketed([1, 4], "drope", c=0.4), "^type: drope works on whole heads; rotary_dim 64 is "),
        (bucketed([1, 4], "ntk_by_parts", beta_slow=0.01, beta_fast=0.02),
         "^factor: 4 changes no frequency at train_length 2048; check ntk_by_parts's other"),
        ({"type": "resonance", "inner": {"type": "ntk_by_parts", "factor": 8.0,
                                         "beta_slow": 0.01, "beta_fast": 0.02}},
         "^factor: 8 changes no frequency at train_length 2048"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_the_geometry_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        parse_scaling(settings).check(RotaryGeometry(64, 1e4, 2048), 100, head_dim=128)


def test_geometries_without_a_formula_are_refused():
    with pytest.raises(ValueError, match=r"^base: yarn needs a base above 1"):
        scaling("yarn").frequencies(RotaryGeometry(64, 1.0, 128))
    with pytest.raises(ValueError, match=r"^rotary_dim: ntk needs at least 4, not 2"):
        scaling("ntk").frequencies(RotaryGeometry(2))
    for name in SETTINGS:
        scaling(name, pairs=32).check(RotaryGeometry(64, 1e4, 4096), 10**5)


@pytest.mark.parametrize("name", sorted(LENGTH_DEPENDENT))
def test_a_strategy_that_needs_a_length_says_so(name):
    made = scaling(name, pairs=32)
    with pytest.raises(ValueError, match=f"^seq_len: {name} depends on the text's length; give it"):
        made.frequencies(RotaryGeometry(64))
    for wrong in (0, -1, 8192.0, np.float32(8192), [5, 0], np.array([1.5])):
        with pytest.raises(ValueError, match=r"^seq_len: .* is not a whole number of at least 1"):
            made.frequencies(RotaryGeometry(64), wrong)
