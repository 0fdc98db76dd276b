"""Pair by pair: against formulas written again, sampled angles, the rotation itself, identities."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import sici

from rope_jax.rope import RotaryGeometry, cos_sin, parse_scaling, rotate
from rope_jax.rope.pairs import (
    Pairs,
    decay,
    effective,
    log_decay,
    octaves,
    over_octaves,
    running,
    turns,
    unseen_share,
    wavelengths,
)

GEOMETRY = RotaryGeometry(64, 1e4, 2048)


def pairs_of(settings, length, trained=None):
    inv_freq, m = effective(parse_scaling(settings), GEOMETRY, length)
    seen, _ = effective(parse_scaling(trained or {"type": "none"}), GEOMETRY)
    return Pairs(GEOMETRY.inv_freq(), inv_freq, m, seen, GEOMETRY.train_length, length)


# Decay


def test_decay_is_the_score_of_ones_that_were_rotated():
    positions = np.array([0, 1, 5, 700, 2047], np.int32)

    @jax.jit
    def scores(frequencies):
        turned = rotate(jnp.ones((5, 1, 64)), *cos_sin(frequencies, positions))[:, 0]
        return turned @ turned[0] / 8  # the key at position 0

    for settings in ({"type": "none"}, {"type": "yarn", "factor": 4.0}):
        scaling = parse_scaling(settings)
        inv_freq, m = effective(scaling, GEOMETRY)
        found = decay(inv_freq, positions, m)
        np.testing.assert_allclose(found, scores(scaling.frequencies(GEOMETRY)), atol=1e-5)


@pytest.mark.parametrize(("d", "base", "m"), [(64, 1e4, 1.0), (6, 10.0, 1.25), (2, 50.0, 1.0)])
def test_decay_is_its_formula(d, base, m):
    distances = np.array([0, 1, 2, 17, 1000, 123457])
    expected = [
        m**2 * sum(2 * math.cos(n * base ** (-2 * i / d)) for i in range(d // 2)) / math.sqrt(d)
        for n in distances.tolist()
    ]
    found = decay(RotaryGeometry(d, base, 64).inv_freq(), distances, m)
    np.testing.assert_allclose(found, expected, atol=1e-9)
    assert found[0] == pytest.approx(m**2 * math.sqrt(d))  # the largest there is


def test_decay_is_the_same_in_blocks():
    distances = np.arange(40_000)
    theta = RotaryGeometry(4, 100.0, 64).inv_freq()
    whole = np.cos(distances[:, None] * theta).sum(1)
    np.testing.assert_allclose(decay(theta, distances), whole, atol=1e-12)


def test_base_1_does_not_decay():
    n = np.arange(2048)
    found = decay(RotaryGeometry(64, 1.0, 64).inv_freq(), n)
    np.testing.assert_allclose(found, 8 * np.cos(n), atol=1e-12)
    assert over_octaves(found)[1][4:].min() > 7.98


def test_evenly_spaced_frequencies_give_a_dirichlet_kernel():
    omega, pairs, n = 0.037, 16, np.arange(1, 500)
    half = n * omega / 2
    expected = (1 + np.sin((2 * pairs - 1) * half) / np.sin(half)) / math.sqrt(2 * pairs)
    np.testing.assert_allclose(decay(omega * np.arange(pairs), n), expected, atol=1e-9)


@pytest.mark.parametrize("base", [10.0, 1e4])
def test_many_pairs_give_the_cosine_integral(base):
    # the sum is the integral's left rule: half a step of the ends' difference, then step²
    d, n = 16384, np.arange(1, 40)
    ci = (sici(n)[1] - sici(n / base)[1]) / math.log(base)
    ends = (np.cos(n) - np.cos(n / base)) / math.sqrt(d)
    found = decay(RotaryGeometry(d, base, 64).inv_freq(), n)
    np.testing.assert_allclose(found, math.sqrt(d) * ci + ends, atol=1e-4)


def test_the_logarithm_is_the_mean_between_the_first_pair_and_the_last():
    for base, last in ((500.0, 6), (1e4, 9), (5e4, 11)):
        geometry = RotaryGeometry(128, base, 64)
        means, _ = over_octaves(decay(geometry.inv_freq(), np.arange(2**last)))
        spans = octaves(2**last)
        expected = [log_decay(geometry, np.arange(a, b + 1.0)).mean() for a, b in spans]
        np.testing.assert_allclose(means[2:], expected[2:], atol=0.35)


def test_decay_weakens_as_the_base_grows_and_small_bases_oscillate():
    bases = (10.0, 100.0, 500.0, 5000.0, 10000.0, 50000.0)
    both = [
        over_octaves(decay(RotaryGeometry(64, base, 64).inv_freq(), np.arange(2048)))
        for base in bases
    ]
    fall = [(means[2] - means[7]) / 5 for means, _ in both]  # an octave, from 4–7 to 128–255
    assert fall[2:] == sorted(fall[2:], reverse=True)
    np.testing.assert_allclose(
        fall[2:], [8 * math.log(2) / math.log(base) for base in bases[2:]], rtol=0.06
    )
    for means, largest in both[:2]:  # about 0 on the mean, and far from it by turns
        assert abs(means[-1]) < 0.1
        assert largest[-1] > 2


# Unseen angles


def sampled(theta, length, bins):
    """Which of the circle's bins a pair passes between the first and the last distance."""
    steps = np.linspace(0, (length - 1) * theta, 60_000) % (2 * np.pi)
    return np.bincount((steps / (2 * np.pi) * bins).astype(int), minlength=bins) > 0


