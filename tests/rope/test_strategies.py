"""Every strategy: properties shared by all, and golden values of each.

Golden values come from a float64 computation that agrees with Hugging Face transformers.
"""

import math

import numpy as np
import pytest

from rope_jax.rope import STRATEGIES, RotaryGeometry, parse_scaling

# One example per strategy. `scaling` fills in a factor, and lists of the right length. A strategy
# without an example fails below.
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
    "evq_cosh": {},
    "p_rope": {"p": 0.25},
    "cope": {},
    "drope": {"c": 0.4},
    "explicit": {"factors": 3.0},
    "resonance": {"inner": {"type": "yarn", "factor": 8.0}},
    "bucketed": {"factors": [1.0, 4.0, 16.0], "inner": {"type": "yarn"}},
    "over": {
        "inner": {"type": "ntk", "factor": 8.0},
        "trained": {"type": "llama3", "factor": 8.0},
        "window": 16384,
    },
}
GEOMETRIES = [
    RotaryGeometry(64, 1e4, 2048),
    RotaryGeometry(128, 5e5, 8192),
    RotaryGeometry(32, 1e4, 128),
    RotaryGeometry(96, 1.5e5, 4096),
    RotaryGeometry(4, 100.0, 32),
]


def scaling(name, factor=8.0, pairs=None, **settings):
    """Return an example of a strategy; `pairs` is the length of its lists."""
    factor = {"factor": factor} if "factor" in STRATEGIES[name].model_fields else {}
    lists = {
        key: [value * (1 + 0.1 * i) for i in range(pairs or 0)]
        for key, value in SETTINGS[name].items()
        if isinstance(value, float) and key in ("short_factor", "long_factor", "factors")
    }
    return parse_scaling({"type": name} | factor | SETTINGS[name] | lists | settings)


def exactly(example, geometry, seq_len=10**5):
    """Return inv_freq and m in float64, before rounding."""
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


@pytest.mark.parametrize("name", STRATEGIES)
def test_length_dependent_strategies_are_marked_as_such(name):
    strategy = STRATEGIES[name]
    has_formula_for_lengths = "scaled_at" in vars(strategy)
    assert has_formula_for_lengths == (strategy.follows_length != "no")
    if name not in ("resonance", "over"):  # their examples wrap a fixed strategy
        assert scaling(name, pairs=32).length_dependent == has_formula_for_lengths


LENGTH_DEPENDENT = {name for name in SETTINGS if scaling(name, pairs=32).length_dependent}


@pytest.mark.parametrize("name", SETTINGS)
def test_every_strategy_returns_the_same_tree_exact_to_48_bits(name):
    for geometry in GEOMETRIES:
        pairs = geometry.rotary_dim // 2
        example = scaling(name, 7.3, pairs=pairs)
        frequencies = example.frequencies(geometry, 10**5)
        assert [leaf.shape for leaf in frequencies] == [(pairs,), (pairs,), ()]
        assert [leaf.dtype for leaf in frequencies] == [np.float32] * 3
        exact, _ = exactly(example, geometry)
        assert exact.dtype == np.float64
        np.testing.assert_array_equal(frequencies.inv_freq, exact.astype(np.float32))
        assert np.all(np.abs(in_float64(frequencies) - exact) <= 2.0**-48 * exact)
        if not example.length_dependent:
            for a, b in zip(frequencies, example.frequencies(geometry), strict=True):
                np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", ["none", "dynamic_ntk", "evq_cosh", "cope", "resonance"])
def test_a_bare_name_stands_for_the_defaults(name):
    assert parse_scaling(name) == parse_scaling({"type": name})


# strategies that slow each pair by between 1 and their factor, and the last by the whole factor
SLOWING = ["pi", "ntk", "ntk_by_parts", "yarn", "llama3", "mixed_base"]
# those whose factor says how many times longer the context becomes
EXTENDING = {*SLOWING, "longrope", "p_rope", "drope"}


@pytest.mark.parametrize("name", STRATEGIES)
def test_with_factor_changes_an_extension_factor_and_nothing_else(name):
    """What a sweep uses for `factor: auto`."""
    assert STRATEGIES[name].has_extension_factor() or name not in EXTENDING
    if not STRATEGIES[name].has_extension_factor():
        plain = parse_scaling("resonance") if name == "resonance" else scaling(name, pairs=2)
        if name == "over":  # without a factor inside
            plain = plain.model_copy(update={"inner": parse_scaling("none")})
        assert plain.extension_factor is None
        with pytest.raises(ValueError, match=r" has no extension factor$"):
            plain.with_factor(4.0)
        return
    more = {"beta_fast": 8.0, "query_scale": {"type": "logn"}} if name == "yarn" else {}
    before, after = (scaling(name, s, pairs=2, **more) for s in (2.0, 8.0))
    assert before.with_factor(8.0) == after
    assert (before.extension_factor, after.extension_factor) == (2.0, 8.0)
    if not more:
        over = [{"type": "resonance", "inner": x.model_dump()} for x in (before, after)]
        before, after = map(parse_scaling, over)
        assert before.with_factor(8.0) == after
        assert after.extension_factor == 8.0


