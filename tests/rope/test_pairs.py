"""Pair by pair: against formulas written again, sampled angles, and identities."""

import math

import numpy as np

from rope_jax.rope import RotaryGeometry, parse_scaling
from rope_jax.rope.pairs import Pairs, exact_frequencies, turns, unseen_share, wavelengths

GEOMETRY = RotaryGeometry(64, 1e4, 2048)


def pairs_of(settings, length, trained=None):
    inv_freq, m = exact_frequencies(parse_scaling(settings), GEOMETRY, length)
    seen, _ = exact_frequencies(parse_scaling(trained or {"type": "none"}), GEOMETRY)
    return Pairs(GEOMETRY.inv_freq(), inv_freq, m, seen, GEOMETRY.train_length, length)


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


def test_frequencies_have_float64_precision():
    theta = GEOMETRY.inv_freq()
    found, m = exact_frequencies(parse_scaling({"type": "ntk", "factor": 8.0}), GEOMETRY)
    exponents = np.arange(0, 64, 2) / 64
    np.testing.assert_allclose(found, (1e4 * 8 ** (64 / 62)) ** -exponents, rtol=1e-13)
    assert m == 1
    # of a text's length, where the strategy depends on it
    found, _ = exact_frequencies(parse_scaling({"type": "dynamic_pi"}), GEOMETRY, 6144)
    np.testing.assert_allclose(found, theta / 3, rtol=1e-13)
