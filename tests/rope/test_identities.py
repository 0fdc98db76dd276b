"""Identities: what each strategy equals or approaches by its own definition."""

import itertools
import math

import numpy as np
import pytest

from rope_jax.rope import RotaryGeometry, parse_scaling
from tests.rope.test_strategies import EXTENDING, GEOMETRIES, SLOWING, in_float64, scaling


@pytest.mark.parametrize("name", [*SLOWING, "drope"])
def test_factor_1_is_none(name):
    # In float64: the two terms of YaRN's ramp may round in their sum.
    for geometry in GEOMETRIES:
        ours, m = scaling(name, 1).scaled(geometry)
        plain = 0 * geometry.inv_freq() if name == "drope" else geometry.inv_freq()
        np.testing.assert_allclose(ours, plain, rtol=4e-16)
        assert m == 1


@pytest.mark.parametrize("name", SLOWING)
def test_every_factor_slows_frequencies_between_none_and_pi(name):
    for factor, geometry in itertools.product((1.01, 2, 32), GEOMETRIES):
        ours, m = scaling(name, factor).scaled(geometry)
        ratio = ours / geometry.inv_freq()
        assert ratio.min() == pytest.approx(1 / factor, rel=1e-9)
        assert ratio[-1] == pytest.approx(1 / factor, rel=1e-9)
        assert ratio.max() <= 1 + 1e-12
        assert np.all(np.diff(ratio) <= 1e-12)  # the slower the pair, the more it is slowed
        assert m == pytest.approx(1 + 0.1 * math.log(factor) if name == "yarn" else 1, rel=1e-12)


@pytest.mark.parametrize("geometry", GEOMETRIES[:4])
def test_yarn_is_none_before_its_ramp_and_pi_after(geometry):
    yarn, factor = scaling("yarn", 16), 16
    low, high = yarn.ramp_ends(geometry)
    ours, plain = yarn.scaled(geometry)[0], geometry.inv_freq()
    assert 0 <= low < high < geometry.rotary_dim // 2
    np.testing.assert_array_equal(ours[: low + 1], plain[: low + 1])
    np.testing.assert_array_equal(ours[high:], plain[high:] / factor)
    line = np.linspace(0, 1 - 1 / factor, high - low + 1)
    np.testing.assert_allclose((1 - ours / plain)[low : high + 1], line, atol=1e-12)
    parts, parts_m = scaling("ntk_by_parts", 16).scaled(geometry)
    np.testing.assert_array_equal(parts, ours)
    given, given_m = scaling("yarn", 16, attention_factor=0.75).scaled(geometry)
    np.testing.assert_array_equal(given, ours)
    assert (parts_m, given_m) == (1, 0.75)


def test_the_papers_ramp_equals_llama3s_and_differs_from_the_codes():
    for geometry, fast in itertools.product(GEOMETRIES, (6.0, 1.5)):
        ends = {"beta_slow": 1.5, "beta_fast": fast, "ramp": "rotations"}
        paper = scaling("ntk_by_parts", 8.0, **ends).scaled(geometry)[0]
        llama = scaling("llama3", 8.0, low_freq_factor=1.5, high_freq_factor=fast).scaled(geometry)
        np.testing.assert_allclose(paper, llama[0], rtol=1e-14)
    geometry = RotaryGeometry(128, 1e4, 4096)
    code, paper = (scaling("yarn", ramp=r).scaled(geometry)[0] for r in ("index", "rotations"))
    # pair 33 turns 5.6 times in L: the code keeps half of θ there, the paper 15% (between 1 and 32)
    share = [(x[33] / geometry.inv_freq()[33] - 1 / 8) / (1 - 1 / 8) for x in (code, paper)]
    turns = 4096 * 1e4 ** (-66 / 128) / (2 * math.pi)
    assert share == pytest.approx([13 / 26, (turns - 1) / 31], rel=1e-9)


@pytest.mark.parametrize("geometry", GEOMETRIES[:4])
def test_a_dynamic_strategy_is_the_fixed_one_with_factor_length_over_L(geometry):
    for (dynamic, fixed), times in itertools.product(
        (("dynamic_pi", "pi"), ("dynamic_yarn", "yarn")), (0.5, 1, 1.5, 8)
    ):
        length = int(times * geometry.train_length)
        wanted = scaling(fixed, max(1.0, length / geometry.train_length)).frequencies(geometry)
        for a, b in zip(scaling(dynamic).frequencies(geometry, length), wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-14, atol=1e-20)
    # a = 1: s = n/L; a = 4 at n = 4L: s = 13
    for a, times, s in ((1.0, 4, 4.0), (4.0, 4, 13.0), (4.0, 0.5, 1.0)):
        made = scaling("dynamic_ntk", a).frequencies(geometry, int(times * geometry.train_length))
        wanted = scaling("ntk", s).scaled(geometry)[0]
        np.testing.assert_allclose(in_float64(made), wanted, rtol=1e-13)
    given = scaling("dynamic_yarn", attention_factor=1.1).frequencies(geometry, 10**6)
    assert given.attention_factor == np.float32(1.1)


def test_cope_clips_a_fixed_share_of_the_pairs():
    for rotary_dim in (4, 32, 64, 96, 256):
        geometry = RotaryGeometry(rotary_dim)
        ratio = scaling("cope").scaled(geometry)[0] / geometry.inv_freq()
        pairs = rotary_dim // 2
        # the taper starts at 1; the authors' min(20, d/2) would keep only 1 of the 16 pairs at d 32
        assert (ratio == 1).sum() - 1 == pairs - max(2, round(0.3125 * pairs))
        assert np.all(np.diff(ratio) <= 0)
        assert ratio[-1] == 0


@pytest.mark.parametrize("name", sorted(EXTENDING))
def test_bucketed_is_its_inner_strategy_with_the_factor_that_covers_the_length(name):
    geometry = RotaryGeometry(4, 100.0, 32)
    inner = scaling(name, pairs=2).model_dump(exclude={"factor"})
    made = parse_scaling({"type": "bucketed", "factors": [1.5, 4.0, 16.0], "inner": inner})
    lengths = np.array([1, 48, 49, 128, 129, 512, 513, 10**6])
    rows = made.frequencies(geometry, lengths)
    for row, (length, factor) in enumerate(zip(lengths, [1.5, 1.5, 4, 4, *[16] * 4], strict=True)):
        wanted = parse_scaling(inner | {"factor": float(factor)}).frequencies(geometry, length)
        for leaf, one in zip(rows, wanted, strict=True):
            np.testing.assert_array_equal(leaf[row], one)


def test_a_factor_of_n_over_L_covers_n_tokens_but_no_more():
    factors = (1.15, 4 / 3, 1000 / 999, 4097 / 4096, 33.3, 1000.001)
    for factor, train_length in itertools.product(factors, (3, 100, 4096, 999_000, 2**31 - 1)):
        covered = round(factor * train_length)
        first = covered / train_length  # as `auto` computes it
        settings = {"type": "bucketed", "factors": [first, first + 1], "inner": {"type": "pi"}}
        geometry = RotaryGeometry(4, 100.0, train_length)
        found = parse_scaling(settings).frequencies(geometry, [covered, covered + 1]).inv_freq
        np.testing.assert_array_equal(found[:, 0], np.float32([1 / first, 1 / (first + 1)]))
