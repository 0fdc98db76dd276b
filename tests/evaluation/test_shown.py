"""What a notebook shows of a sweep: a frame, a figure, a table."""

import dataclasses
import math
import re
import subprocess
import sys

import matplotlib
import numpy as np
import pytest

from rope_jax.evaluation.results import rows
from rope_jax.results.rows import Row
from rope_jax.results.statistics import Sums
from tests.evaluation.test_results import OFFSETS, ORIGIN, measurement, result_of


@pytest.fixture
def result():
    return result_of(
        [measurement(e, n, offset) for e, by in OFFSETS.items() for n, offset in by.items()]
    )


def test_the_frame_has_the_values_of_results_csv_without_those_of_a_run(result):
    frame = result.to_frame()
    assert list(frame) == [
        name for name in Row._fields if name not in ("step", "run", "seed", "corpus", "split")
    ]
    wanted = rows(result, ORIGIN)
    assert len(frame) == len(wanted) == 8
    for name in frame:
        for value, row in zip(frame[name], wanted, strict=True):
            expected = getattr(row, name)
            if expected is None:
                assert (name == "factor" and math.isnan(value)) or name == "stride"
            else:
                assert value == expected, name


def test_the_frame_can_be_computed_with(result):
    measured = [
        dataclasses.replace(m, sums=m.sums._replace(bytes=None)) for m in result.measurements
    ]
    frame = dataclasses.replace(result, measurements=measured).to_frame()
    assert frame.bpb.isna().all()
    types = {"factor": "float64", "bpb": "float64", "stride": "Int64", "nll": "float64"}
    assert {name: str(frame[name].dtype) for name in types} == types
    # the offsets of the two curves, back from the frame
    wide = frame.pivot(index="length", columns="name", values="nll")
    difference = (wide["pi-auto"] - wide["trained"]).to_dict()
    assert difference == pytest.approx({8: 0, 16: 0, 32: -0.625, 64: -1.49})


def test_the_figure_has_the_curves_the_window_and_truncation(result, tmp_path):
    before = matplotlib.rcParams.copy()
    figure = result.plot(title="two $broken\\formula$")
    assert figure.get_figwidth() == pytest.approx(6.8)
    (axis,) = (axes for axes in figure.axes if axes.get_xscale() == "log")
    drawn = {
        (tuple(line.get_xdata()), tuple(np.round(np.log(line.get_ydata()), 6)))
        for line in axis.get_lines()
        if len(line.get_xdata()) == 4
    }
    for name in ("trained", "pi-auto"):
        own = [row for row in rows(result, ORIGIN) if row.name == name]
        lengths, nll = (row.length for row in own), (round(row.nll, 6) for row in own)
        assert (tuple(lengths), tuple(nll)) in drawn
    levels = [line.get_ydata()[0] for line in axis.get_lines() if len(set(line.get_ydata())) == 1]
    assert any(level == pytest.approx(math.exp(result.baseline.sums.mean())) for level in levels)
    # a notebook shows it without pyplot, and it has its style wherever it is saved
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert matplotlib.rcParams.copy() == before
    with matplotlib.rc_context({"text.parse_math": True}):
        figure.savefig(tmp_path / "a.png")  # as a formula, the title would raise ValueError


def test_the_table_has_a_row_per_scaling_and_marks_the_best(result):
    html = result._repr_html_()
    assert re.findall(r"<th>([\d,]+)</th>", html) == ["8", "16", "32", "64"]
    cells = {
        name: re.findall(r"<td[^>]*>(.*?)</td>", line)
        for line in html.splitlines()
        for name in re.findall(r"normal\">(.*?)</th>", line)
    }
    assert list(cells) == ["trained", "pi-auto"]
    for name, texts in cells.items():
        own = [row for row in rows(result, ORIGIN) if row.name == name]
        for row, text in zip(own, texts, strict=True):
            half = (math.exp(row.ci_high) - math.exp(row.ci_low)) / 2
            value, shown_half = re.sub("</?strong>", "", text).split(" ± ")
            assert value == f"{row.ppl:.2f}"
            assert float(shown_half) == pytest.approx(half, rel=0.05)
    bold = {name: ["strong" in text for text in texts] for name, texts in cells.items()}
    # up to the window both are equal
    assert bold == {"trained": [False] * 4, "pi-auto": [False, False, True, True]}


def test_the_table_shows_nats_if_the_sweep_does(result):
    config = result.config.model_copy(update={"show": "nats"})
    html = dataclasses.replace(result, config=config)._repr_html_()
    row = rows(result, ORIGIN)[0]
    half = (row.ci_high - row.ci_low) / 2
    assert f'<td style="text-align: right">{row.nll:.3f} ± {half:.2f}</td>' in html
    assert "Nats per token" in html
    config = result.config.model_copy(update={"show": "bits_per_byte"})
    html = dataclasses.replace(result, config=config)._repr_html_()
    half = (row.bpb_high - row.bpb_low) / 2
    assert f'<td style="text-align: right">{row.bpb:.3f} ± {half:.2g}</td>' in html
    assert "Bits per byte" in html


def test_values_without_an_interval_are_shown_alone():
    infinite = dataclasses.replace(
        measurement("trained", 16, 0.0), sums=Sums(np.array([5.0, math.inf]), np.array([4.0, 4.0]))
    )
    alone = dataclasses.replace(
        measurement("trained", 32, 0.0), sums=Sums(np.array([8.0]), np.array([4.0]))
    )
    html = result_of([infinite, alone])._repr_html_()
    assert re.findall(r"<td[^>]*>(.*?)</td>", html) == ["e^inf", "7.39"]


HEAVY = "scipy.stats", "matplotlib", "pandas", "datasets", "rich", "orbax", "flax", "plotly"


@pytest.mark.slow
def test_the_library_is_imported_without_what_it_does_not_need_yet():
    program = f"import sys, rope_jax.evaluation; print(*[m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []
