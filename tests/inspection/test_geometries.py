"""scripts/plot_base.py and scripts/plot_turns.py, from a command line to figures and tables."""

import math

import numpy as np
import pytest
from matplotlib.image import imread

from rope_jax.rope import RotaryGeometry
from rope_jax.rope.decay import first_negative_distance
from scripts import plot_base, plot_turns

# a name is drawn as it is, even if it could be a formula
TWO = (
    "models=[{name: $a$, rotary_dim: 8, base: 100, train_length: 16}, "
    "{name: b, rotary_dim: 16, base: 1e4, train_length: 300}]"
)


def test_plot_base_draws_distances_against_bases(show, folder):
    out, figure = show(plot_base, TWO, pixels=True)
    axis, legends = figure.axes
    by_dim, points = axis.get_lines()[:4], axis.get_lines()[4:]
    for d, longest, negative in zip((8, 16), by_dim[0::2], by_dim[1::2], strict=True):
        bases = longest.get_xdata()
        assert (bases[0], bases[-1]) == pytest.approx((100, 1e5))
        wanted = 2 * math.pi * bases ** ((d - 2) / d)
        np.testing.assert_allclose(longest.get_ydata(), wanted, rtol=1e-12)
        theta = RotaryGeometry(d, float(bases[40])).inv_freq()
        assert negative.get_ydata()[40] == first_negative_distance(theta)
    assert [(*line.get_xdata(), *line.get_ydata()) for line in points] == [(100, 16), (1e4, 300)]
    labels = [text.get_text() for text in legends.get_legend().get_texts()]
    assert labels == ["$a$ (d 8)", "b (d 16)"]
    assert imread(folder / "base.png").std() > 0.02

    (row,) = (line.split() for line in out.splitlines() if line.startswith("b "))
    longest = 2 * math.pi * 1e4 ** (14 / 16)
    negative = first_negative_distance(RotaryGeometry(16, 1e4).inv_freq())
    turns = 300 * 1e4 ** -(np.arange(8) / 8) / (2 * math.pi)
    shown = [f"{longest:,.0f}", f"{negative:,}", f"{(turns >= 1).sum()}", "of", "8"]
    assert row == ["b", "16", "10,000", "300", *shown]


def test_plot_turns_draws_turns_and_unseen_shares(show, folder):
    # the first negative score of the last one is out of reach
    three = f"{TWO[:-1]}, {{name: far, rotary_dim: 128, base: 1e9, train_length: 16}}]"
    out, figure = show(plot_turns, three, "windows=3", "output=a.svg", pixels=True)
    above, below = figure.axes
    for nth, (d, base, window) in enumerate(((8, 100, 16), (16, 1e4, 300))):
        place = 2 * np.arange(d // 2) / d
        theta = base**-place
        line = above.get_lines()[nth]
        np.testing.assert_allclose(line.get_xdata(), place)
        np.testing.assert_allclose(line.get_ydata(), window * theta / (2 * math.pi), rtol=1e-12)
        arcs = [np.minimum(1, (n - 1) * theta / (2 * math.pi)) for n in (3 * window, window)]
        np.testing.assert_allclose(below.get_lines()[nth].get_ydata(), arcs[0] - arcs[1])
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels[:2] == ["$a$ (d 8, b 100, L 16)", "b (d 16, b 10,000, L 300)"]
    drawn = (folder / "a.svg").read_text()
    assert "<!-- $a$ (d 8, b 100, L 16) -->" in drawn
    assert "mathdefault" not in drawn
    assert "figure: a.svg" in out
    assert "> 262,144" in out
