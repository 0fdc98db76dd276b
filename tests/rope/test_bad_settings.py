"""Errors of strategies and geometries: one line that begins with the field."""

import math

import numpy as np
import pytest

from rope_jax.rope import STRATEGIES, RotaryGeometry, parse_scaling
from tests.rope.test_strategies import LENGTH_DEPENDENT, SETTINGS, scaling

TYPES = ", ".join(STRATEGIES)


def bucketed(factors, inner, **settings):
    return {"type": "bucketed", "factors": factors, "inner": {"type": inner} | settings}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"type": "yan", "factor": 2},
            rf"^type: 'yan' is not one of {TYPES}; did you mean yarn\?$",
        ),
        ({"factor": 2}, rf"^type: is required; it is one of {TYPES}$"),
        ({"type": ["yarn"], "factor": 2}, rf"^type: \['yarn'\] is not one of {TYPES}$"),
        ("yan", rf"^type: 'yan' is not one of {TYPES}; did you mean yarn\?$"),
        ("dynamic", r"; did you mean dynamic_ntk, dynamic_pi or dynamic_yarn\?$"),
        ("", rf"^type: '' is not one of {TYPES}$"),
        ("yarn", r"^factor: is required but was not given$"),
        ("longrope", r"^short_factor: is required but was not given$"),
        ("explicit", r"^inv_freq, factors: give one of the two"),
        (
            {"type": "pi", "factor": 2, "betas": 1},
            r"^betas: unknown key; pi has query_scale, factor$",
        ),
        (
            {"type": "yarn", "factor": 2, "beta_fats": 1},
            r"^beta_fats: unknown key; did you mean beta_fast\?$",
        ),
        (
            {"type": "none", "factor": 2},
            r"^factor: unknown key; it belongs to type pi, .*\bdrope\b",
        ),
        (
            {"type": "none", "query_scale": {"type": "power", "q": 2}},
            r"^query_scale.q: unknown key; power has ",
        ),
        ({"type": "pi"}, r"^factor: .*required"),
        ({"type": "pi", "factor": 0}, r"^factor: .*greater than or equal to 1, not 0"),
        ({"type": "ntk", "factor": -1}, r"^factor: .*greater than or equal to 1, not -1"),
        ({"type": "yarn", "factor": 0.5}, r"^factor: .*greater than or equal to 1, not 0.5"),
        ({"type": "ntk", "factor": math.nan}, r"^factor: .*finite number, not nan"),
        ({"type": "yarn", "factor": math.inf}, r"^factor: .*finite number, not inf"),
        ({"type": "yarn", "factor": None}, r"^factor: .*number, not null$"),
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
            r"^attention_factor: sets m directly",
        ),
        ({"type": "llama3", "low_freq_factor": 5.0}, r"^high_freq_factor \(4\) must not be below"),
        ({"type": "dynamic_ntk", "factor": 0.5}, r"^factor: .*greater than or equal to 1"),
        ({"type": "dynamic_pi", "factor": 2.0}, r"^factor: unknown key; it belongs to type pi, "),
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
        (
            {"type": "cope", "c": 1},
            r"^c: should be at least 2, not 1 \(a taper starts at ½\(1 \+ cos 0\) = 1\)$",
        ),
        ({"type": "cope", "c": 0, "cut": "hard"}, r"^c: .*greater than or equal to 1, not 0$"),
        (
            {"type": "cope", "cut": "sharp"},
            r"^cut: should be 'soft' or 'hard', not 'sharp'$",
        ),
        ({"type": "evq_cosh", "tau": -1.0}, r"^tau: .*greater than or equal to 0, not -1.0$"),
        ({"type": "evq_cosh", "tau": 1e6}, r"^tau: .*less than 1000000, not 1000000.0$"),
        ({"type": "evq_cosh", "tau": math.nan}, r"^tau: .*, not nan$"),
        ({"type": "evq_cosh", "factor": 2}, r"^factor: unknown key; it belongs to type pi, "),
        ("bucketed", r"^factors: is required but was not given$"),
        ({"type": "bucketed", "factors": [2]}, r"^inner: is required but was not given$"),
        (bucketed([], "pi"), r"^factors: .*at least one element, not \[\]$"),
        (bucketed(range(1, 18), "pi"), r"^factors: should be at most 16, not 17$"),
        (bucketed(4, "pi"), r"^factors: should be a list, not 4$"),
        (bucketed([1, 0.5], "pi"), r"^factors.1: .*greater than or equal to 1, not 0.5$"),
        (bucketed([1, math.inf], "pi"), r"^factors.1: .*finite number, not inf$"),
        (
            bucketed([1, 4, 2.5], "pi"),
            r"^factors: \[1, 4, 2.5\] must be ascending, without repeats$",
        ),
        (bucketed([4, 4.0], "pi"), r"^factors: \[4, 4\] must be ascending, without repeats$"),
        (
            bucketed([1, 4], "pi", factor=4.0),
            r"^inner.factor: is chosen from factors; leave it out$",
        ),
        (
            bucketed([1, 4], "dynamic_ntk"),
            r"^inner.type: 'dynamic_ntk' is not one of pi, ntk, .*, drope\b",
        ),
        (
            bucketed([1, 4], "resonance"),
            r"^inner.type: 'resonance' is not one of pi, ntk, .*, drope\b",
        ),
        (
            bucketed([1, 4], "drope"),
            r"^inner.c: drope needs it for a factor above 1; fit it to the model ",
        ),
        (
            bucketed([1, 4], "yarn", query_scale={"type": "logn"}),
            r"^inner.query_scale: has no effect there; move it up beside inner$",
        ),
        (
            bucketed([1, 4], "yarn") | {"factor": 4},
            r"^factor: unknown key; it belongs to type pi, ",
        ),
        *(
            (
                {"type": "none", "query_scale": {"type": "power", setting: value}},
                rf"^query_scale.{setting}: .*{message}, not {value}$",
            )
            for setting, value, message in (
                ("s", 0.0, "greater than 0"),
                ("s", 1e6, "less than 1000000"),
                ("p", 0.0, "greater than 0"),
                ("p", 16.5, "less than or equal to 16"),
                ("p", math.nan, ""),
            )
        ),
        ({"type": "drope", "factor": 4.0}, r"^c: drope needs it for a factor above 1"),
        ({"type": "mixed_base", "factor": 2, "e": 0}, r"^e: .*greater than 0"),
        ({"type": "abf", "base": 0.5}, r"^base: .*greater than or equal to 1"),
        ({"type": "explicit"}, r"^inv_freq, factors: give one of the two"),
        ({"type": "explicit", "inv_freq": [4.0]}, r"inv_freq.*less than or equal to 3.14"),
        ({"type": "explicit", "inv_freq": [-1.0]}, r"inv_freq.*greater than or equal to 0"),
        ({"type": "resonance", "inner": {"type": "resonance"}}, r"^inner"),
        ({"type": "resonance", "inner": {"type": "pi"}}, r"^inner.factor: is required"),
        (
            {"type": "resonance", "inner": {"type": "yarn", "beta_fats": 3}},
            r"^inner.beta_fats: unknown key; did you mean beta_fast\?$",
        ),
        (
            {"type": "none", "query_scale": {"type": "log"}},
            r"^query_scale.type: 'log' is not one of logn, .*; did you mean logn\?$",
        ),
        ({"type": "none", "query_scale": {"s": 2}}, r"^query_scale.type: is required"),
    ],
)
def test_bad_settings_name_the_field(settings, message):
    with pytest.raises(ValueError, match=message) as caught:
        parse_scaling(settings)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize("settings", [4, None, ["yarn"]])
