"""Frequencies of every strategy: golden figures, identities, and errors that name the field.

Golden figures come from a float64 computation that agrees with Hugging Face transformers.
"""

import math
from dataclasses import replace

import numpy as np
import pytest

from rope_jax.rope import STRATEGIES, RotaryGeometry, parse_scaling

# One example a strategy, its factor apart; lists are made to measure. A new strategy without one
# fails below.
SETTINGS = {
    "none": {},
    "pi": {},
    "ntk": {},
    "dynamic_ntk": {},
    "dynamic_pi": {},
    "ntk_by_parts": {},
    "yarn": {},
    "dynamic_yarn": {},
    "longrope": {"short_factor": 1.5, "long_factor": 6.0},
    "llama3": {},
    "abf": {},
    "mixed_base": {},
    "p_rope": {"p": 0.25},
    "cope": {},
    "drope": {"c": 0.4},
    "explicit": {"factors": 3.0},
    "resonance": {"inner": {"type": "yarn", "factor": 8.0}},
}
# those that slow every pair by something between 1 and their factor, up to the last
SLOWING = ["pi", "ntk", "ntk_by_parts", "yarn", "llama3", "mixed_base"]

GEOMETRIES = [
    RotaryGeometry(64, 1e4, 2048),
    RotaryGeometry(128, 5e5, 8192),
    RotaryGeometry(32, 1e4, 128),
    RotaryGeometry(96, 1.5e5, 4096),
    RotaryGeometry(4, 100.0, 32),
]


def scaling(name, factor=8.0, pairs=None, **settings):
    """An example of a strategy; `pairs`: how long its lists are to be."""
    factor = {"factor": factor} if "factor" in STRATEGIES[name].model_fields else {}
    lists = {
        key: [value * (1 + 0.1 * i) for i in range(pairs or 0)]
        for key, value in SETTINGS[name].items()
        if key in ("short_factor", "long_factor", "factors")
    }
    return parse_scaling({"type": name} | factor | SETTINGS[name] | lists | settings)


def exactly(example, geometry, seq_len=10**5):
    """inv_freq and m in float64, before they are rounded."""
    if example.length_dependent:
        return example.scaled_at(geometry, np.asarray(seq_len), np)
    return example.scaled(geometry)


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


@pytest.mark.parametrize(
    ("settings", "golden"),
    [
        ({}, {8: 0.0699245499, 16: 0.00488944268, 31: 3.33380358e-05}),
        ({"factor": 4.0}, {8: 0.0515858686, 16: 0.00266110184, 31: 1.02578572e-05}),
    ],
)
def test_dynamic_ntk_golden(settings, golden):
    made = parse_scaling({"type": "dynamic_ntk"} | settings)
    assert_golden(made.frequencies(RotaryGeometry(64, 1e4, 2048), 8192), golden)


def test_llama3_golden():
    frequencies = scaling("llama3").frequencies(RotaryGeometry(128, 5e5, 8192))
    assert_golden(frequencies, {21: 0.0134904199, 32: 0.000524846161, 63: 3.06892599e-07})


def test_llama3_without_a_ramp():
    # Llama 4 Scout: both factors 1. A pair that turns once or more in L is as it is.
    geometry = RotaryGeometry(128, 5e5, 8192)
    step = scaling("llama3", 16.0, low_freq_factor=1.0, high_freq_factor=1.0)
    theta = geometry.inv_freq()
    turns = 8192 * theta / (2 * math.pi)
    np.testing.assert_array_equal(step.scaled(geometry)[0], np.where(turns >= 1, theta, theta / 16))
    narrow = scaling("llama3", 16.0, low_freq_factor=1.0, high_freq_factor=1 + 1e-9)
    np.testing.assert_allclose(step.scaled(geometry)[0], narrow.scaled(geometry)[0], rtol=1e-12)


def test_mixed_base_golden():
    frequencies = scaling("mixed_base").frequencies(RotaryGeometry(64, 1e4, 2048))
    assert_golden(frequencies, {0: 0.85679601, 16: 0.00274182808, 31: 1.66690179e-05})


def test_longrope_golden():
    lists = {"short_factor": [2.0, 4.0], "long_factor": [5.0, 8.0], "factor": 32.0}
    made, geometry = parse_scaling({"type": "longrope"} | lists), RotaryGeometry(4, 1e4, 4096)
    # m is that of both regimes: √(1 + ln 32 / ln 4096)
    for length, factors in ((1, (2, 4)), (4096, (2, 4)), (4097, (5, 8)), (10**6, (5, 8))):
        frequencies = made.frequencies(geometry, length)
        assert_golden(frequencies, {0: 1 / factors[0], 1: 0.01 / factors[1]})
        assert frequencies.attention_factor == pytest.approx(1.1902380714, rel=1e-6)


