"""comparison.png: which panels it has, and what explains them."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.collections import PolyCollection

from rope_jax.comparison.curves import Comparison
from rope_jax.comparison.groups import Group
from rope_jax.config.presentation import Presentation
from rope_jax.plots.style import BACKGROUND, MARKERS, REFERENCE
from rope_jax.report.figure import describe_group, draw_comparison, shared_key
from tests.comparison.conftest import compared


@pytest.fixture(scope="module")
def comparison(lasting):
    """Two seeds of a run, and another run."""
    settings = {"protocols": ("same_tokens",)}
    seeds = [lasting(f"a-s{n}", seed=n, **settings, model="hidden_size: 32") for n in (0, 1)]
    return compared(*seeds, lasting("b", **settings, shift=0.5))


@pytest.fixture
def several(comparison, monkeypatch):
    """Return a function that makes a comparison of groups with copies of curves."""
    monkeypatch.setattr(Group, "newest", 100)
    trained, yarn = comparison.curves[2:]

    def make(groups, names, own=(), **fields) -> Comparison:
        """names: the curves of every group; own: others, which each group has under other names."""
        made = [
            Group(label=f"g{i}", sweeps=(), settings={"rope.base": f"{i}"}) for i in range(groups)
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


def bands(axis):
    return [found for found in axis.collections if isinstance(found, PolyCollection)]


def coloured(axis, colour):
    return [line.get_label() for line in axis.lines if line.get_color() == colour]


def test_scalings_have_colours_and_groups_dashes_and_seeds_thin_lines(comparison):
    figure = draw_comparison(comparison)
    (axis,) = panels(figure).values()
    lines = {line.get_label(): line for line in axis.lines}
    for curve in comparison.curves:
        np.testing.assert_allclose(lines[curve.label].get_ydata(), [p.ppl for p in curve.points])
        assert lines[curve.label].get_color() == lines[f"b: {curve.name}"].get_color()
    first, second = (lines[f"{group.label}: trained"] for group in comparison.groups)
    assert first.get_linestyle() != second.get_linestyle()
    assert len(bands(axis)) == 4
    assert sum(line.get_linewidth() == 0.5 for line in axis.lines) == 4  # seeds of two scalings
    # this is the only key in which the groups differ, so the title names it
    assert figure.get_suptitle() == "a (2 seeds); b, by model.hidden_size"
    assert legend(figure) == [
        *("trained", "yarn-4", "a (2 seeds; 32)", "b (16)", "each seed", "95% interval"),
        "truncation to the window",
    ]
    marked = replace(comparison.groups[1], marked=True)
    curves = [*comparison.curves[:2], *(replace(c, group=marked) for c in comparison.curves[2:])]
    odd = replace(comparison, groups=[comparison.groups[0], marked], curves=curves)
    assert "CANNOT BE COMPARED" in draw_comparison(odd).get_suptitle()


def test_labels_say_what_differs_between_the_groups(several):
    made = several(2, ["trained"])
    first, second = made.groups
    assert describe_group(first) == "g0 (rope.base 0)"
    many = replace(first, label="a (3 seeds)", settings={f"k{i}": str(i) for i in range(5)})
    assert describe_group(many) == "a (3 seeds; k0 0, k1 1, k2 2 and 2 more)"
    assert describe_group(replace(first, settings={})) == "g0"
    made.groups[1] = replace(second, settings={"rope.base": "1", "optim.lr": "2"})
    assert shared_key(made.groups) is None
    assert shared_key([first, replace(first, settings={})]) is None
    curves = [replace(c, group=g) for c, g in zip(made.curves, made.groups, strict=True)]
    figure = draw_comparison(replace(made, curves=curves))
    assert figure.get_suptitle() == "g0; g1"
    assert legend(figure)[:2] == ["g0 (rope.base 0)", "g1 (rope.base 1, optim.lr 2)"]


def test_a_column_is_narrow_and_its_title_counts_groups_without_room_for_their_names(several):
    made = several(3, ["trained"])
    long = [replace(g, label=f"a-rather-long-name-{i}") for i, g in enumerate(made.groups)]
    curves = [replace(c, group=g) for c, g in zip(made.curves, long, strict=True)]
    figure = draw_comparison(
        replace(made, groups=long, curves=curves, how=Presentation(figure_width="column"))
    )
    assert figure.get_suptitle() == "3 groups of runs, by rope.base"
    assert figure.get_figwidth() == 3.3


def test_more_than_six_curves_of_few_groups_have_a_panel_for_each_scaling(several):
    figure = draw_comparison(several(2, ["trained", "yarn-1", "yarn-2", "yarn-3"]))
    assert list(panels(figure)) == ["trained", "yarn-1", "yarn-2", "yarn-3"]
    for name, axis in panels(figure).items():
        lines = {line.get_label(): line for line in axis.lines}
        own = [lines[f"g{i}: {name}"] for i in (0, 1)]
        assert len({line.get_color() for line in own}) == 2
        assert len({line.get_marker() for line in own}) == 2
        assert len(bands(axis)) == 2
    assert legend(figure) == [*("g0 (0)", "g1 (1)", "95% interval", "truncation to the window")]


def test_a_curve_that_other_groups_lack_has_the_others_in_grey_behind_it(several):
    figure = draw_comparison(several(2, ["trained"], own=[f"yarn-{n}" for n in range(6)]))
    first, *others = panels(figure).items()
    assert first[0] == "trained"
    assert len(bands(first[1])) == 2
    assert [title for title, _ in others] == [f"yarn-{n}-g{i}" for i in (0, 1) for n in range(6)]
    for title, axis in others:
        assert len(bands(axis)) == 1
        assert coloured(axis, REFERENCE.color) == [f"{title[-2:]}: trained"]
        assert len(coloured(axis, BACKGROUND)) == 12
    assert legend(figure)[2:4] == ["trained of the same runs", "the others"]


def test_more_than_six_groups_have_a_panel_each(several):
    figure = draw_comparison(several(7, ["trained", "yarn-4"]))
    assert list(panels(figure)) == [f"g{i}\n{i}" for i in range(7)]
    assert {len(bands(axis)) for axis in panels(figure).values()} == {2}
    assert legend(figure)[:2] == ["trained", "yarn-4"]


def test_few_groups_with_one_curve_share_a_panel_in_colours_of_their_own(several):
    figure = draw_comparison(several(3, ["trained"]))
    (axis,) = panels(figure).values()
    assert [text.get_text() for text in axis.texts] == ["window"]
    own = [line for line in axis.lines if line.get_marker() in [*MARKERS]]
    assert len({line.get_color() for line in own}) == len({line.get_marker() for line in own}) == 3
    assert {line.get_linestyle() for line in own} == {"-"}
    groups = [f"g{i} ({i})" for i in range(3)]
    assert legend(figure) == [*groups, "95% interval", "truncation to the window"]


def truncation_lines(axis):
    """Return the colours of the lines of truncation, by perplexity."""
    across = axis.get_yaxis_transform(which="grid")
    lines = [line for line in axis.lines if line.get_transform() == across]
    return {round(float(line.get_ydata()[0]), 6): line.get_color() for line in lines}


@pytest.mark.parametrize("names", [["trained"], ["trained", "yarn-1", "yarn-2", "yarn-3"]])
def test_several_groups_have_their_truncation_in_their_own_colours(several, names):
    made = several(2, names)
    shift = {made.groups[0]: 0.0, made.groups[1]: 0.5}
    curves = [
        replace(
            c,
            points=tuple(replace(p, nll=p.nll + shift[c.group]) for p in c.points),
            truncation=c.truncation + shift[c.group],
        )
        for c in made.curves
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


def test_a_figure_above_truncation_is_symlog_without_a_title(sweep_of):
    runs = sweep_of("one"), sweep_of("two", shift=-0.5, model="hidden_size: 32")
    chosen = {"labels": {"yarn-4": "YaRN"}, "colors": {"yarn-4": "#123456"}}
    found = compared(*runs, show="above_truncation", figure={"title": False}, **chosen)
    figure = draw_comparison(found)
    (axis,) = panels(figure).values()  # the other protocol scores other tokens
    assert figure.get_suptitle() == ""
    assert axis.get_yscale() == "symlog"
    assert "symlog" in axis.get_ylabel()
    ticks = [tick.get_text() for tick in axis.get_yticklabels()]
    assert {"−0.1", "0", "+0.1"} <= set(ticks)
    lines = {line.get_label(): line for line in axis.lines}
    for curve in found.curves:
        above = [p.above_truncation.value for p in curve.points if p.protocol == "same_tokens"]
        np.testing.assert_array_equal(lines[curve.label].get_ydata(), above)
    assert lines["two: YaRN"].get_color() == "#123456"
    first, second = found.groups
    (other,) = truncation_lines(axis).keys() - {0.0}
    levels = {curve.group: curve.truncation for curve in found.curves}
    assert other == pytest.approx(levels[second] - levels[first], abs=1e-6)
    assert "truncation of the other runs" in legend(figure)
