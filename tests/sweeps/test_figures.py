"""The figures of a sweep show its results."""

import math
import subprocess
import sys

import matplotlib
import numpy as np
import pytest
from matplotlib.text import Text
from PIL import Image

from rope_jax.plots.saving import save_figure
from rope_jax.plots.style import BACKGROUND
from rope_jax.report.figure import draw_checkpoints, draw_run
from rope_jax.results.rows import Row
from rope_jax.results.summary import CheckpointSummary


def row(name, length, nll, *, protocol="same_tokens", last=None, width=0.1, step=1):
    nll = float(nll)
    return Row(
        name=name,
        scaling="none" if name == "trained" else name.partition("-")[0],
        map="",
        factor=4.0 if "-" in name else None,
        auto=name.endswith("auto"),
        protocol=protocol,
        length=length,
        first_position=1,
        last_position=last or length,
        step=step,
        run="run",
        seed=0,
        corpus="",
        split="test",
        nll=nll,
        ppl=math.exp(nll) if nll < 700 else math.inf,
        bpb=None,
        bpb_low=None,
        bpb_high=None,
        metric="nats",
        value=nll,
        ci_low=nll - width,
        ci_high=nll + width,
        reliable=True,
        tokens=10,
        documents=2,
        units=2,
        targets="",
        stride=None,
        bos="document",
        seconds=0.0,
    )


CURVES = {
    "trained": {16: 1.0, 32: 2.0, 64: 3.0},
    "pi-auto": {16: 1.0, 32: 1.1, 64: 1.4},
    "yarn-4": {16: 1.05, 32: 1.0, 64: 0.9},
}
ROWS = [row(name, n, nll) for name, by_length in CURVES.items() for n, nll in by_length.items()]


def draw(rows, window=32, truncation=1.0, title="A title", **settings):
    checkpoint = CheckpointSummary("", 1, window, truncation)
    return draw_run(rows, checkpoint, title=title, **settings)


def draw_steps(rows):
    steps = sorted({row.step for row in rows}, reverse=True)
    return draw_checkpoints(rows, [CheckpointSummary("", s, 32) for s in steps], title="A title")


def levels(axis):
    """Return the heights of the horizontal lines across a panel."""
    lines = [line for line in axis.get_lines() if line.get_transform() != axis.transData]
    return [line.get_ydata()[0] for line in lines if len(set(line.get_ydata())) == 1]


def lines_by_label(axis):
    return {line.get_label(): line for line in axis.get_lines()}


def test_each_curve_is_a_line_through_its_perplexities():
    figure = draw(ROWS)
    (axis,) = figure.axes
    lines = lines_by_label(axis)
    for name, by_length in CURVES.items():
        np.testing.assert_array_equal(lines[name].get_xdata(), list(by_length))
        np.testing.assert_allclose(lines[name].get_ydata(), np.exp(list(by_length.values())))
    assert (axis.get_xscale(), axis.get_yscale()) == ("log", "log")
    assert [label.get_text() for label in axis.get_xticklabels()] == ["16", "32", "64"]
    # a fixed factor is dashed, automatic factors, one per length, are not
    styles = {name: lines[name].get_linestyle() for name in CURVES}
    assert styles == {"trained": "-", "pi-auto": "-", "yarn-4": "--"}
    assert len({lines[name].get_color() for name in CURVES}) == 3
    assert len({lines[name].get_marker() for name in CURVES}) == 3
    # the legend beside the panel names the lines in the order of their ends
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["trained", "pi-auto", "yarn-4", "truncation to the window"]
    assert figure.get_suptitle() == "A title"
    # the bands are the intervals
    bands = [band.get_paths()[0].get_extents() for band in axis.collections]
    for band, by_length in zip(bands, CURVES.values(), strict=True):
        low, high = min(by_length.values()) - 0.1, max(by_length.values()) + 0.1
        np.testing.assert_allclose([band.y0, band.y1], np.exp([low, high]))


