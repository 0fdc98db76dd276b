"""Quantities of each pair, against independent formulas, sampled angles and identities."""

import math

import numpy as np

from rope_jax.rope import RotaryGeometry, parse_scaling
from rope_jax.rope.pairs import exact_frequencies, turns, unseen_share, wavelengths

GEOMETRY = RotaryGeometry(64, 1e4, 2048)
THETA, _ = exact_frequencies(parse_scaling("none"), GEOMETRY)


def unseen_by(settings, length):
    inv_freq, _ = exact_frequencies(parse_scaling(settings), GEOMETRY, length)
    return unseen_share(inv_freq, length, THETA, GEOMETRY.train_length)


def sampled(theta, length, bins):
    """Return which of the circle's bins a pair visits between the first and the last distance."""
    steps = np.linspace(0, (length - 1) * theta, 60_000) % (2 * np.pi)
    return np.bincount((steps / (2 * np.pi) * bins).astype(int), minlength=bins) > 0


def test_the_unseen_share_matches_sampled_angles():
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


def test_no_angle_is_unseen_after_full_turns_or_within_the_window():
    whole = turns(THETA, 2047) >= 1  # training saw the whole circle
    np.testing.assert_array_equal(unseen_by({"type": "none"}, 8192) == 0, whole)
    # the text is no longer than training; nothing turns; interpolation by the extension leaves
    # less than a token of rotation
    assert (unseen_by({"type": "none"}, 2048) == 0).all()
    assert (unseen_by({"type": "drope"}, 8192) == 0).all()
    slow = turns(THETA, 2048) < 1
    unseen = unseen_by({"type": "pi", "factor": 4.0}, 8192)
    np.testing.assert_allclose(unseen[slow], 0.75 * THETA[slow] / (2 * np.pi), rtol=1e-9)
    # every angle is unseen if the pair stood still in training
    assert unseen_share(np.ones(1), 100, np.zeros(1), 100) == 1


def test_wavelengths_and_turns_follow_their_definitions():
    inv_freq = np.array([math.pi, 0.25, 0.0])
    np.testing.assert_allclose(wavelengths(inv_freq), [2, 8 * math.pi, math.inf])
    np.testing.assert_allclose(turns(inv_freq, 100), [50, 25 / (2 * math.pi), 0])
