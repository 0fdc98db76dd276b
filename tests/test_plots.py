"""The figure holds the figures."""

import math

import matplotlib.pyplot as plt
import numpy as np
import pytest
from PIL import Image

from rope_jax.evaluation.results import Row
from rope_jax.plots import curve, formation


def row(name, length, nll, *, protocol="same_tokens", last=None, width=0.1, step=1):
    return Row(
        name=name,
        scaling="none" if name == "trained" else name.partition("-")[0],
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
        ci_low=nll - width,
        ci_high=nll + width,
        reliable=True,
        tokens=10,
        documents=2,
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


@pytest.fixture
def draw(tmp_path, monkeypatch):
    """Draw; the file and the figure that went into it."""
    close = plt.close
    monkeypatch.setattr(plt, "close", lambda *_: None)

    def draw(rows, **settings):
        path = tmp_path / "curve.png"
        curve(path, rows, **({"window": 32, "truncation": 1.0, "title": "A title"} | settings))
        return path, plt.gcf()

    yield draw
    close("all")


def lines_by_label(axis):
    return {line.get_label(): line for line in axis.get_lines()}


def test_a_line_a_curve_through_its_perplexities(draw):
    path, figure = draw(ROWS)
    (axis,) = figure.axes
    lines = lines_by_label(axis)
    for name, by_length in CURVES.items():
        np.testing.assert_array_equal(lines[name].get_xdata(), list(by_length))
        np.testing.assert_allclose(lines[name].get_ydata(), np.exp(list(by_length.values())))
    assert (axis.get_xscale(), axis.get_yscale()) == ("log", "log")
    assert [label.get_text() for label in axis.get_xticklabels()] == ["16", "32", "64"]
    # automatic factors, one for each length, are told apart from a fixed one
    styles = {name: lines[name].get_linestyle() for name in CURVES}
    assert styles == {"trained": "-", "pi-auto": "-", "yarn-4": "--"}
    assert len({lines[name].get_color() for name in CURVES}) == 3
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(CURVES)
    assert figure.get_suptitle() == "A title"
    # the bands are the intervals
    bands = [band.get_paths()[0].get_extents() for band in axis.collections]
    for band, by_length in zip(bands, CURVES.values(), strict=True):
        low, high = min(by_length.values()) - 0.1, max(by_length.values()) + 0.1
        np.testing.assert_allclose([band.y0, band.y1], np.exp([low, high]))
    with Image.open(path) as image:
        assert min(image.size) > 500
        assert np.asarray(image.convert("L")).std() > 10  # not blank
    assert [file.name for file in path.parent.iterdir()] == ["curve.png"]


def test_the_window_and_truncation_are_marked(draw):
    _, figure = draw(ROWS, window=24, truncation=1.25)
    (axis,) = figure.axes
    straight = [line for line in axis.get_lines() if line.get_label() not in CURVES]
    assert any(list(line.get_xdata()) == [24, 24] for line in straight)
    assert any(
        np.allclose(line.get_ydata(), [math.exp(1.25)] * 2)
        for line in straight
        if list(line.get_xdata()) == [0, 1]
    )


@pytest.mark.parametrize("truncation", [0.2, 5.0])
def test_truncation_is_in_the_picture_though_no_curve_is_near(draw, truncation):
    _, figure = draw(ROWS, truncation=truncation)
    low, high = figure.axes[0].get_ylim()
    assert low < math.exp(truncation) < high


def test_a_panel_a_protocol_and_truncation_only_where_the_tokens_are_the_same(draw):
    rows = [
        *ROWS,
        *(row("trained", n, 2.0, protocol="whole_window") for n in (16, 32)),
        *(row("trained", 64, 2.5, protocol="per_position", last=last) for last in (16, 64)),
    ]
    _, figure = draw(rows)
    x = [list(lines_by_label(axis)["trained"].get_xdata()) for axis in figure.axes]
    assert x == [[16, 32, 64], [16, 32], [16, 64]]
    texts = [{text.get_text() for text in axis.texts} for axis in figure.axes]
    assert ["truncation to the window" in labels for labels in texts] == [True, False, False]
    assert all("window" in labels for labels in texts)
    # one scale for all, which holds every curve of every panel
    for axis in figure.axes:
        low, high = axis.get_ylim()
        assert low < math.exp(0.8)
        assert high > math.exp(3.1)


@pytest.mark.parametrize("nll", [800.0, math.inf, math.nan])
def test_a_curve_that_leaves_the_page_does_not_take_the_others_along(draw, nll):
    rows = [*ROWS[:-1], row("yarn-4", 64, nll, width=1.0 if nll == 800 else math.nan)]
    _, figure = draw(rows, truncation=None)
    (axis,) = figure.axes
    drawn = lines_by_label(axis)["trained"].get_ydata()
    np.testing.assert_allclose(drawn, np.exp([1.0, 2.0, 3.0]))
    low, high = axis.get_ylim()
    assert 1 < low < math.exp(0.9)
    assert math.exp(3.1) < high < math.exp(3.1) * 2


def test_a_type_without_a_colour_of_its_own_and_two_curves_of_one_type(draw):
    rows = [row("half-4", n, 1.0) for n in (16, 64)]
    rows += [row("half-8", n, 1.5) for n in (16, 64)]
    _, figure = draw(rows, truncation=None)
    one, other = (lines_by_label(figure.axes[0])[name] for name in ("half-4", "half-8"))
    assert one.get_color() == other.get_color()
    assert one.get_marker() != other.get_marker()


def test_curves_form_in_a_panel_a_scaling_and_a_line_a_step(tmp_path, monkeypatch):
    close = plt.close
    monkeypatch.setattr(plt, "close", lambda *_: None)
    rows = [row(n, x, y / s, step=s) for s in (1, 5) for n in CURVES for x, y in CURVES[n].items()]
    formation(tmp_path / "steps.png", rows, windows=[32], title="A title")
    figure = plt.gcf()
    monkeypatch.setattr(plt, "close", close)
    with Image.open(tmp_path / "steps.png") as image:
        assert image.size[0] > 500
    assert [axis.get_title() for axis in figure.axes] == list(CURVES)
    for axis, curve_ in zip(figure.axes, CURVES.values(), strict=True):
        lines = lines_by_label(axis)
        assert set(lines) >= {"step 1", "step 5"}
        np.testing.assert_allclose(
            lines["step 5"].get_ydata(), np.exp(np.array([*curve_.values()]) / 5)
        )
    plt.close(figure)