def test_the_unseen_share_is_that_of_sampled_angles():
    rng, bins = np.random.default_rng(0), 1000
    window, length = 100, 371
    trained = np.exp(rng.uniform(np.log(1e-3), np.log(0.3), 12))
    inv_freq = trained * rng.uniform(0.1, 1.5, 12)
    expected = [
        (sampled(new, length, bins) & ~sampled(old, window, bins)).mean()
        for new, old in zip(inv_freq, trained, strict=True)
    ]
    assert 0 < sum(share > 0 for share in expected) < 12
    found = unseen_share(inv_freq, length, trained, window)
    np.testing.assert_allclose(found, expected, atol=1.5 / bins)


def test_where_nothing_is_unseen():
    theta = GEOMETRY.inv_freq()
    whole = 2047 * theta >= 2 * np.pi
    assert 0 < whole.sum() < 32
    plain = pairs_of({"type": "none"}, 8192)
    # training saw the whole circle
    assert (plain.unseen[whole] == 0).all()
    assert (plain.unseen[~whole] > 0).all()
    # the text is no longer than training
    assert (pairs_of({"type": "none"}, 2048).unseen == 0).all()
    # nothing turns
    assert (pairs_of({"type": "drope"}, 8192).unseen == 0).all()
    # the angles are those of the scaling that training had
    yarn = {"type": "yarn", "factor": 4.0}
    assert (pairs_of(yarn, 2048, trained=yarn).unseen == 0).all()


def test_interpolation_by_the_extension_leaves_less_than_a_token_of_rotation():
    theta = GEOMETRY.inv_freq()
    unseen = pairs_of({"type": "pi", "factor": 4.0}, 8192).unseen
    slow = 2048 * theta < 2 * np.pi
    np.testing.assert_allclose(unseen[slow], 0.75 * theta[slow] / (2 * np.pi), rtol=1e-9)


def test_all_is_unseen_where_a_pair_stood_still():
    zero, one = np.zeros(1), np.ones(1)
    assert unseen_share(one, 100, zero, 100) == 1
    assert unseen_share(zero, 100, zero, 100) == 0


# The rest


def test_wavelengths_turns_and_scale():
    inv_freq = np.array([math.pi, 0.25, 0.0])
    np.testing.assert_allclose(wavelengths(inv_freq), [2, 8 * math.pi, math.inf])
    np.testing.assert_allclose(turns(inv_freq, 100), [50, 25 / (2 * math.pi), 0])
    cope = pairs_of({"type": "cope"}, 4096)
    assert cope.wavelengths[-1] == math.inf
    assert (cope.turns[-1], cope.scale[-1]) == (0, 0)
    np.testing.assert_allclose(cope.turns[:-1], 2048 / cope.wavelengths[:-1], rtol=1e-12)
    np.testing.assert_allclose(cope.scale[:20], 1, rtol=1e-13)


def test_frequencies_are_float64_s():
    theta = GEOMETRY.inv_freq()
    found, m = effective(parse_scaling({"type": "ntk", "factor": 8.0}), GEOMETRY)
    exponents = np.arange(0, 64, 2) / 64
    np.testing.assert_allclose(found, (1e4 * 8 ** (64 / 62)) ** -exponents, rtol=1e-13)
    assert m == 1
    # of a text's length, where the strategy depends on it
    found, _ = effective(parse_scaling({"type": "dynamic_pi"}), GEOMETRY, 6144)
    np.testing.assert_allclose(found, theta / 3, rtol=1e-13)


@pytest.mark.parametrize("length", [2, 3, 4, 5, 100, 1024, 2048])
def test_octaves_hold_every_distance_once(length):
    spans = octaves(length)
    assert [n for first, last in spans for n in range(first, last + 1)] == list(range(1, length))
    assert all(last < 2 * first for first, last in spans)
    scores = np.arange(float(length))
    means, largest = over_octaves(scores)
    np.testing.assert_allclose(means, [(first + last) / 2 for first, last in spans])
    np.testing.assert_array_equal(largest, [last for _, last in spans])


def test_running_reads_half_an_octave_either_side():
    scores = np.arange(100.0) ** 2
    mean = running(scores, np.array([1, 2, 10, 70]))
    spans = [(1, 1), (2, 2), (8, 14), (50, 98)]
    np.testing.assert_allclose(mean, [np.mean(scores[a : b + 1]) for a, b in spans])
