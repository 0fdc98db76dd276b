"""Frequencies of every strategy: golden figures, identities, and errors that name the field.

Golden figures come from a float64 computation that agrees with Hugging Face transformers.
"""

import math
from dataclasses import replace

import numpy as np
import pytest

from rope_jax.rope import STRATEGIES, RotaryGeometry, parse_scaling

# One example a strategy, its factor apart. A new strategy without one fails below.
SETTINGS = {"none": {}, "pi": {}, "ntk": {}, "yarn": {}}
WITH_FACTOR = [name for name in SETTINGS if name != "none"]

GEOMETRIES = [
    RotaryGeometry(64, 1e4, 2048),
    RotaryGeometry(128, 5e5, 8192),
    RotaryGeometry(32, 1e4, 128),
    RotaryGeometry(96, 1.5e5, 4096),
    RotaryGeometry(4, 100.0, 32),
]


def scaling(name, factor=8.0, **settings):
    factor = {"factor": factor} if "factor" in STRATEGIES[name].model_fields else {}
    return parse_scaling({"type": name} | factor | SETTINGS[name] | settings)


def in_float64(frequencies):
    return np.float64(frequencies.inv_freq) + np.float64(frequencies.inv_freq_remainder)


def assert_golden(frequencies, golden):
    found = in_float64(frequencies)
    for pair, value in golden.items():
        assert found[pair] == pytest.approx(value, rel=1e-6), f"pair {pair}"


def test_every_strategy_has_an_example_here():
    assert set(SETTINGS) == set(STRATEGIES)


# Golden figures


def test_none_golden():
    frequencies = scaling("none").frequencies(RotaryGeometry(8, 1e4, 128))
    assert_golden(frequencies, {0: 1.0, 1: 0.1, 2: 0.01, 3: 0.001})
    frequencies = scaling("none").frequencies(RotaryGeometry(128, 1e4, 4096))
    assert_golden(frequencies, {16: 0.1, 32: 0.01, 63: 1.154781985e-4})


def test_pi_golden():
    frequencies = scaling("pi", 4).frequencies(RotaryGeometry(8, 1e4, 128))
    assert_golden(frequencies, {0: 0.25, 1: 0.025, 2: 0.0025, 3: 0.00025})


def test_ntk_golden():
    frequencies = scaling("ntk", 8).frequencies(RotaryGeometry(64, 1e4, 2048))
    golden = {0: 1.0, 8: 0.0584715383, 16: 0.00341892079, 24: 0.000199909558, 31: 1.66690179e-05}
    assert_golden(frequencies, golden)
    new_base = in_float64(frequencies)[1] ** -32  # θ_1 = b'^(−2/64)
    assert new_base == pytest.approx(85550.3759, rel=1e-6)


@pytest.mark.parametrize(
    ("geometry", "ends"),
    [
        (RotaryGeometry(128, 1e4, 4096), (20, 46)),
        (RotaryGeometry(64, 1e4, 512), (3, 16)),
        (RotaryGeometry(64, 1e4, 256), (0, 13)),
        (RotaryGeometry(32, 1e4, 128), (0, 6)),
        (RotaryGeometry(128, 1e4, 65536), (40, 65)),
    ],
)
def test_yarn_ramp_ends_golden(geometry, ends):
    assert scaling("yarn").ramp_ends(geometry) == ends


def test_yarn_untruncated_golden():
    geometry = RotaryGeometry(64, 1.5e5, 4096)
    yarn = scaling("yarn", 32, truncate=False)
    assert yarn.ramp_ends(geometry) == pytest.approx((8.0927791, 17.3980245), rel=1e-6)
    frequencies = yarn.frequencies(geometry)
    assert_golden(frequencies, {16: 4.564839192e-4})
    assert frequencies.attention_factor == pytest.approx(1.3465735903, rel=1e-6)