def test_a_factor_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"^factor: dynamic_ntk has no extension factor$"):
        parse_scaling({"type": "dynamic_ntk", "factor": 2.0}).with_factor(8.0)
    with pytest.raises(ValueError, match=r"^factor: .*greater than or equal to 1, not 0.5$"):
        parse_scaling({"type": "pi", "factor": 2.0}).with_factor(0.5)
    with pytest.raises(ValueError, match=r"^c: drope needs it for a factor above 1"):
        parse_scaling("drope").with_factor(4.0)


# Golden values


# settings, (d, b, L), inv_freq by pair at 8,192 tokens, and m where it is not 1
GOLDEN = [
    ({"type": "none"}, (8, 1e4, 128), {0: 1.0, 1: 0.1, 2: 0.01, 3: 0.001}),
    ({"type": "none"}, (128, 1e4, 4096), {16: 0.1, 32: 0.01, 63: 1.154781985e-4}),
    ({"type": "pi", "factor": 4.0}, (8, 1e4, 128), {0: 0.25, 1: 0.025, 2: 0.0025, 3: 0.00025}),
    ({"type": "ntk", "factor": 8.0}, (64, 1e4, 2048), {0: 1.0, 1: 85550.3759 ** (-1 / 32),
        8: 0.0584715383, 16: 0.00341892079, 24: 0.000199909558, 31: 1.66690179e-05}),
    ({"type": "dynamic_ntk"}, (64, 1e4, 2048),
        {8: 0.0699245499, 16: 0.00488944268, 31: 3.33380358e-05}),
    ({"type": "dynamic_ntk", "factor": 4.0}, (64, 1e4, 2048),
        {8: 0.0515858686, 16: 0.00266110184, 31: 1.02578572e-05}),
    ({"type": "yarn", "factor": 16.0}, (128, 1e4, 4096),
        {21: 0.04694086, 32: 0.005673076923, 45: 1.517716047e-4, 63: 7.217387404e-6}, 1.2772588722),
    ({"type": "yarn", "factor": 4.0}, (32, 1e4, 128),
        {4: 0.05, 5: 0.0210877997, 8: 0.0025, 15: 4.44569853e-05}, 1.1386294361),
    # the ramp is (63 − 40)/(65 − 40) = 0.92 at the last pair, where θ = 1e4^(−126/128)
    ({"type": "yarn", "factor": 16.0}, (128, 1e4, 65536),
        {63: 1e4 ** (-126 / 128) * (0.08 + 0.92 / 16)}, 1.2772588722),
    ({"type": "yarn", "factor": 32.0, "truncate": False}, (64, 1.5e5, 4096),
        {16: 4.564839192e-4}, 1.3465735903),
    # DeepSeek: (0.1·0.707·ln 40 + 1)/(0.1·0.5·ln 40 + 1), and where one of the two is off
    ({"type": "yarn", "factor": 40.0, "mscale": 0.707, "mscale_all_dim": 0.5}, (64, 1e4, 2048),
        {0: 1.0}, 1.0644684474),
    ({"type": "yarn", "factor": 40.0, "mscale": 0.0, "mscale_all_dim": 1.0}, (64, 1e4, 2048),
        {0: 1.0}, 1.3688879454),
    ({"type": "yarn", "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.0}, (64, 1e4, 2048),
        {0: 1.0}, 1.3688879454),
    ({"type": "llama3"}, (128, 5e5, 8192),
        {21: 0.0134904199, 32: 0.000524846161, 63: 3.06892599e-07}),
    ({"type": "mixed_base", "factor": 8.0}, (64, 1e4, 2048),
        {0: 0.85679601, 16: 0.00274182808, 31: 1.66690179e-05}),
    # 0.75 of 8 pairs turn, with exponents over the whole head: θ_5 = 1e4^(−10/16)
    ({"type": "p_rope", "p": 0.75}, (16, 1e4, 128),
        {0: 1.0, 1: 0.316227766, 5: 3.16227766e-3, 6: 0.0, 7: 0.0}),
    ({"type": "p_rope", "p": 0.75, "factor": 2.0}, (16, 1e4, 128),
        {0: 0.5, 5: 1.58113883e-3, 6: 0.0}),
    ({"type": "abf", "base": 1e8}, (8, 1e4, 128), {0: 1.0, 1: 0.01, 2: 1e-4, 3: 1e-6}),
    # 10 of 32 pairs: ½(1 + cos(πk/9)) for k = 0 … 9
    ({"type": "cope"}, (64, 1e4, 128), {21: 1e4 ** (-42 / 64)} | {
        22 + k: 1e4 ** (-(44 + 2 * k) / 64) * taper
        for k, taper in {0: 1.0, 1: 0.969846310, 3: 0.75, 6: 0.25, 9: 0.0}.items()}),
    # the same 10 of 32 pairs, all at 0
    ({"type": "cope", "cut": "hard"}, (64, 1e4, 128),
        {0: 1.0, 21: 1e4 ** (-42 / 64)} | dict.fromkeys(range(22, 32), 0.0)),
    # at the smallest dimension, one of two pairs, where the taper takes both
    ({"type": "cope", "cut": "hard"}, (4, 100.0, 32), {0: 1.0, 1: 0.0}),
    ({"type": "cope", "cut": "hard", "c": 1}, (4, 100.0, 32), {0: 1.0, 1: 0.0}),
    ({"type": "cope", "cut": "hard", "c": 2}, (4, 100.0, 32), {0: 0.0, 1: 0.0}),
    # m² = 1 + 0.412·ln 8
    ({"type": "drope", "factor": 8.0, "c": 0.412}, (64, 1e4, 128),
        dict.fromkeys(range(32), 0.0), 1.3626187702),
    ({"type": "resonance", "inner": {"type": "drope", "factor": 8.0, "c": 0.412}}, (64, 1e4, 2048),
        dict.fromkeys(range(32), 0.0), 1.3626187702),
    # wavelengths 2π·1e4^(i/4) = 6.28, 62.8, 628.3, 6283.2
    ({"type": "resonance"}, (8, 1e4, 128),
        {i: 2 * math.pi / n for i, n in enumerate((6, 63, 628, 6283))}),
    ({"type": "resonance", "inner": {"type": "pi", "factor": 2.0}}, (8, 1e4, 128),
        {i: 2 * math.pi / n for i, n in enumerate((13, 126, 1257, 12566))}),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "geometry", "golden", "m"), [(*x, 1.0)[:4] for x in GOLDEN])
