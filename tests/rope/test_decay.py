"""Decay of scores with distance: against the rotation itself, closed forms, and identities."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import sici

from rope_jax.rope import RotaryGeometry, cos_sin, parse_scaling, rotate
from rope_jax.rope.decay import (
    decay_scores,
    first_negative_distance,
    logarithmic_decay,
    mean_and_peak_by_octave,
    octave_means,
    octaves,
)
from rope_jax.rope.forms import rotate_complex, rotation_angles
from rope_jax.rope.pairs import exact_frequencies

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


@pytest.mark.parametrize(("d", "base", "m"), [(64, 1e4, 1.0), (6, 10.0, 1.25), (2, 50.0, 1.0)])
def test_decay_matches_its_formula(d, base, m):
    distances = np.array([0, 1, 2, 17, 1000, 123457])
    expected = [
        m**2 * sum(2 * math.cos(n * base ** (-2 * i / d)) for i in range(d // 2)) / math.sqrt(d)
        for n in distances.tolist()
    ]
    found = decay_scores(RotaryGeometry(d, base, 64).inv_freq(), distances, m)
    np.testing.assert_allclose(found, expected, atol=1e-9)
    assert found[0] == pytest.approx(m**2 * math.sqrt(d))  # the largest possible


def test_decay_is_the_same_in_blocks():
    distances = np.arange(40_000)
    theta = RotaryGeometry(4, 100.0, 64).inv_freq()
    whole = np.cos(distances[:, None] * theta).sum(1)
    np.testing.assert_allclose(decay_scores(theta, distances), whole, atol=1e-12)


def test_base_1_does_not_decay():
    n = np.arange(2048)
    found = decay_scores(RotaryGeometry(64, 1.0, 64).inv_freq(), n)
    np.testing.assert_allclose(found, 8 * np.cos(n), atol=1e-12)
    assert mean_and_peak_by_octave(found)[1][4:].min() > 7.98


def test_evenly_spaced_frequencies_give_a_dirichlet_kernel():
    omega, pairs, n = 0.037, 16, np.arange(1, 500)
    half = n * omega / 2
    expected = (1 + np.sin((2 * pairs - 1) * half) / np.sin(half)) / math.sqrt(2 * pairs)
    np.testing.assert_allclose(decay_scores(omega * np.arange(pairs), n), expected, atol=1e-9)


@pytest.mark.parametrize("base", [10.0, 1e4])
def test_many_pairs_approach_the_cosine_integral(base):
    # the sum is a left Riemann sum: its error is half a step × the ends' difference, then step²
    d, n = 16384, np.arange(1, 40)
    ci = (sici(n)[1] - sici(n / base)[1]) / math.log(base)
    ends = (np.cos(n) - np.cos(n / base)) / math.sqrt(d)
    found = decay_scores(RotaryGeometry(d, base, 64).inv_freq(), n)
    np.testing.assert_allclose(found, math.sqrt(d) * ci + ends, atol=1e-4)


def test_octave_means_follow_the_logarithmic_decay():
    for base, last in ((500.0, 6), (1e4, 9), (5e4, 11)):
        geometry = RotaryGeometry(128, base, 64)
        means, _ = mean_and_peak_by_octave(decay_scores(geometry.inv_freq(), np.arange(2**last)))
        spans = octaves(2**last)
        expected = [logarithmic_decay(geometry, np.arange(a, b + 1.0)).mean() for a, b in spans]
        np.testing.assert_allclose(means[2:], expected[2:], atol=0.35)


def test_decay_weakens_as_the_base_grows_and_small_bases_oscillate():
    bases = (10.0, 100.0, 500.0, 5000.0, 10000.0, 50000.0)
    both = [
        mean_and_peak_by_octave(
            decay_scores(RotaryGeometry(64, base, 64).inv_freq(), np.arange(2048))
        )
        for base in bases
    ]
    fall = [(means[2] - means[7]) / 5 for means, _ in both]  # per octave, from 4–7 to 128–255
    assert fall[2:] == sorted(fall[2:], reverse=True)
    np.testing.assert_allclose(
        fall[2:], [8 * math.log(2) / math.log(base) for base in bases[2:]], rtol=0.06
    )
    for means, largest in both[:2]:  # about 0 on average, but oscillating far from it
        assert abs(means[-1]) < 0.1
        assert largest[-1] > 2


@pytest.mark.parametrize("length", [2, 3, 4, 5, 100, 1024, 2048])
def test_octaves_hold_every_distance_once(length):
    spans = octaves(length)
    assert [n for first, last in spans for n in range(first, last + 1)] == list(range(1, length))
    assert all(last < 2 * first for first, last in spans)
    scores = np.arange(float(length))
    means, largest = mean_and_peak_by_octave(scores)
    np.testing.assert_allclose(means, [(first + last) / 2 for first, last in spans])
    np.testing.assert_array_equal(largest, [last for _, last in spans])


def test_octave_means_average_half_an_octave_either_side():
    scores = np.arange(100.0) ** 2
    mean = octave_means(scores, np.array([1, 2, 10, 70]))
    spans = [(1, 1), (2, 2), (8, 14), (50, 98)]
    np.testing.assert_allclose(mean, [np.mean(scores[a : b + 1]) for a, b in spans])


@pytest.mark.parametrize(("d", "base"), [(24, 1e4), (64, 500.0), (128, 1e4), (128, 5e5)])
def test_the_first_negative_distance_matches_all_scores(d, base):
    theta = RotaryGeometry(d, base).inv_freq()
    negative = decay_scores(theta, np.arange(20_000)) < 0
    first = first_negative_distance(theta)
    assert first == negative.argmax()
    assert negative[first]
    # the limit is included
    assert first_negative_distance(theta, first) == first
    assert first_negative_distance(theta, first - 1) is None


def test_the_first_negative_distance_of_one_pair():
    # cos(Δ·θ) < 0 from a quarter of the wavelength on, also across the blocks' ends
    for wavelength, first in ((6.0, 2), (1601.0, 401), (4094.0, 1024), (40001.0, 10001)):
        assert first_negative_distance(np.array([2 * math.pi / wavelength])) == first
    assert first_negative_distance(np.zeros(4), 5000) is None


def test_equal_keys_score_as_the_sum_of_cosines_on_average():
    # independent components of variance v: E⟨R_Δ q, q⟩ = 2v·Σ cos(Δθ_i), and 0 for another key
    rng, theta = np.random.default_rng(0), RotaryGeometry(16, 100.0).inv_freq()
    q, k = 1.5 * rng.standard_normal((2, 200_000, 16))
    for distance in (0, 3, 20):
        angles = rotation_angles(np.array([distance]), theta)
        expected = 2 * 1.5**2 * np.cos(distance * theta).sum()
        rotated = rotate_complex(q, angles)
        assert np.vecdot(rotated, q).mean() == pytest.approx(expected, abs=0.2)
        assert np.vecdot(rotated, k).mean() == pytest.approx(0, abs=0.2)
