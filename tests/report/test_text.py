"""Perplexities and intervals as text."""

import math

import pytest

from rope_jax.report.text import half_width_text, interval_text, perplexity_text
from rope_jax.results.statistics import Estimate


@pytest.mark.parametrize(
    ("nll", "low", "high", "text"),
    [
        (1.0, 0.9, 1.1, "±0.27"),
        (1.247, 1.247, 1.247, "±0"),
        (5.0, 4.9, 5.1, "±15"),
        (1.247, -10.0, 12.0, "[0.00, e^12.0]"),  # was ±8.1e+04
        (1.0, -3.0, 8.0, "[0.05, 2,981]"),
        (1.0, 0.2, 1.7, "±2.1"),
        (1.0, math.nan, math.nan, ""),
        (math.inf, math.nan, math.nan, ""),
        (1000.0, 999.9, 1000.1, "[e^999.9, e^1000.1]"),  # too large for a float
    ],
)
def test_a_half_width_is_shown_unless_the_interval_is_too_wide(nll, low, high, text):
    assert interval_text(Estimate(nll, low, high)) == text


def test_a_perplexity_too_large_to_read_is_a_power_of_e():
    assert [perplexity_text(nll) for nll in (1.0, 5.0, 20.0)] == ["2.72", "148", "e^20.0"]


@pytest.mark.parametrize(
    ("half", "two", "one"),
    [
        (0.5678, "±0.57", "±0.6"),
        (0.996, "±1.0", "±1"),
        (1.72, "±1.7", "±2"),
        (15.2, "±15", "±15"),
        (151.7, "±152", "±152"),  # was ±1.5e+02
        (1234.0, "±1,234", "±1,234"),
        (0.0123, "±0.012", "±0.01"),
        (0.00012345, "±0.00012", "±0.0001"),
        (0.0, "±0", "±0"),
    ],
)
def test_a_half_width_has_two_digits_or_all_before_the_point(half, two, one):
    assert (half_width_text(half), half_width_text(half, digits=1)) == (two, one)