# (d, b, L, s), golden inv_freq by pair, golden m
YARN_GOLDEN = [
    (
        (128, 1e4, 4096, 16),
        {21: 0.04694086, 32: 0.005673076923, 45: 1.517716047e-4, 63: 7.217387404e-6},
        1.2772588722,
    ),
    (
        (32, 1e4, 128, 4),
        {4: 0.05, 5: 0.0210877997, 8: 0.0025, 15: 4.44569853e-05},
        1.1386294361,
    ),
    # The ramp is (63 − 40)/(65 − 40) = 0.92 at the last pair, where θ = 1e4^(−126/128).
    ((128, 1e4, 65536, 16), {63: 1e4 ** (-126 / 128) * (0.08 + 0.92 / 16)}, 1.2772588722),
]


@pytest.mark.parametrize(("setting", "golden", "m"), YARN_GOLDEN)
def test_yarn_golden(setting, golden, m):
    d, base, length, factor = setting
    frequencies = scaling("yarn", factor).frequencies(RotaryGeometry(d, base, length))
    assert_golden(frequencies, golden)
    assert frequencies.attention_factor == pytest.approx(m, rel=1e-6)


# YaRN written once more, with the mistakes that have shipped elsewhere as options.


def yarn_again(
    d, base, length, factor, *, ramp_dim=1.0, clamp=None, positions_too=False, root=False
):
    def pair_turning(turns):
        return ramp_dim * d * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(pair_turning(32)), 0)
    high = min(math.ceil(pair_turning(1)), clamp or d - 1)
    frequencies = []
    for pair in range(d // 2):
        ramp = min(max((pair - low) / (high - low), 0), 1)
        theta = base ** (-2 * pair / d)
        frequencies.append(ramp * theta / factor + (1 - ramp) * theta)
    m = 0.1 * math.log(factor) + 1
    return (
        # Positions divided by s turn the pairs as frequencies divided by s do.
        np.array(frequencies) / (factor if positions_too else 1),
        math.sqrt(m) if root else m,
    )


@pytest.mark.parametrize(("setting", "golden", "m"), YARN_GOLDEN)
def test_yarn_written_again_meets_the_golden_figures(setting, golden, m):
    frequencies, again_m = yarn_again(*setting)
    assert {pair: frequencies[pair] for pair in golden} == pytest.approx(golden, rel=1e-6)
    assert again_m == pytest.approx(m, rel=1e-6)


@pytest.mark.parametrize(
    ("mistake", "setting", "pair"),
    [
        ({"ramp_dim": 0.5}, (128, 1e4, 4096, 16), 32),
        ({"positions_too": True}, (128, 1e4, 4096, 16), 32),
        # With the other settings high stays below d/2 − 1, where this one is not seen.
        ({"clamp": 63}, (128, 1e4, 65536, 16), 63),
        ({"root": True}, (128, 1e4, 4096, 16), "m"),
    ],
    ids=["half of d in the ramp", "positions divided too", "high clamped to d/2 − 1", "root of m"],
)
def test_golden_figures_tell_known_mistakes_apart(mistake, setting, pair):
    wrong, wrong_m = yarn_again(*setting, **mistake)
    golden, m = next((figures, m) for known, figures, m in YARN_GOLDEN if known == setting)
    d, base, length, factor = setting
    ours = scaling("yarn", factor).frequencies(RotaryGeometry(d, base, length))
    if pair == "m":
        found, value, wrong_value = ours.attention_factor, m, wrong_m
    else:
        found, value, wrong_value = in_float64(ours)[pair], golden[pair], wrong[pair]
    assert found == pytest.approx(value, rel=1e-6)
    assert abs(wrong_value - value) > 0.05 * value


# Identities


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("name", WITH_FACTOR)
def test_factor_1_is_none(name, geometry):
    # In float64: the two terms of YaRN's ramp may round in their sum.
    ours, m = scaling(name, 1).scaled(geometry)
    np.testing.assert_allclose(ours, geometry.inv_freq(), rtol=4e-16)
    assert m == 1


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("factor", [1.01, 2, 32])
@pytest.mark.parametrize("name", WITH_FACTOR)
def test_every_factor_slows_frequencies_between_none_and_pi(name, factor, geometry):
    plain, _ = scaling("none").scaled(geometry)
    ours, m = scaling(name, factor).scaled(geometry)
    ratio = ours / plain
    assert ratio.min() == pytest.approx(1 / factor, rel=1e-9)
    assert ratio.max() <= 1 + 1e-12
    assert np.all(np.diff(ratio) <= 1e-12)  # the slower the pair, the more it is slowed
    assert m == pytest.approx(1 + 0.1 * math.log(factor) if name == "yarn" else 1, rel=1e-12)


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("factor", [1.5, 8, 64])
def test_ntk_keeps_the_first_pair_and_ends_on_pi(factor, geometry):
    ntk, pi = (scaling(name, factor).scaled(geometry)[0] for name in ("ntk", "pi"))
    assert ntk[0] == 1
    assert ntk[-1] == pytest.approx(pi[-1], rel=1e-12)
    # All pairs are powers of one base.
    np.testing.assert_allclose(np.diff(np.log(ntk)), np.log(ntk[1]), rtol=1e-9)


def test_ntk_at_the_smallest_dimension():
    # d 4: b' = b·s², so θ_1 = b'^(−1/2) = b^(−1/2)/s. d 2 has no d/(d − 2).
    ntk, _ = scaling("ntk", 8).scaled(RotaryGeometry(4, 100.0))
    assert ntk.tolist() == pytest.approx([1, 0.1 / 8], rel=1e-12)
    with pytest.raises(ValueError, match=r"^rotary_dim: ntk needs at least 4, not 2"):
        scaling("ntk", 8).frequencies(RotaryGeometry(2))


@pytest.mark.parametrize("geometry", GEOMETRIES[:4])
def test_yarn_is_none_before_its_ramp_and_pi_after(geometry):
    yarn, factor = scaling("yarn", 16), 16
    low, high = yarn.ramp_ends(geometry)
    ours, plain = yarn.scaled(geometry)[0], geometry.inv_freq()
    assert 0 <= low < high < geometry.rotary_dim // 2
    np.testing.assert_array_equal(ours[: low + 1], plain[: low + 1])
    np.testing.assert_array_equal(ours[high:], plain[high:] / factor)
    np.testing.assert_allclose(  # a straight line between
        (1 - ours / plain)[low : high + 1],
        np.linspace(0, 1 - 1 / factor, high - low + 1),
        atol=1e-12,
    )


def assert_ramp_as_described(geometry, beta_fast, beta_slow, truncate):
    yarn = scaling("yarn", 4, beta_fast=beta_fast, beta_slow=beta_slow, truncate=truncate)
    plain = geometry.inv_freq()
    turns = geometry.train_length * plain / (2 * math.pi)
    ratio = yarn.scaled(geometry)[0] / plain
    # Rounding moves each end of the ramp outward by less than a pair.
    margin = geometry.base ** (2 / geometry.rotary_dim) if truncate else 1
    fast, slow = turns > beta_fast * margin, turns < beta_slow / margin
    assert fast.any() or slow.any()
    np.testing.assert_allclose(ratio[fast], 1, rtol=1e-12)
    np.testing.assert_allclose(ratio[slow], 1 / 4, rtol=1e-12)


@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize(
    ("geometry", "beta_fast", "beta_slow"),
    [
        (RotaryGeometry(128, 1e4, 4096), 32, 1),
        (RotaryGeometry(32, 1e4, 128), 8, 0.5),
        (RotaryGeometry(32, 1e4, 128), 4, 2),
        (RotaryGeometry(64, 1e4, 256), 32, 24),
        (RotaryGeometry(64, 10.0, 32768), 256, 128),
    ],
)
def test_yarn_keeps_what_turns_fast_and_interpolates_what_turns_slowly(
    geometry, beta_fast, beta_slow, truncate
):
    assert_ramp_as_described(geometry, beta_fast, beta_slow, truncate)


@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize(
    ("geometry", "beta_fast", "beta_slow"),
    [
        (RotaryGeometry(32, 1e4, 128), 64, 60),  # every pair turns less than beta_slow
        (RotaryGeometry(64, 10.0, 32768), 32, 1),  # every pair turns more than beta_fast
    ],
)
def test_yarn_with_a_ramp_outside_the_pairs(geometry, beta_fast, beta_slow, truncate):
    # Both ends on one side: clamped, they change places, and the ramp would run backwards.
    settings = {"beta_fast": beta_fast, "beta_slow": beta_slow, "truncate": truncate}
    with pytest.raises(
        ValueError, match=rf"^beta_fast, beta_slow: no pair turns between {beta_slow}"
    ):
        scaling("yarn", 4, **settings).frequencies(geometry)


def test_yarn_attention_factor_is_m_itself():
    geometry = GEOMETRIES[0]
    given = scaling("yarn", 8, attention_factor=0.75).frequencies(geometry)
    derived = scaling("yarn", 8).frequencies(geometry)
    assert given.attention_factor == np.float32(0.75)
    np.testing.assert_array_equal(given.inv_freq, derived.inv_freq)


@pytest.mark.parametrize("name", SETTINGS)
def test_length_independent_strategies_ignore_the_length(name):
    example = scaling(name)
    assert not example.length_dependent
    at_length = example.frequencies(GEOMETRIES[0], seq_len=10**6)
    for a, b in zip(example.frequencies(GEOMETRIES[0]), at_length, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("name", SETTINGS)
def test_same_tree_for_every_strategy(name, geometry):
    half = geometry.rotary_dim // 2
    leaves = scaling(name).frequencies(geometry)
    assert [leaf.shape for leaf in leaves] == [(half,), (half,), ()]
    assert [leaf.dtype for leaf in leaves] == [np.float32] * 3


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("name", SETTINGS)
def test_float32_and_remainder_make_up_48_bits(name, geometry):
    example = scaling(name, 7.3)
    exact, _ = example.scaled(geometry)
    assert exact.dtype == np.float64
    frequencies = example.frequencies(geometry)
    np.testing.assert_array_equal(frequencies.inv_freq, exact.astype(np.float32))
    assert np.max(np.abs(in_float64(frequencies) - exact) / exact) <= 2.0**-48


def test_base_replaces_the_geometrys_own():
    geometry = RotaryGeometry(64, 1e4, 2048)
    other = replace(geometry, base=5e5)
    np.testing.assert_array_equal(geometry.inv_freq(base=5e5), other.inv_freq())


# Errors


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"type": "yan", "factor": 2}, r"^type: 'yan' is not a scaling; there are none, .*yarn"),
        ({"factor": 2}, r"^type: None is not a scaling"),
        ({"type": ["yarn"], "factor": 2}, r"^type: \['yarn'\] is not a scaling"),
        ("yarn", r"^type: 'yarn' is not a scaling"),
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
    ],
)
def test_bad_settings_name_the_field(settings, message):
    with pytest.raises(ValueError, match=message) as caught:
        parse_scaling(settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("rotary_dim", value) for value in (3, 1, 0, -2)),
        *(("base", value) for value in (math.nan, math.inf, 0, -1e4, 0.5)),
        *(("train_length", value) for value in (0, -1)),
    ],
)
def test_bad_geometry_names_the_field(field, value):
    with pytest.raises(ValueError, match=f"^{field}: {value} is not"):
        RotaryGeometry(**{"rotary_dim": 64, field: value})


def test_yarn_needs_a_base_above_1():
    with pytest.raises(ValueError, match=r"^base: yarn needs a base above 1"):
        scaling("yarn").frequencies(RotaryGeometry(64, 1.0, 128))
