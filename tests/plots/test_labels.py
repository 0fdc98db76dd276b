"""Labels at the ends of lines do not overlap, and folded text keeps what belongs together."""

import itertools

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from scipy.optimize import minimize

from rope_jax.plots.labels import (
    LineEnd,
    fold_text,
    label_line_ends,
    length_labels,
    spread_apart,
)
from rope_jax.plots.panels import legend_columns
from rope_jax.plots.style import figure_style


@pytest.mark.parametrize("seed", range(5))
def test_labels_move_as_little_as_a_general_optimizer_moves_them(seed):
    places = np.random.default_rng(seed).uniform(0.1, 0.9, 6)
    gap, low, high = 0.12, 0.05, 0.95
    spread = spread_apart(places, gap, low, high)
    order = np.argsort(places)
    assert (np.diff(spread[order]) >= gap - 1e-12).all()
    assert low <= spread.min()
    assert spread.max() <= high + 1e-12
    constraints = {"type": "ineq", "fun": lambda y: np.diff(y) - gap}
    best = minimize(
        lambda y: ((y - places[order]) ** 2).sum(),
        np.linspace(low, high, 6),
        bounds=[(low, high)] * 6,
        constraints=constraints,
        options={"ftol": 1e-14, "maxiter": 500},
    )
    np.testing.assert_allclose(spread[order], best.x, atol=1e-4)


def test_labels_far_apart_stay_where_they_are():
    places = np.array([0.9, 0.1, 0.5])
    np.testing.assert_allclose(spread_apart(places, 0.1, 0.0, 1.0), places, rtol=1e-15)


def panel(lengths=(64, 128, 256, 512, 1024, 2048), width=3.3):
    figure = Figure(figsize=(width, 2), layout="constrained")
    axis = figure.subplots()
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(lengths, [f"{n:,}" for n in lengths])
    axis.plot(lengths, np.ones(len(lengths)))
    axis.set_ylim(0.5, 2)
    axis.set_yticks([1], ["1"])
    axis.minorticks_off()
    return axis


def test_labels_are_to_the_right_of_every_line_and_apart():
    with figure_style():
        axis = panel()
        ends = [LineEnd(name, "#E69F00", 2048, 1.0) for name in ("one", "two", "three")]
        assert label_line_ends(axis, ends, level=0.0)
        axis.figure.draw_without_rendering()
    boxes = [Text.get_window_extent(text) for text in axis.texts]  # without the lines to them
    assert [text.get_text() for text in axis.texts] == ["one", "two", "three", "truncation"]
    end = axis.transData.transform((2048, 1))[0]
    assert all(box.x0 > end for box in boxes)
    assert all(box.x1 <= axis.get_window_extent().x1 for box in boxes)
    for one, other in itertools.combinations(boxes, 2):
        assert one.y0 >= other.y1 - 1 or other.y0 >= one.y1 - 1


def test_labels_that_do_not_fit_change_nothing():
    with figure_style():
        axis = panel()
        before = axis.get_xlim()
        long = [LineEnd("a scaling with a very long name", "k", 2048, 1.0)]
        assert not label_line_ends(axis, long, level=None)
        many = [LineEnd(f"{i}", "k", 2048, 1.0) for i in range(40)]
        assert not label_line_ends(axis, many, level=None)
    assert (axis.get_xlim(), list(axis.texts)) == (before, [])


@pytest.mark.parametrize(
    ("width", "labels"),
    [
        (3.3, ["64", "128", "256", "512", "1,024", "2,048"]),
        (1.5, ["", "128", "", "512", "", "2,048"]),
        (1.0, ["", "", "256", "", "", "2,048"]),
    ],
)
def test_tick_labels_without_room_are_left_out_but_not_the_last(width, labels):
    with figure_style():
        axis = panel(width=width)
        axis.figure.draw_without_rendering()
        assert length_labels(axis) == labels


@pytest.mark.parametrize(
    ("labels", "inches", "columns"),
    [(["a"] * 6, 6.8, 6), (["a"] * 8, 3.3, 4), (["x" * 30] * 3, 3.3, 1), (["x" * 20] * 4, 6.8, 4)],
)
def test_a_legend_has_as_many_columns_as_fit(labels, inches, columns):
    assert legend_columns(labels, inches) == columns


@pytest.mark.parametrize(
    ("text", "letters", "folded"),
    [
        ("encoding-rope (3 seeds)", 23, "encoding-rope (3 seeds)"),
        ("encoding-rope (3 seeds)", 20, "encoding-rope\n(3 seeds)"),
        ("a (3 seeds); b (3 seeds)", 13, "a (3 seeds);\nb (3 seeds)"),
        ("leaky (window 96, k 13)", 20, "leaky\n(window 96, k 13)"),
        # too long for one line: after a comma or a semicolon, then at spaces
        ("leaky (window 96, k 13)", 16, "leaky\n(window 96,\nk 13)"),
        ("far (window 6, ntk-8; slowest pair)", 22, "far (window 6, ntk-8;\nslowest pair)"),
        ("a (one two three)", 9, "a\n(one two\nthree)"),
        ("two lines\n\nof (their own)", 12, "two lines\n\nof\n(their own)"),
        ("model.position.type", 10, "model.posi\ntion.type"),
    ],
)
def test_text_is_folded_before_parentheses_and_not_in_them(text, letters, folded):
    assert fold_text(text, letters) == folded