def test_the_axis_in_bits_per_byte_needs_targets_of_equal_bytes():
    def right_axes(bytes_per_token):
        points = zip(ROWS, bytes_per_token, strict=True)
        made = draw([row._replace(bpb=row.nll / size / math.log(2)) for row, size in points])
        (axis,) = made.axes
        return [child.get_ylabel() for child in axis.child_axes]

    assert right_axes([4.0] * 9) == ["bits per byte"]
    assert right_axes([4.0, 4.0, 5.0] * 3) == []  # as of other positions at every length


def test_a_figure_is_saved_as_an_image(tmp_path):
    save_figure(draw(ROWS), tmp_path / "curve.png")
    with Image.open(tmp_path / "curve.png") as image:
        assert image.size[0] == 1360  # 6.8 inches
        assert np.asarray(image.convert("L")).std() > 10  # not blank
    files = {"curve.png", "curve.pdf", "curve.svg"}
    assert {file.name for file in tmp_path.iterdir()} == files


def test_the_window_and_truncation_are_marked():
    figure = draw(ROWS, window=24, truncation=1.25)
    (axis,) = figure.axes
    straight = [line for line in axis.get_lines() if line.get_label() not in CURVES]
    assert any(list(line.get_xdata()) == [24, 24] for line in straight)
    assert levels(axis) == [pytest.approx(math.exp(1.25))]
    # the label of the window is above the panel
    (label,) = axis.texts
    assert (label.get_text(), label.xy) == ("window", (24, 1))


@pytest.mark.parametrize("truncation", [0.2, 5.0])
def test_truncation_is_within_the_limits_even_far_from_every_curve(truncation):
    figure = draw(ROWS, truncation=truncation)
    low, high = figure.axes[0].get_ylim()
    assert low < math.exp(truncation) < high


def test_each_protocol_has_a_panel_and_truncation_is_marked_for_same_tokens_only():
    rows = [
        *ROWS,
        *(row("trained", n, 2.0, protocol="whole_window") for n in (16, 32)),
        *(row("trained", 64, 2.5, protocol="per_position", last=last) for last in (16, 64)),
    ]
    figure = draw(rows)
    x = [list(lines_by_label(axis)["trained"].get_xdata()) for axis in figure.axes]
    assert x == [[16, 32, 64], [16, 32], [16, 64]]
    texts = [{text.get_text() for text in axis.texts} for axis in figure.axes]
    assert [len(levels(axis)) for axis in figure.axes] == [1, 0, 0]
    assert texts == [{"window"}] * 3
    # several panels share a legend
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == [*CURVES, "truncation to the window"]
    # one scale for all, which holds every curve of every panel
    for axis in figure.axes:
        low, high = axis.get_ylim()
        assert low < math.exp(0.8)
        assert high > math.exp(3.1)


@pytest.mark.parametrize("nll", [800.0, math.inf, math.nan])
def test_an_infinite_point_does_not_change_the_limits(nll):
    rows = [*ROWS[:-1], row("yarn-4", 64, nll, width=1.0 if nll == 800 else math.nan)]
    figure = draw(rows, truncation=None)
    (axis,) = figure.axes
    drawn = lines_by_label(axis)["trained"].get_ydata()
    np.testing.assert_allclose(drawn, np.exp([1.0, 2.0, 3.0]))
    low, high = axis.get_ylim()
    assert 1 < low < math.exp(0.9)
    assert math.exp(3.1) < high < math.exp(3.1) * 2


def test_two_curves_of_one_type_differ_in_their_colours_and_markers():
    rows = [row("half-4", n, 1.0) for n in (16, 64)]
    rows += [row("half-8", n, 1.5) for n in (16, 64)]
    figure = draw(rows, truncation=None)
    one, other = (lines_by_label(figure.axes[0])[name] for name in ("half-4", "half-8"))
    assert one.get_color() != other.get_color()
    assert one.get_marker() != other.get_marker()