def test_longrope_with_equal_lists_needs_no_length():
    lists = {"short_factor": [2.0, 4.0], "long_factor": [2.0, 4.0]}
    made = parse_scaling({"type": "longrope", "attention_factor": 1.25} | lists)
    assert not made.length_dependent
    frequencies = made.frequencies(RotaryGeometry(4, 1e4, 4096))
    assert_golden(frequencies, {0: 0.5, 1: 0.0025})
    assert frequencies.attention_factor == 1.25


def test_p_rope_golden():
    # 0.75 of 8 pairs turn, with exponents over the whole head: θ_5 = 1e4^(−10/16)
    frequencies = scaling("p_rope", 1.0, p=0.75).frequencies(RotaryGeometry(16, 1e4, 128))
    assert_golden(frequencies, {0: 1.0, 1: 0.316227766, 5: 3.16227766e-3, 6: 0.0, 7: 0.0})
    halved = scaling("p_rope", 2.0, p=0.75).frequencies(RotaryGeometry(16, 1e4, 128))
    assert_golden(halved, {0: 0.5, 5: 1.58113883e-3, 6: 0.0})


def test_cope_golden():
    # 10 of 32 pairs: ½(1 + cos(πk/9)) for k = 0 … 9
    frequencies = scaling("cope").frequencies(RotaryGeometry(64, 1e4, 128))
    taper = {0: 1.0, 1: 0.969846310, 3: 0.75, 6: 0.25, 9: 0.0}
    assert_golden(frequencies, {21: 1e4 ** (-42 / 64)})
    assert_golden(frequencies, {22 + k: 1e4 ** (-(44 + 2 * k) / 64) * t for k, t in taper.items()})


def test_drope_golden():
    frequencies = scaling("drope", 8.0, c=0.412).frequencies(RotaryGeometry(64, 1e4, 128))
    assert not in_float64(frequencies).any()
    # m² = 1 + 0.412·ln 8
    assert float(frequencies.attention_factor) ** 2 == pytest.approx(1.8567299134, rel=1e-6)


def test_resonance_golden():
    # wavelengths 2π·1e4^(i/4) = 6.28, 62.8, 628.3, 6283.2
    frequencies = parse_scaling({"type": "resonance"}).frequencies(RotaryGeometry(8, 1e4, 128))
    whole = [2 * math.pi / n for n in (6, 63, 628, 6283)]
    assert_golden(frequencies, dict(enumerate(whole)))
    over = parse_scaling({"type": "resonance", "inner": {"type": "pi", "factor": 2.0}})
    whole = [2 * math.pi / n for n in (13, 126, 1257, 12566)]
    assert_golden(over.frequencies(RotaryGeometry(8, 1e4, 128)), dict(enumerate(whole)))


def test_resonance_keeps_what_stands_still_and_m():
    inner = {"type": "drope", "factor": 8.0, "c": 0.412}
    frequencies = parse_scaling({"type": "resonance", "inner": inner}).frequencies(GEOMETRIES[0])
    assert not in_float64(frequencies).any()
    assert frequencies.attention_factor == pytest.approx(1.3626187702, rel=1e-6)


def test_yarn_mscale_golden():
    # DeepSeek: (0.1·0.707·ln 40 + 1)/(0.1·0.5·ln 40 + 1)
    made = scaling("yarn", 40.0, mscale=0.707, mscale_all_dim=0.5)
    m = made.frequencies(GEOMETRIES[0]).attention_factor
    assert m == pytest.approx(1.0644684474, rel=1e-6)
    for off in ({"mscale": 0.0, "mscale_all_dim": 1.0}, {"mscale": 1.0, "mscale_all_dim": 0.0}):
        m = scaling("yarn", 40.0, **off).frequencies(GEOMETRIES[0]).attention_factor
        assert m == pytest.approx(1.3688879454, rel=1e-6)  # 0.1·ln 40 + 1


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
@pytest.mark.parametrize("name", [*SLOWING, "drope"])
def test_factor_1_is_none(name, geometry):
    # In float64: the two terms of YaRN's ramp may round in their sum.
    ours, m = scaling(name, 1).scaled(geometry)
    plain = 0 * geometry.inv_freq() if name == "drope" else geometry.inv_freq()
    np.testing.assert_allclose(ours, plain, rtol=4e-16)
    assert m == 1


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("factor", [1.01, 2, 32])
@pytest.mark.parametrize("name", SLOWING)
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


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("s", [1.5, 8.0])
def test_the_papers_ramp_is_llama3s(s, geometry):
    ends = {"beta_slow": 1.5, "beta_fast": 6.0, "ramp": "rotations"}
    paper = scaling("ntk_by_parts", s, **ends).scaled(geometry)[0]
    llama = scaling("llama3", s, low_freq_factor=1.5, high_freq_factor=6.0).scaled(geometry)[0]
    np.testing.assert_allclose(paper, llama, rtol=1e-14)