def test_golden_values(settings, geometry, golden, m):
    frequencies = parse_scaling(settings).frequencies(RotaryGeometry(*geometry), 8192)
    assert_golden(frequencies, golden)
    assert frequencies.attention_factor == pytest.approx(m, rel=1e-6)


def test_llama3_without_a_ramp_is_a_step():
    # Llama 4 Scout: both factors 1. A pair that turns once or more in L is unchanged.
    geometry = RotaryGeometry(128, 5e5, 8192)
    step = scaling("llama3", 16.0, low_freq_factor=1.0, high_freq_factor=1.0)
    theta = geometry.inv_freq()
    turns = 8192 * theta / (2 * math.pi)
    np.testing.assert_array_equal(step.scaled(geometry)[0], np.where(turns >= 1, theta, theta / 16))


def test_longrope_golden():
    lists = {"short_factor": [2.0, 4.0], "long_factor": [5.0, 8.0], "factor": 32.0}
    made, geometry = parse_scaling({"type": "longrope"} | lists), RotaryGeometry(4, 1e4, 4096)
    # m is the same in both regimes: √(1 + ln 32 / ln 4096)
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


# θ_i = b^(−φ_i), φ_i = 1 − asinh((1 − (2i + 1)/d)·sinh τ)/τ, computed with 60 digits or more.
# (d, b, L), τ, golden inv_freq by pair; τ None: d/√L
EVQ_COSH_GOLDEN = [
    ((64, 1e4, 512), None, {0: 0.950355233566517521, 16: 0.097867201717416216,
                            31: 0.000153370177561103336}),
    ((128, 5e5, 8192), None, {0: 0.937442689802878424, 32: 0.005194642367173653,
                              63: 2.301170108453979769e-06}),
    # the three branches: a tiny τ, τ just below 1, and a τ whose sinh overflows
    ((8, 1e4, 128), 1e-6, {0: 0.316227766016937484, 3: 0.000316227766016897664}),
    ((8, 1e4, 128), 0.9999, {0: 0.402681893521472558, 3: 0.000385025689288966433}),
    ((8, 1e4, 128), 50.0, {0: 0.975702659117779377, 3: 0.681780658718564697}),
    ((8, 1e4, 128), 1000.0, {0: 0.998770886403221107, 3: 0.981029876843572380}),
]  # fmt: skip


@pytest.mark.parametrize(("geometry", "tau", "golden"), EVQ_COSH_GOLDEN)
def test_evq_cosh_golden(geometry, tau, golden):
    inv_freq, m = scaling("evq_cosh", tau=tau).scaled(RotaryGeometry(*geometry))
    assert {pair: inv_freq[pair] for pair in golden} == pytest.approx(golden, rel=2e-14)
    assert m == 1
