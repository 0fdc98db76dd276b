"""The figures of sweeps and comparisons show their results."""

import math
from dataclasses import replace

import matplotlib
import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.text import Text
from PIL import Image

from rope_jax.comparison.curves import Comparison, compare_checkpoints
from rope_jax.comparison.groups import Group
from rope_jax.config.presentation import Presentation
from rope_jax.evaluation.results import rows as result_rows
from rope_jax.plots.saving import save_figure
from rope_jax.plots.style import BACKGROUND, MARKERS
from rope_jax.report.figure import draw_checkpoints, draw_comparison, draw_result
from rope_jax.results.summary import CheckpointSummary
from tests.comparison.conftest import compared
from tests.evaluation.test_results import OFFSETS, ORIGIN, measurement, result_of
from tests.report.rows import row

CURVES = {
    "trained": {16: 1.0, 32: 2.0, 64: 3.0},
    "pi-auto": {16: 1.0, 32: 1.1, 64: 1.4},
    "yarn-4": {16: 1.05, 32: 1.0, 64: 0.9},
}
ROWS = [row(name, n, nll) for name, by_length in CURVES.items() for n, nll in by_length.items()]


def draw(rows, window=32, truncation=1.0, title="A title", width="page"):
    checkpoint = CheckpointSummary("", 500, window, truncation)
    comparison = compare_checkpoints(rows, [checkpoint], Presentation(figure_width=width))
    return draw_comparison(comparison, title=title)


def draw_steps(rows):
    steps = sorted({row.step for row in rows}, reverse=True)
    checkpoints = [CheckpointSummary("", step, 32) for step in steps]
    return draw_checkpoints(compare_checkpoints(rows, checkpoints, Presentation()), title="A title")


def levels(axis):
    """Return the heights of the horizontal lines across a panel."""
    lines = [line for line in axis.get_lines() if line.get_transform() != axis.transData]
    return [line.get_ydata()[0] for line in lines if len(set(line.get_ydata())) == 1]


def lines_by_label(axis):
    return {line.get_label(): line for line in axis.get_lines()}


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_each_curve_is_a_line_through_its_perplexities():
    figure = draw(ROWS, window=24, truncation=1.25)
    (axis,) = figure.axes
    lines = lines_by_label(axis)
    for name, by_length in CURVES.items():
        np.testing.assert_array_equal(lines[name].get_xdata(), list(by_length))
        np.testing.assert_allclose(lines[name].get_ydata(), np.exp(list(by_length.values())))
    assert (axis.get_xscale(), axis.get_yscale()) == ("log", "log")
    assert [label.get_text() for label in axis.get_xticklabels()] == ["16", "32", "64"]
    assert len({lines[name].get_color() for name in CURVES}) == 3
    assert len({lines[name].get_marker() for name in CURVES}) == 3
    # the legend beside the panel names the lines in the order of their ends
    assert legend(figure) == ["trained", "pi-auto", "yarn-4", "truncation to the window"]
    assert figure.get_suptitle() == "A title"
    # the bands are the intervals
    bands = [band.get_paths()[0].get_extents() for band in axis.collections]
    for band, by_length in zip(bands, CURVES.values(), strict=True):
        low, high = min(by_length.values()) - 0.1, max(by_length.values()) + 0.1
        np.testing.assert_allclose([band.y0, band.y1], np.exp([low, high]))
    # the window and truncation are marked, the window's label above the panel
    straight = [line for line in axis.get_lines() if line.get_label() not in CURVES]
    assert any(list(line.get_xdata()) == [24, 24] for line in straight)
    assert levels(axis) == [pytest.approx(math.exp(1.25))]
    (label,) = axis.texts
    assert (label.get_text(), label.xy) == ("window", (24, 1))


def test_the_axis_in_bits_per_byte_needs_targets_of_equal_bytes():
    def right_axes(bytes_per_token):
        points = zip(ROWS, bytes_per_token, strict=True)
        made = draw([row._replace(bpb=row.nll / size / math.log(2)) for row, size in points])
        (axis,) = made.axes
        return [child.get_ylabel() for child in axis.child_axes]

    assert right_axes([4.0] * 9) == ["bits per byte"]
    assert right_axes([4.0, 4.0, 5.0] * 3) == []  # as of other positions at every length