def test_the_two_ramps_differ():
    geometry = RotaryGeometry(128, 1e4, 4096)
    code, paper = (scaling("yarn", ramp=r).scaled(geometry)[0] for r in ("index", "rotations"))
    # pair 33 turns 5.6 times in L: the code keeps half of θ there, the paper 15% (between 1 and 32)
    share = [(x[33] / geometry.inv_freq()[33] - 1 / 8) / (1 - 1 / 8) for x in (code, paper)]
    turns = 4096 * 1e4 ** (-66 / 128) / (2 * math.pi)
    assert share == pytest.approx([13 / 26, (turns - 1) / 31], rel=1e-9)


@pytest.mark.parametrize("geometry", GEOMETRIES[:4])
def test_by_parts_is_yarn_without_m(geometry):
    parts, yarn = scaling("ntk_by_parts"), scaling("yarn")
    np.testing.assert_array_equal(parts.scaled(geometry)[0], yarn.scaled(geometry)[0])
    assert parts.scaled(geometry)[1] == 1 != yarn.scaled(geometry)[1]


@pytest.mark.parametrize("geometry", GEOMETRIES[:4])
@pytest.mark.parametrize(("dynamic", "fixed"), [("dynamic_pi", "pi"), ("dynamic_yarn", "yarn")])
def test_dynamic_is_the_fixed_one_with_length_over_L(dynamic, fixed, geometry):
    for times in (0.5, 1, 1.5, 8):
        length = int(times * geometry.train_length)
        wanted = scaling(fixed, max(1.0, length / geometry.train_length)).frequencies(geometry)
        for a, b in zip(scaling(dynamic).frequencies(geometry, length), wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-14, atol=1e-20)


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_dynamic_ntk_is_ntk_with_its_effective_factor(geometry):
    # a = 1: s = n/L; a = 4 at n = 4L: s = 13
    for a, times, s in ((1.0, 4, 4.0), (4.0, 4, 13.0), (4.0, 0.5, 1.0)):
        made = scaling("dynamic_ntk", a).frequencies(geometry, int(times * geometry.train_length))
        np.testing.assert_allclose(
            in_float64(made), scaling("ntk", s).scaled(geometry)[0], rtol=1e-13
        )


def test_mixed_base_ends_on_pi_and_e_says_how_late():
    geometry = RotaryGeometry(64, 1e4, 2048)
    late, early = (scaling("mixed_base", e=e).scaled(geometry)[0] for e in (2.0, 0.5))
    for made in (late, early):
        assert made[-1] == pytest.approx(geometry.inv_freq()[-1] / 8, rel=1e-12)
    assert np.all(late[:-1] > early[:-1])


def test_abf_is_none_at_another_base():
    geometry = RotaryGeometry(64, 1e4, 2048)
    made = parse_scaling({"type": "abf", "base": 5e5}).scaled(geometry)[0]
    np.testing.assert_array_equal(made, replace(geometry, base=5e5).inv_freq())


def test_p_rope_is_not_partial_rotary():
    # The two take the same share of a head; mixing them up is a live bug in several projects.
    p_rope = scaling("p_rope", 1.0, p=0.25).scaled(RotaryGeometry(64, 1e4, 128))[0]
    partial = scaling("none").scaled(RotaryGeometry(16, 1e4, 128))[0]
    turning = p_rope[p_rope > 0]
    assert turning.size == partial.size == 8
    assert turning[1] == pytest.approx(1e4 ** (-2 / 64))
    assert partial[1] == pytest.approx(1e4 ** (-2 / 16))


@pytest.mark.parametrize("rotary_dim", [4, 32, 64, 96, 128, 256])
def test_cope_clips_in_proportion(rotary_dim):
    geometry = RotaryGeometry(rotary_dim)
    ratio = scaling("cope").scaled(geometry)[0] / geometry.inv_freq()
    kept = int(np.sum(ratio == 1))
    pairs = rotary_dim // 2
    # the first clipped pair is still whole; the authors' min(20, d/2) would keep 1 of 16 at d 32
    assert kept - 1 == pairs - max(2, round(0.3125 * pairs))
    assert np.all(np.diff(ratio) <= 0)
    assert ratio[-1] == 0


def test_explicit_frequencies_and_factors_are_themselves():
    geometry = RotaryGeometry(8, 1e4, 128)
    given = [0.5, 0.25, 0.125, 0.0]
    by_frequency = parse_scaling({"type": "explicit", "inv_freq": given, "attention_factor": 1.5})
    assert in_float64(by_frequency.frequencies(geometry)).tolist() == given
    assert by_frequency.frequencies(geometry).attention_factor == 1.5
    by_factor = parse_scaling({"type": "explicit", "factors": [1, 2, 4, 8]})
    assert_golden(by_factor.frequencies(geometry), {0: 1.0, 1: 0.05, 2: 0.0025, 3: 1.25e-4})


