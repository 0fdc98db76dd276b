"""scripts/plot_rope.py: what its figures show, by formulas written out here."""

import math

import numpy as np
import pytest

from rope_jax.rope import RotaryGeometry
from scripts.decay import first_negative_distance
from scripts.plot_rope import Model, base_figure, decay_figure, turns_figure

MODELS = (Model("a", 8, 100, 16), Model("b", 16, 1e4, 300))


def test_scores_by_distance_have_a_panel_per_base_and_one_of_means():
    figure = decay_figure([1.0, 100.0], dim=16, length=300)
    titles = [axis.get_title() for axis in figure.axes if axis.get_visible()]
    assert titles == ["base 1", "base 100", "all octave means"]
    for axis, base in zip(figure.axes, (1, 100), strict=False):
        theta = base ** -(np.arange(8) / 8)
        expected = 2 * np.cos(np.outer(np.arange(1, 300), theta)).sum(1) / 4
        np.testing.assert_allclose(axis.get_lines()[0].get_ydata(), expected, atol=1e-9)


def test_distances_are_drawn_against_bases_with_the_windows_of_models():
    axis, _ = base_figure(MODELS).axes
    by_dim, points = axis.get_lines()[:4], axis.get_lines()[4:]
    for d, longest, negative in zip((8, 16), by_dim[0::2], by_dim[1::2], strict=True):
        bases = longest.get_xdata()
        assert (bases[0], bases[-1]) == pytest.approx((100, 1e5))
        wanted = 2 * math.pi * bases ** ((d - 2) / d)
        np.testing.assert_allclose(longest.get_ydata(), wanted, rtol=1e-12)
        theta = RotaryGeometry(d, float(bases[40])).inv_freq()
        assert negative.get_ydata()[40] == first_negative_distance(theta)
    assert [(*line.get_xdata(), *line.get_ydata()) for line in points] == [(100, 16), (1e4, 300)]


def test_turns_and_unseen_shares_are_drawn_by_pair():
    above, below = turns_figure(MODELS, windows=3).axes
    for nth, (_, d, base, window) in enumerate(MODELS):
        share = 2 * np.arange(d // 2) / d
        theta = base**-share
        line = above.get_lines()[nth]
        np.testing.assert_allclose(line.get_xdata(), share)
        np.testing.assert_allclose(line.get_ydata(), window * theta / (2 * math.pi), rtol=1e-12)
        arcs = [np.minimum(1, (n - 1) * theta / (2 * math.pi)) for n in (3 * window, window)]
        np.testing.assert_allclose(below.get_lines()[nth].get_ydata(), arcs[0] - arcs[1])