def test_each_protocol_has_a_panel_and_truncation_is_marked_for_same_tokens_only():
    rows = [
        *ROWS,
        *(row("trained", n, 2.0, protocol="whole_window") for n in (16, 32)),
        *(row("trained", 64, 2.5, protocol="per_position", last_position=n) for n in (16, 64)),
    ]
    figure = draw(rows)
    x = [list(lines_by_label(axis)["trained"].get_xdata()) for axis in figure.axes]
    assert x == [[16, 32, 64], [16, 32], [16, 64]]
    assert [len(levels(axis)) for axis in figure.axes] == [1, 0, 0]
    assert [{text.get_text() for text in axis.texts} for axis in figure.axes] == [{"window"}] * 3
    # several panels share a legend, and one scale, which holds every curve of every panel
    assert legend(figure) == [*CURVES, "truncation to the window"]
    for axis in figure.axes:
        low, high = axis.get_ylim()
        assert low < math.exp(0.8)
        assert high > math.exp(3.1)


def test_infinite_points_and_very_wide_intervals_do_not_change_the_limits():
    for nll in (800.0, math.inf, math.nan):
        odd = row("yarn-4", 64, nll, half=1.0 if nll == 800 else math.nan)
        figure = draw([*ROWS[:-1], odd], truncation=None)  # warnings are errors
        (axis,) = figure.axes
        drawn = lines_by_label(axis)["trained"].get_ydata()
        np.testing.assert_allclose(drawn, np.exp([1.0, 2.0, 3.0]))
        low, high = axis.get_ylim()
        assert 1 < low < math.exp(0.9)
        assert math.exp(3.1) < high < math.exp(3.1) * 2
    rows = [row(name, n, nll) for name in CURVES for n, nll in CURVES["trained"].items()]
    rows[-1] = rows[-1]._replace(ci_low=-30.0, ci_high=30.0)
    low, high = draw(rows).axes[0].get_ylim()
    # points from e to e^3; bands may widen that by a factor of e on each side, with a margin of
    # a twentieth
    assert 1 / 1.25 < low < 1
    assert math.exp(4) < high < math.exp(4) * 1.25
    # and one that is not drawn has no effect
    rows = [row._replace(ci_low=-30.0, ci_high=30.0) for row in ROWS]
    low, high = draw_steps(rows).axes[0].get_ylim()
    assert math.exp(0.9) / 1.15 < low < math.exp(0.9)
    assert math.exp(3) < high < math.exp(3) * 1.15


def test_more_than_six_curves_have_a_panel_each_with_the_others_in_grey():
    names = ["trained", *(f"yarn-{n}" for n in range(6))]
    rows = [row(name, n, nll + i) for i, name in enumerate(names) for n, nll in ((16, 1), (32, 2))]
    figure = draw(rows)
    panels = {axis.get_title(): axis for axis in figure.axes if axis.get_visible()}
    assert list(panels) == names
    for name, axis in panels.items():
        own = lines_by_label(axis)[name]
        # all others, but `trained` is dashed and darker
        behind = [line for line in axis.get_lines() if line.get_color() == BACKGROUND]
        assert len(behind) == 6 - (name != "trained")
        assert max(line.get_zorder() for line in behind) < own.get_zorder()
        assert levels(axis) == [pytest.approx(math.e)]
    assert legend(figure)[:2] == ["trained", "the other scalings"]


def checkpoints(names, steps, protocols=("same_tokens",)):
    return [
        row(name, n, nll / step, step=step, protocol=protocol)
        for step in steps
        for protocol in protocols
        for name in names
        for n, nll in CURVES["trained"].items()
    ]


def test_checkpoints_have_one_panel_per_scaling_and_one_line_per_step():
    figure = draw_steps(checkpoints(list(CURVES), range(1, 101, 9)))
    assert [axis.get_title() for axis in figure.axes] == list(CURVES)
    colours = {h.get_label(): h.get_color() for h in figure.legends[0].legend_handles}
    assert list(colours)[::11] == ["step 1", "step 100"]
    for axis in figure.axes:
        lines = {line.get_color(): line for line in axis.get_lines()}
        nlls = np.array([1.0, 2.0, 3.0]) / 100
        np.testing.assert_allclose(lines[colours["step 100"]].get_ydata(), np.exp(nlls))
    # of many, the legend names some
    labels = legend(draw_steps(checkpoints(["trained"], range(1, 101))))
    assert (len(labels), labels[0], labels[-1]) == (12, "step 1", "step 100")