@pytest.mark.parametrize("count", [3, 9])  # 9 curves have panels of their own
def test_a_very_wide_interval_does_not_change_the_limits(count):
    names = list(CURVES)[:2] + [f"yarn-{n}" for n in range(count - 2)]
    rows = [row(name, n, nll) for name in names for n, nll in CURVES["trained"].items()]
    rows[-1] = rows[-1]._replace(ci_low=-30.0, ci_high=30.0)
    low, high = draw(rows).axes[0].get_ylim()
    # points from e to e^3; bands may widen that by a factor of e on each side, with a margin of
    # a twentieth
    assert 1 / 1.25 < low < 1
    assert math.exp(4) < high < math.exp(4) * 1.25


def test_an_interval_that_is_not_drawn_does_not_change_the_limits():
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
    for i, name in enumerate(names):
        axis = panels[name]
        own = lines_by_label(axis)[name]
        np.testing.assert_allclose(own.get_ydata(), np.exp([1 + i, 2 + i]))
        (_,) = axis.collections  # one band
        # all others, but `trained` is dashed and darker
        behind = [line for line in axis.get_lines() if line.get_color() == BACKGROUND]
        assert len(behind) == 6 - (name != "trained")
        assert max(line.get_zorder() for line in behind) < own.get_zorder()
        assert levels(axis) == [pytest.approx(math.e)]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == [
        *("trained", "the other scalings", "95% interval", "truncation to the window")
    ]


def test_a_narrow_range_has_ticks():
    rows = [row("trained", n, nll, width=0.01) for n, nll in ((16, 3.25), (64, 3.27))]
    figure = draw(rows, truncation=None)
    low, high = figure.axes[0].get_ylim()
    assert sum(low <= tick <= high for tick in figure.axes[0].get_yticks()) >= 3


def test_a_name_with_dollar_signs_is_not_a_formula(tmp_path):
    rows = [row("yarn-$x_{$", n, 1.0) for n in (16, 64)]
    figure = draw(rows, title="$a_{$")
    save_figure(figure, tmp_path / "curve.png")  # parsed as a formula, it would raise
    texts = [figure._suptitle, *figure.legends[0].get_texts()]
    assert "yarn-$x_{$" in {text.get_text() for text in texts}
    assert not any(text.get_parse_math() for text in texts)


def checkpoints(names, steps, protocols=("same_tokens",)):
    return [
        row(name, n, nll / step, step=step, protocol=protocol)
        for step in steps
        for protocol in protocols
        for name in names
        for n, nll in CURVES["trained"].items()
    ]


def test_checkpoints_have_one_panel_per_scaling_and_one_line_per_step():
    rows = [row(n, x, y / s, step=s) for s in (1, 5) for n in CURVES for x, y in CURVES[n].items()]
    figure = draw_steps(rows)
    assert [axis.get_title() for axis in figure.axes] == list(CURVES)
    colours = {h.get_label(): h.get_color() for h in figure.legends[0].legend_handles}
    assert set(colours) == {"step 1", "step 5"}
    for axis, by_length in zip(figure.axes, CURVES.values(), strict=True):
        lines = {line.get_color(): line for line in axis.get_lines()}
        np.testing.assert_allclose(
            lines[colours["step 5"]].get_ydata(), np.exp(np.array([*by_length.values()]) / 5)
        )


def test_panels_of_many_scalings_wrap(tmp_path):
    names = [f"yarn-{n}" for n in range(16)]
    figure = draw_steps(checkpoints(names, (1, 5)))
    assert figure.axes[0].get_subplotspec().get_gridspec().get_geometry() == (4, 4)
    save_figure(figure, tmp_path / "steps.png")
    with Image.open(tmp_path / "steps.png") as image:
        assert image.size[0] == 1360
        assert image.size[1] < 1500


