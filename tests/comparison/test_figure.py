"""comparison.png: which panels it has, and what explains them."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.collections import PolyCollection

from rope_jax.comparison.comparable import find_mismatches
from rope_jax.comparison.curves import Comparison, compare
from rope_jax.comparison.groups import Group
from rope_jax.comparison.read import find_sweeps, read_sweep
from rope_jax.config.presentation import CompareConfig
from rope_jax.plots.style import BACKGROUND, MARKERS, REFERENCE
from rope_jax.report.figure import describe_group, draw_comparison, shared_key


@pytest.fixture
def comparison(sweep_of):
    runs = [sweep_of("a", protocols=("same_tokens",), model="hidden_size: 32")]
    runs += [sweep_of("b", protocols=("same_tokens",), shift=0.5)]
    sweeps = [read_sweep(folder) for folder in find_sweeps(runs, None)]
    return compare(sweeps, find_mismatches(sweeps), CompareConfig(resamples=50))


@pytest.fixture
def several(comparison, monkeypatch):
    """Return a function that makes a comparison of groups with copies of curves."""
    monkeypatch.setattr(Group, "newest", 100)
    trained, yarn = comparison.curves[:2]

    def make(groups, names, own=(), **fields) -> Comparison:
        """names: the curves of every group; own: others, which each group has under other names."""
        made = [
            Group(label=f"g{i}", sweeps=(), marked=False, settings={"rope.base": f"{i}"})
            for i in range(groups)
        ]
        curves = [
            replace(trained if name == "trained" else yarn, group=group, name=name)
            for group in made
            for name in (*names, *(f"{name}-{group.label}" for name in own))
        ]
        return Comparison(groups=made, curves=curves, tolerance=0.02, notes=[], **fields)

    return make


def panels(figure):
    return {axis.get_title(): axis for axis in figure.axes if axis.get_visible()}


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def own_names(group):
    return [f"yarn-{n}-g{group}" for n in range(6)]


def test_a_legend_says_what_differs_between_the_groups(comparison):
    assert [describe_group(group) for group in comparison.groups] == [
        *("a (model.hidden_size 32)", "b (model.hidden_size 16)")
    ]
    seeds = replace(comparison.groups[0], label="a (3 seeds)")
    assert describe_group(seeds) == "a (3 seeds; model.hidden_size 32)"
    many = replace(seeds, settings={f"optim.k{i}": str(i) for i in range(5)})
    assert describe_group(many).endswith("optim.k2 2 and 2 more)")
    assert describe_group(replace(seeds, settings={})) == "a (3 seeds)"
    # where this is the only key, the title names it
    figure = draw_comparison(comparison)
    assert figure.get_suptitle().split("\n")[0] == "a; b, by model.hidden_size"
    assert legend(figure)[2:4] == ["a (32)", "b (16)"]


def test_labels_name_the_keys_where_groups_differ_in_several(several):
    made = several(2, ["trained"])
    made.groups[1] = replace(made.groups[1], settings={"rope.base": "1", "optim.lr": "2"})
    assert shared_key(made.groups) is None
    assert shared_key([made.groups[0], replace(made.groups[0], settings={})]) is None
    curves = [replace(c, group=g) for c, g in zip(made.curves, made.groups, strict=True)]
    figure = draw_comparison(replace(made, curves=curves))
    assert figure.get_suptitle() == "g0; g1"
    assert legend(figure)[:2] == ["g0 (rope.base 0)", "g1 (rope.base 1, optim.lr 2)"]


def test_the_title_counts_the_groups_where_their_names_take_more_than_a_line(several):
    made = several(3, ["trained"])
    long = [replace(g, label=f"a-rather-long-name-{i}") for i, g in enumerate(made.groups)]
    curves = [replace(c, group=g) for c, g in zip(made.curves, long, strict=True)]
    figure = draw_comparison(replace(made, groups=long, curves=curves, figure_width="column"))
    assert figure.get_suptitle() == "3 groups of runs, by rope.base"


def test_more_than_six_curves_of_few_groups_have_a_panel_for_each_scaling(several):
    figure = draw_comparison(several(2, ["trained", "yarn-1", "yarn-2", "yarn-3"]))
    assert list(panels(figure)) == ["trained", "yarn-1", "yarn-2", "yarn-3"]
    for name, axis in panels(figure).items():
        lines = {line.get_label(): line for line in axis.lines}
        own = [lines[f"g{i}: {name}"] for i in (0, 1)]
        assert len({line.get_color() for line in own}) == 2
        assert len({line.get_marker() for line in own}) == 2
        assert len(axis.collections) == 2
    assert legend(figure) == [*("g0 (0)", "g1 (1)", "95% interval", "truncation to the window")]


def test_groups_that_share_only_one_scaling_have_a_panel_each(several):
    """A panel per scaling would show one curve, with nothing to compare it with."""
    figure = draw_comparison(several(2, ["trained"], own=["pi", "ntk", "yarn", "abf"]))
    assert [title.split("\n")[0] for title in panels(figure)] == ["g0", "g1"]
    for i, axis in enumerate(panels(figure).values()):
        names = [f"{name}-g{i}" for name in ("pi", "ntk", "yarn", "abf")]
        own = {line.get_label() for line in axis.lines if line.get_marker() in [*MARKERS]}
        assert own == {f"g{i}: {name}" for name in ("trained", *names)}


def bands(axis):
    return [found for found in axis.collections if isinstance(found, PolyCollection)]


def curves_behind(axis):
    """Return how many curves are drawn in grey."""
    return sum(line.get_color() == BACKGROUND for line in axis.get_lines())


def test_a_group_of_too_many_curves_that_others_lack_has_a_panel_for_each(several):
    figure = draw_comparison(several(2, ["trained"], own=[f"yarn-{n}" for n in range(6)]))
    titles = [f"g{i}: {name}" for i in (0, 1) for name in ("trained", *own_names(i))]
    assert list(panels(figure)) == titles
    for title, axis in panels(figure).items():
        assert len(bands(axis)) == 1
        dashed = [line.get_label() for line in axis.lines if line.get_color() == REFERENCE.color]
        group, name = title.split(": ")
        assert dashed == ([] if name == "trained" else [f"{group}: trained"])
        assert curves_behind(axis) == 13 - len(dashed)
    assert legend(figure)[:2] == ["trained of the same runs", "the others"]


def test_the_dashed_curve_of_one_group_is_its_own_scaling(several):
    figure = draw_comparison(several(1, [*(f"yarn-{n}" for n in range(6)), "trained"]))
    for name, axis in panels(figure).items():
        dashed = [line.get_label() for line in axis.lines if line.get_color() == REFERENCE.color]
        assert dashed == ([] if name == "trained" else ["g0: trained"])
    assert legend(figure)[:2] == ["trained", "the others"]
    without = draw_comparison(several(1, [f"yarn-{n}" for n in range(7)]))
    assert legend(without) == ["the others", "95% interval", "truncation to the window"]


def test_each_of_many_groups_with_one_curve_has_a_panel(several):
    figure = draw_comparison(several(9, ["trained"]))
    assert list(panels(figure)) == [f"g{i}\n{i}" for i in range(9)]
    for i, axis in enumerate(panels(figure).values()):
        (own,) = (line for line in axis.lines if line.get_marker() in [*MARKERS])
        assert own.get_label() == f"g{i}: trained"
        assert len(bands(axis)) == 1
        assert curves_behind(axis) == 8  # no group is a reference for the others
    assert legend(figure) == ["the others", "95% interval", "truncation to the window"]


def test_few_groups_with_one_curve_share_a_panel(several):
    figure = draw_comparison(several(3, ["trained"]))
    (axis,) = panels(figure).values()
    assert [text.get_text() for text in axis.texts] == ["window"]
    groups = [f"g{i} ({i})" for i in range(3)]
    assert legend(figure) == [*groups, "95% interval", "truncation to the window"]


def test_a_column_is_narrower_than_a_page_and_has_a_legend(several):
    made = several(3, ["trained"], figure_width="column")
    figure = draw_comparison(made)
    assert figure.get_figwidth() == 3.3
    assert np.isclose(draw_comparison(replace(made, figure_width="page")).get_figwidth(), 6.8)


def truncation_lines(axis):
    """Return the colours of the lines of truncation, by perplexity."""
    across = axis.get_yaxis_transform(which="grid")
    lines = [line for line in axis.lines if line.get_transform() == across]
    return {round(float(line.get_ydata()[0]), 6): line.get_color() for line in lines}


@pytest.mark.parametrize("names", [["trained"], ["trained", "yarn-1", "yarn-2", "yarn-3"]])
def test_several_groups_have_their_truncation_in_their_own_colours(several, names):
    made = several(2, names)
    curves = [
        curve if curve.group is made.groups[0] else replace(curve, points=shifted(curve, 0.5))
        for curve in made.curves
    ]
    figure = draw_comparison(replace(made, curves=curves))
    for axis in panels(figure).values():
        colours = {line.get_label().split(":")[0]: line.get_color() for line in axis.lines}
        low, high = sorted(truncation_lines(axis).items())
        assert high[0] == pytest.approx(low[0] * np.exp(0.5), rel=1e-5)
        assert (low[1], high[1]) == (colours["g0"], colours["g1"])
    # one level of all groups has no colour of its own
    for axis in panels(draw_comparison(made)).values():
        assert list(truncation_lines(axis).values()) == ["0.4"]


def shifted(curve, nats):
    return tuple(replace(point, nll=point.nll + nats) for point in curve.points)