def test_explicit_by_layer():
    geometry = RotaryGeometry(4, 1e4, 128)
    rows = [[0.5, 0.25], [0.4, 0.2], [0.3, 0.1]]
    made = parse_scaling({"type": "explicit", "inv_freq": rows, "attention_factor": [1, 2, 3]})
    for layer, row in enumerate(rows):
        own = made.for_layer(layer, 3).frequencies(geometry)
        np.testing.assert_allclose(in_float64(own), row, rtol=1e-14)
        assert own.attention_factor == layer + 1
    with pytest.raises(ValueError, match=r"^inv_freq: 3 entries for 4 layers$"):
        made.for_layer(0, 4)
    with pytest.raises(ValueError, match=r"^inv_freq: has one entry per layer; use for_layer"):
        made.frequencies(geometry)


def test_explicit_numbers_of_a_file(tmp_path):
    path = tmp_path / "fitted.json"
    path.write_text('{"factors": [1.5, 2.25], "attention_factor": 1.0625}')
    made = parse_scaling({"type": "explicit", "path": str(path)})
    path.unlink()
    assert made == parse_scaling(
        {"type": "explicit", "factors": [1.5, 2.25], "attention_factor": 1.0625}
    )
    assert made.path is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "path: .*fitted.json cannot be read"),
        ("{", "path: .*fitted.json is not JSON"),
        ("[1, 2]", "path: .* may hold inv_freq, factors, attention_factor; it has no keys"),
        ('{"freq": [1]}', "path: .* may hold inv_freq, factors, attention_factor; it has freq"),
        ('{"inv_freq": [1, 2], "factors": [1, 2]}', "inv_freq, factors: give one of the two"),
        ('{"inv_freq": [1, NaN]}', "inv_freq"),
        (
            '{"attention_factor": 2.0, "factors": [1, 2]}',
            "attention_factor: is given both",
        ),
    ],
)
def test_explicit_bad_files(tmp_path, content, message):
    path = tmp_path / "fitted.json"
    if content is not None:
        path.write_text(content)
    given = {"type": "explicit", "path": str(path)}
    if "is given both" in message:
        given["attention_factor"] = 1.5
    with pytest.raises(ValueError, match=message):
        parse_scaling(given)


def test_yarn_attention_factor_is_m_itself():
    geometry = GEOMETRIES[0]
    given = scaling("yarn", 8, attention_factor=0.75).frequencies(geometry)
    derived = scaling("yarn", 8).frequencies(geometry)
    assert given.attention_factor == np.float32(0.75)
    np.testing.assert_array_equal(given.inv_freq, derived.inv_freq)


LENGTH_DEPENDENT = {"dynamic_ntk", "dynamic_pi", "dynamic_yarn", "longrope"}


@pytest.mark.parametrize("name", sorted(set(SETTINGS) - LENGTH_DEPENDENT))
def test_length_independent_strategies_ignore_the_length(name):
    example = scaling(name, pairs=32)
    assert not example.length_dependent
    at_length = example.frequencies(GEOMETRIES[0], seq_len=10**6)
    for a, b in zip(example.frequencies(GEOMETRIES[0]), at_length, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("name", SETTINGS)
def test_same_tree_for_every_strategy(name, geometry):
    half = geometry.rotary_dim // 2
    leaves = scaling(name, pairs=half).frequencies(geometry, 10**5)
    assert [leaf.shape for leaf in leaves] == [(half,), (half,), ()]
    assert [leaf.dtype for leaf in leaves] == [np.float32] * 3


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("name", SETTINGS)
def test_float32_and_remainder_make_up_48_bits(name, geometry):
    example = scaling(name, 7.3, pairs=geometry.rotary_dim // 2)
    exact, _ = exactly(example, geometry)
    assert exact.dtype == np.float64
    frequencies = example.frequencies(geometry, 10**5)
    np.testing.assert_array_equal(frequencies.inv_freq, exact.astype(np.float32))
    assert np.all(np.abs(in_float64(frequencies) - exact) <= 2.0**-48 * exact)


def test_base_replaces_the_geometrys_own():
    geometry = RotaryGeometry(64, 1e4, 2048)
    other = replace(geometry, base=5e5)
    np.testing.assert_array_equal(geometry.inv_freq(base=5e5), other.inv_freq())


@pytest.mark.parametrize("name", ["none", "dynamic_ntk", "dynamic_yarn", "cope", "resonance"])
def test_a_bare_name_stands_for_the_defaults(name):
    assert parse_scaling(name) == parse_scaling({"type": name})


# Errors


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