def test_drawing_and_saving_leave_matplotlib_as_it_is(tmp_path):
    def settings():
        # dict.items: asking for the backend by its key would choose one
        return dict(dict.items(matplotlib.rcParams)), matplotlib.get_backend(auto_select=False)

    rows = [*ROWS, *(row("yarn-$x_{$", n, 1.0) for n in (16, 64))]  # a name, not a formula
    with matplotlib.rc_context({"lines.linewidth": 7.0, "font.size": 20.0}):  # a user's settings
        before = settings()
        figure = draw(rows, title="$a_{$")
        save_figure(figure, tmp_path / "curve.png")
        assert settings() == before
    with Image.open(tmp_path / "curve.png") as image:
        assert image.size[0] == 1360  # 6.8 inches
        assert np.asarray(image.convert("L")).std() > 10  # not blank
    assert "yarn-$x_{$" in legend(figure)
    # nor do the user's settings change the figure
    save_figure(draw(rows, title="$a_{$"), tmp_path / "again.png")
    for suffix in (".png", ".pdf", ".svg"):
        one, other = ((tmp_path / f"{name}{suffix}").read_bytes() for name in ("curve", "again"))
        assert one == other  # the same bytes, without the time of saving


def test_figures_are_drawn_at_their_width_with_text_of_7_to_9_points():
    for width, inches in (("column", 3.3), ("page", 6.8)):
        figure = draw(ROWS, width=width)
        assert figure.get_figwidth() == inches
        figure.draw_without_rendering()
        texts = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
        assert all(7 <= text.get_fontsize() <= 9 for text in texts)


def test_a_result_is_drawn_as_its_rows_and_a_notebook_shows_the_figure(tmp_path):
    result = result_of(
        [measurement(e, n, offset) for e, by in OFFSETS.items() for n, offset in by.items()]
    )
    figure = draw_result(result, title="two $broken\\formula$")
    (axis,) = (axes for axes in figure.axes if axes.get_xscale() == "log")
    drawn = lines_by_label(axis)
    for name in OFFSETS:
        ppl = [row.ppl for row in result_rows(result, ORIGIN) if row.name == name]
        np.testing.assert_allclose(drawn[name].get_ydata(), ppl)
    assert levels(axis) == [pytest.approx(math.exp(result.baseline.sums.mean()))]
    assert figure._repr_png_().startswith(b"\x89PNG")
    with matplotlib.rc_context({"text.parse_math": True}):
        figure.savefig(tmp_path / "a.png")  # as a formula, the title would raise ValueError


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


def bands(axis):
    return [found for found in axis.collections if isinstance(found, PolyCollection)]


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
    assert figure.get_suptitle() == "a (2 seeds); b"
    assert legend(figure) == [
        *("trained", "yarn-4", "a (2 seeds): model.hidden_size 32", "b: model.hidden_size 16"),
        *("each seed", "95% interval", "truncation to the window"),
    ]
    marked = replace(comparison.groups[1], marked=True)
    curves = [*comparison.curves[:2], *(replace(c, group=marked) for c in comparison.curves[2:])]
    odd = replace(comparison, groups=[comparison.groups[0], marked], curves=curves)
    assert "CANNOT BE COMPARED" in draw_comparison(odd).get_suptitle()


def test_more_than_six_curves_of_few_groups_have_a_panel_for_each_scaling(several):
    figure = draw_comparison(several(2, ["trained", "yarn-1", "yarn-2", "yarn-3"]))
    assert list(panels(figure)) == ["trained", "yarn-1", "yarn-2", "yarn-3"]
    for name, axis in panels(figure).items():
        lines = {line.get_label(): line for line in axis.lines}
        own = [lines[f"g{i}: {name}"] for i in (0, 1)]
        assert len({line.get_color() for line in own}) == 2
        assert len({line.get_marker() for line in own}) == 2
        assert len(bands(axis)) == 2
    assert legend(figure)[:3] == ["g0: rope.base 0", "g1: rope.base 1", "95% interval"]


def test_more_than_six_groups_have_a_panel_each(several):
    figure = draw_comparison(several(7, ["trained", "yarn-4"]))
    assert list(panels(figure)) == [f"g{i}: rope.base {i}" for i in range(7)]
    assert {len(bands(axis)) for axis in panels(figure).values()} == {2}
    assert legend(figure)[:2] == ["trained", "yarn-4"]


def test_few_groups_with_one_curve_share_a_panel_in_colours_of_their_own(several):
    figure = draw_comparison(several(3, ["trained"]))
    (axis,) = panels(figure).values()
    own = [line for line in axis.lines if line.get_marker() in [*MARKERS]]
    assert len({line.get_color() for line in own}) == len({line.get_marker() for line in own}) == 3
    assert {line.get_linestyle() for line in own} == {"-"}
    groups = [f"g{i}: rope.base {i}" for i in range(3)]
    assert legend(figure) == [*groups, "95% interval", "truncation to the window"]


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
    (other,) = {round(level, 6) for level in levels(axis)} - {0.0}
    truncation = {curve.group: curve.truncation for curve in found.curves}
    assert other == pytest.approx(truncation[second] - truncation[first], abs=1e-6)
    assert "truncation of the other runs" in legend(figure)