@pytest.mark.parametrize(
    ("count", "columns"), [(1, 1), (2, 2), (3, 3), (4, 4), (5, 3), (6, 3), (7, 4), (9, 3), (11, 4)]
)
def test_panels_of_a_page_are_in_rows_of_three_or_four(count, columns):
    names = [f"yarn-{n}" for n in range(count)]
    figure = draw_steps(checkpoints(names, (1, 5)))
    grid = figure.axes[0].get_subplotspec().get_gridspec().get_geometry()
    assert grid == (-(-count // columns), columns)


def test_each_protocol_starts_a_row_of_panels():
    rows = checkpoints([f"yarn-{n}" for n in range(5)], (1, 5), ("same_tokens", "whole_window"))
    figure = draw_steps(rows)
    visible = [axis.get_title() for axis in figure.axes if axis.get_visible()]
    assert visible == [f"yarn-{n}\n{p}" for p in ("same_tokens", "whole_window") for n in range(5)]
    by_place = {
        (place.rowspan.start, place.colspan.start): axis.get_title().replace("\n", ", ")
        for axis in figure.axes
        if axis.get_visible() and (place := axis.get_subplotspec())
    }
    assert by_place[0, 0] == "yarn-0, same_tokens"
    assert by_place[1, 0] == "yarn-3, same_tokens"
    assert by_place[2, 0] == "yarn-0, whole_window"
    # the horizontal axis is labelled where no panel of the same protocol is below
    shown = [axis for axis in figure.axes if axis.get_visible()]
    labelled = [axis.get_title() for axis in shown if axis.get_xlabel()]
    protocols = ("same_tokens", "whole_window")
    assert labelled == [f"yarn-{n}\n{p}" for p in protocols for n in (2, 3, 4)]
    # labels that reach into an empty place move no row
    above_gap = [axis.get_title() for axis in shown if not axis.xaxis.get_in_layout()]
    assert above_gap == [f"yarn-2\n{p}" for p in protocols]


def test_the_legend_of_many_checkpoints_names_some():
    rows = checkpoints(["trained"], range(1, 101))
    figure = draw_steps(rows)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(labels) == 12
    assert (labels[0], labels[-1]) == ("step 1", "step 100")


IMPORT = """
import sys
import matplotlib
before = dict(matplotlib.rcParams.copy())
import rope_jax.plots.panels, rope_jax.report.figure, rope_jax.report.comparison
assert dict(matplotlib.rcParams.copy()) == before
assert "matplotlib.pyplot" not in sys.modules, "pyplot was imported"
"""


def test_importing_drawing_and_saving_leave_matplotlib_as_it_is(tmp_path):
    subprocess.run([sys.executable, "-W", "error", "-c", IMPORT], check=True)

    def settings():
        # dict.items: asking for the backend by its key would choose one
        return dict(dict.items(matplotlib.rcParams)), matplotlib.get_backend(auto_select=False)

    with matplotlib.rc_context({"lines.linewidth": 7.0, "font.size": 20.0}):  # a user's settings
        before = settings()
        figure = draw(ROWS)
        save_figure(figure, tmp_path / "curve.png")
        assert settings() == before
    # nor do the user's settings change the figure
    save_figure(draw(ROWS), tmp_path / "again.png")
    for suffix in (".png", ".pdf", ".svg"):
        one, other = ((tmp_path / f"{name}{suffix}").read_bytes() for name in ("curve", "again"))
        assert one == other  # the same bytes, without the time of saving


@pytest.mark.parametrize(("width", "inches"), [("column", 3.3), ("page", 6.8)])
@pytest.mark.parametrize("count", [3, 7])
def test_figures_are_drawn_at_their_width_with_text_of_7_to_9_points(width, inches, count):
    names = ["trained", *(f"yarn-{n}" for n in range(count - 1))]
    rows = [row(name, n, nll) for name in names for n, nll in CURVES["trained"].items()]
    figure = draw(rows, width=width)
    assert figure.get_figwidth() == inches
    figure.draw_without_rendering()
    for text in figure.findobj(Text):
        if text.get_text() and text.get_visible():
            assert 7 <= text.get_fontsize() <= 9, text
