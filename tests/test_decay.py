"""Decay of scores with distance: against the rotation itself, closed forms, and identities."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.rope import RotaryGeometry, cos_sin, parse_scaling, rotate
from rope_jax.rope.pairs import exact_frequencies
from scripts.decay import (
    decay_scores,
    first_negative_distance,
    logarithmic_decay,
    mean_and_peak_by_octave,
    octaves,
)

GEOMETRY = RotaryGeometry(64, 1e4, 2048)


def test_decay_is_the_score_of_rotated_ones():
    positions = np.array([0, 1, 5, 700, 2047], np.int32)

    @jax.jit
    def scores(frequencies):
        turned = rotate(jnp.ones((5, 1, 64)), *cos_sin(frequencies, positions))[:, 0]
        return turned @ turned[0] / 8  # the key at position 0

    for settings in ({"type": "none"}, {"type": "yarn", "factor": 4.0}):
        scaling = parse_scaling(settings)
        inv_freq, m = exact_frequencies(scaling, GEOMETRY)
        found = decay_scores(inv_freq, positions, m)
        np.testing.assert_allclose(found, scores(scaling.frequencies(GEOMETRY)), atol=1e-5)


def test_decay_matches_its_formula_also_in_blocks():
    distances, theta = np.arange(400_000), RotaryGeometry(6, 100.0, 64).inv_freq()
    whole = 1.25**2 * 2 * np.cos(distances[:, None] * theta).sum(1) / math.sqrt(6)
    found = decay_scores(theta, distances, 1.25)
    np.testing.assert_allclose(found, whole, atol=1e-9)
    assert found[0] == pytest.approx(1.25**2 * math.sqrt(6))  # the largest possible


def test_octave_means_follow_the_logarithmic_decay():
    for base, last in ((500.0, 6), (5e4, 11)):
        geometry = RotaryGeometry(128, base, 64)
        means, _ = mean_and_peak_by_octave(decay_scores(geometry.inv_freq(), np.arange(2**last)))
        spans = octaves(2**last)
        expected = [logarithmic_decay(geometry, np.arange(a, b + 1.0)).mean() for a, b in spans]
        np.testing.assert_allclose(means[2:], expected[2:], atol=0.35)


def test_the_first_negative_distance_matches_all_scores():
    for d, base in ((24, 1e4), (64, 500.0), (128, 5e5)):
        theta = RotaryGeometry(d, base).inv_freq()
        first = first_negative_distance(theta)
        assert first == (decay_scores(theta, np.arange(20_000)) < 0).argmax() > 0
        # the limit is included
        assert first_negative_distance(theta, first) == first
        assert first_negative_distance(theta, first - 1) is None
