"""Labels do not touch, and folded text keeps what belongs together."""

import itertools

import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rope_jax.plots.panels import add_legend, fold_text, label_powers, scale_lengths
from rope_jax.plots.style import figure_style


def test_tick_labels_without_room_are_left_out_but_not_the_last():
    for width, labels in (
        (3.3, ["64", "128", "256", "512", "1,024", "2,048"]),
        (1.5, ["", "128", "", "512", "", "2,048"]),
        (0.6, ["", "", "256", "", "", "2,048"]),
    ):
        with figure_style():
            figure = Figure(figsize=(width, 2))
            axis = figure.add_axes((0, 0.2, 1, 0.8))
            scale_lengths(axis, (64, 128, 256, 512, 1024, 2048), width)
            figure.draw_without_rendering()
            shown = [text for text in axis.get_xticklabels() if text.get_text()]
            assert [text.get_text() for text in axis.get_xticklabels()] == labels
            boxes = [text.get_window_extent() for text in shown]
        assert all(one.x1 < other.x0 for one, other in itertools.pairwise(boxes))


def test_perplexities_have_round_ticks_whatever_their_range():
    for low, high, ticks in (
        (25.75, 26.45, [25.8, 26.0, 26.2, 26.4]),
        (3.6, 34.0, [5, 10, 20, 30]),
        (4.0, 260.0, [5, 10, 20, 50, 100, 200]),
        (4.0, 26000.0, [10, 100, 1000, 10000]),
    ):
        axis = Figure().subplots()
        axis.set_yscale("log")
        axis.set_ylim(low, high)
        label_powers(axis.yaxis, low, high)
        shown = [tick for tick in axis.get_yticks() if low <= tick <= high]
        assert shown == pytest.approx(ticks)


def test_a_legend_has_as_many_columns_as_fit():
    for label, count, inches, columns in (
        *(("a", 6, 6.8, 6), ("a", 8, 3.3, 4), ("x" * 30, 3, 3.3, 1), ("x" * 20, 4, 6.8, 4)),
    ):
        figure = Figure(figsize=(inches, 2))
        add_legend(figure, [Line2D([], [], label=label)] * count)
        assert figure.legends[0]._ncols == columns


def test_text_is_folded_before_parentheses_and_not_in_them():
    for text, letters, folded in (
        ("encoding-rope (3 seeds)", 23, "encoding-rope (3 seeds)"),
        ("encoding-rope (3 seeds)", 20, "encoding-rope\n(3 seeds)"),
        ("a (3 seeds); b (3 seeds)", 13, "a (3 seeds);\nb (3 seeds)"),
        ("leaky (window 96, k 13)", 20, "leaky\n(window 96, k 13)"),
        ("leaky (window 96, k 13)", 16, "leaky (window\n96, k 13)"),  # too long for one line
        ("two lines\n\nof (their own)", 12, "two lines\n\nof\n(their own)"),
        ("model.position.type", 10, "model.posi\ntion.type"),
    ):
        assert fold_text(text, letters) == folded