def test_settings_that_are_neither_a_mapping_nor_a_name_are_refused(settings):
    with pytest.raises(ValueError, match=r"^scaling: should be the name of a scaling or a mapping"):
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
        (
            {"type": "cope", "c": 33, "cut": "hard"},
            "^c: 33 pairs to clip, but rotary_dim 64 has only 32; give 1 to 32$",
        ),
        (
            bucketed([1, 1e300], "ntk"),
            "^type: bucketed with these settings and base 10000 exceeds the range of a float$",
        ),
    ],
)
def test_settings_that_do_not_fit_the_geometry_are_refused(settings, message):
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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            bucketed([1, 4], "ntk_by_parts", beta_slow=0.01, beta_fast=0.02),
            "factors: 4 changes no frequency at train_length 4096; check ntk_by_parts's other",
        ),
        (
            bucketed([1, 4], "p_rope", p=0.5),
            "inner.type: p_rope works on whole heads; rotary_dim 64",
        ),
        (bucketed([1, 4], "drope", c=0.4), "inner.type: drope works on whole heads; rotary_dim 64"),
        (
            bucketed([1, 4], "yarn", beta_slow=1e8, beta_fast=1e9),
            "inner.beta_fast, beta_slow: no pair turns between 1e\\+08 and 1e\\+09 times",
        ),
    ],
)
def test_the_errors_of_an_inner_strategy_name_its_keys(settings, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        parse_scaling(settings).check(RotaryGeometry(64, 1e4, 4096), 100, head_dim=128)


def test_a_geometry_without_room_for_an_inner_strategy_is_named():
    made = parse_scaling(bucketed([1, 4], "ntk"))
    with pytest.raises(ValueError, match=r"^rotary_dim: ntk needs at least 4, not 2"):
        made.check(RotaryGeometry(2), 100)
