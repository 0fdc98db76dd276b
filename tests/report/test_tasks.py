"""Heat maps and distance profiles show the rows of tasks.csv."""

import json
import math
from base64 import b64encode

import numpy as np
import pytest

from rope_jax.config.presentation import Presentation
from rope_jax.report.comparison import comparison_markdown
from rope_jax.report.page import format_page
from rope_jax.report.tasks import draw_distances, draw_heat, share_text
from rope_jax.results.summary import CheckpointSummary
from rope_jax.results.tasks import EffectiveLength, TaskSummary
from tests.comparison.conftest import compared
from tests.report.rows import task_row

LENGTHS = (64, 128, 256)
EXACT = {"none": {64: 1.0, 128: 0.5, 256: 0.0}, "streaming": {64: 0.75, 128: 0.25, 256: 0.125}}


def asked(depths):
    """Return rows whose share is half as large at the start as at the end of the window."""
    rows = [
        task_row(name, n, value * (1 if depth is None else (1 + depth) / 2), depth=depth)
        for name, by_length in EXACT.items()
        for n, value in by_length.items()
        for depth in depths
    ]
    rows += [task_row(name, n, len(name) / 100, taken_out=True) for name in EXACT for n in LENGTHS]
    return rows


def draw(rows, window=128, width="page"):
    found = TaskSummary({}, EffectiveLength(64, 64, 64, False), 0.85)
    checkpoint = CheckpointSummary("", 1, window, tasks={"passkey": {"none": found}})
    return draw_heat(rows, checkpoint, Presentation(figure_width=width), "A title")


def numbers(axis):
    """Return the numbers in a panel's cells, by row from the top."""
    rows = {}
    for text in axis.texts:
        x, y = text.get_position()
        rows.setdefault(y, {})[x] = text.get_text()
    return [[rows[y][x] for x in sorted(rows[y])] for y in sorted(rows)]


def test_a_panel_per_scaling_has_a_row_per_depth_from_the_start_down():
    figure = draw(asked((0, 1)))
    none, streaming, bar = figure.axes
    assert numbers(none) == [["50", "25", "0"], ["100", "50", "0"], ["4", "4", "4"]]
    assert numbers(streaming) == [["38", "12", "6"], ["75", "25", "12"], ["9", "9", "9"]]
    assert [axis.get_title() for axis in (none, streaming)] == ["none\neffective: 64", "streaming"]
    assert [t.get_text() for t in none.get_yticklabels()] == ["0", "100", "taken out"]
    assert [t.get_text() for t in none.get_xticklabels()] == ["64", "128", "256"]
    low, high = none.get_ylim()
    assert low > high  # depth 0 is at the top
    assert "chance: 25" in bar.get_ylabel() + bar.get_xlabel()
    assert figure.get_suptitle() == "A title"


def test_without_depths_the_scalings_are_the_rows_and_the_largest_control_is_below():
    figure = draw(asked((None,)))
    axis, _ = figure.axes
    assert numbers(axis) == [["100", "50", "0"], ["75", "25", "12"], ["9", "9", "9"]]
    labels = [text.get_text() for text in axis.get_yticklabels()]
    assert labels == ["none, effective: 64", "streaming", "taken out"]


def test_the_window_is_a_line_behind_the_longest_trained_length():
    for window, places in ((100, {0.5}), (128, {1.5}), (32, set()), (256, set())):
        axis = draw(asked((None,)), window=window).axes[0]
        vertical = [line for line in axis.get_lines() if len({*line.get_xdata()}) == 1]
        assert {line.get_xdata()[0] for line in vertical} == places


def test_cells_get_lighter_and_missing_ones_stay_empty():
    rows = [task_row("none", n, value, depth=0) for n, value in ((64, 0.0), (128, 0.5), (256, 1.0))]
    rows += [task_row("other", 64, math.nan, depth=0), task_row("other", 256, 0.5, depth=0)]
    none, other, *_ = draw(rows).axes
    (colours,) = none.get_images()
    grey = [sum(colours.to_rgba(value)[:3]) for value in np.ravel(colours.get_array())]
    assert grey == sorted(set(grey))
    assert np.ma.getmaskarray(other.get_images()[0].get_array()).tolist() == [[True, True, False]]
    assert [text.get_text() for text in other.texts] == ["50"]
    # only all are 100, and only none are 0
    shown = {0.0: "0", 1.0: "100", 0.004: "<1", 0.996: ">99", 0.98: "98", 1 / 3: "33"}
    assert {share: share_text(share) for share in shown} == shown


def profile():
    rows = []
    for name in EXACT:
        for n in LENGTHS:
            for metric, value in (("nats", 2.0), ("exact", EXACT[name][n])):
                rows.append(task_row(name, n, value, metric=metric, distance=n // 2))
                out = {"taken_out": True, "distance": n // 2, "metric": metric}
                rows.append(task_row(name, n, 5.5 if metric == "nats" else 0.0, **out))
    return rows


def test_a_profile_has_a_curve_and_a_dotted_control_per_scaling():
    checkpoint = CheckpointSummary("", 1, 64, borders={"streaming": 48})
    figure = draw_distances(profile(), checkpoint, Presentation(), "A title")
    nats, exact = figure.axes
    curves = [line for line in exact.get_lines() if list(line.get_xdata()) == [32, 64, 128]]
    assert [line.get_linestyle() for line in curves] == ["-", ":"] * 2
    assert list(curves[0].get_ydata()) == [100, 50, 0]
    assert list(curves[2].get_ydata()) == [75, 25, 12.5]
    assert curves[0].get_color() == curves[1].get_color() != curves[2].get_color()
    assert list(nats.get_lines()[1].get_ydata()) == [5.5] * 3
    for axis in figure.axes:
        assert axis.get_xscale() == "log"
        at = [line.get_xdata()[0] for line in axis.get_lines() if len(set(line.get_xdata())) == 1]
        assert sorted(at) == [48, 64]  # the map's border, and the window
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["none", "streaming", "taken out", "a map begins"]


EFFECTIVE = {
    "effective_length": 32,
    "effective_length_is_last_tested": False,
    "effective_length_at_least": 16,
    "effective_length_at_most": 64,
}


@pytest.fixture
def folder(sweep_of):
    folder = sweep_of("one") / "evals/demo"
    summary = json.loads((folder / "summary.json").read_text())
    summary["tasks"] = {"passkey": {"yarn-4": EFFECTIVE}}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def test_a_comparison_has_the_tasks_effective_lengths_and_its_page_their_figures(folder):
    (folder / "passkey.png").write_bytes(b"a picture")
    found = compared(folder)
    assert tuple(found.sweeps[0].effective["passkey"]["yarn-4"]) == (32, 16, 64, False)
    text = comparison_markdown(found)
    assert "## `one/demo`\n\nEffective lengths by task.\n" in text
    assert "| yarn-4 | 32 \\[16, 64\\] |" in text
    encoded = b64encode(b"a picture").decode()
    image = f'<img alt="one/demo: passkey" src="data:image/png;base64,{encoded}">'
    assert image in format_page(found)
    (folder / "passkey.png").unlink()
    assert '<img alt="one' not in format_page(found)


def test_a_sweep_without_tasks_has_none(sweep_of):
    (sweep,) = (found := compared(sweep_of("two"))).sweeps
    assert dict(sweep.effective) == {}
    assert "effective" not in comparison_markdown(found)
