"""What a reader is given: tables, a figure, and a page that needs no network."""

import csv
import io
import json
import re
import sys

import matplotlib.pyplot as plt
import numpy as np
import pytest

from rope_jax import cli
from rope_jax.comparison.comparable import mismatches
from rope_jax.comparison.curves import Comparison, Curve, Group, compare
from rope_jax.comparison.figure import figure, truncation
from rope_jax.comparison.files import leave
from rope_jax.comparison.page import page
from rope_jax.comparison.report import markdown, tidy
from rope_jax.comparison.sweeps import find, read
from rope_jax.config.comparison import CompareConfig
from rope_jax.errors import UserError
from rope_jax.evaluation.statistics import Estimate
from scripts import compare as command


@pytest.fixture
def comparison(sweep_of):
    """Two seeds of one experiment, one of another, at two steps; and one that is marked."""
    runs = [
        sweep_of("a-s0", steps=(50, 100)),
        sweep_of("a-s1", seed=1, shift=0.2, steps=(50, 100)),
        sweep_of("b", shift=-0.5, model="hidden_size: 32"),
        sweep_of("c", corpus="beef"),
    ]
    sweeps = [read(folder) for folder in find(runs, None)]
    return compare(sweeps, mismatches(sweeps), CompareConfig(resamples=50))


def newest(comparison, group):
    return [c for c in comparison.curves if c.is_newest and c.group.label.startswith(group)]


def test_the_csv_has_every_figure(comparison):
    rows = list(csv.DictReader(io.StringIO(tidy(comparison))))
    points = [(c, p) for c in comparison.curves for p in c.points]
    assert len(rows) == len(points)
    for row, (curve, p) in zip(rows, points, strict=True):
        assert (row["group"], row["name"], int(row["step"])) == (
            (curve.group.label, curve.name, curve.step)
        )
        assert (row["protocol"], int(row["length"])) == (p.protocol, p.length)
        assert [float(row[k]) for k in ("nll", "ci_low", "ci_high", "ppl", "bpb")] == [
            *(p.nll, p.ci_low, p.ci_high, p.ppl, p.bpb)
        ]
        assert [float(v) for v in row["nll_by_seed"].split()] == list(p.of_seeds)
        assert row["factor"] == ("" if p.factor is None else str(p.factor))
        for name in ("difference", "gain", "from_first"):
            found = tuple(float(row[name + end] or "nan") for end in ("", "_low", "_high"))
            expected = getattr(p, name) or (float("nan"),) * 3
            np.testing.assert_array_equal(found, expected)
        assert row["marked"] == str(curve.group.label == "c †")
    assert {row["runs"] for row in rows} == {"a-s0 a-s1", "b", "c"}


def test_the_markdown_has_a_table_a_protocol_and_its_marks(comparison):
    text = markdown(comparison)
    assert text.startswith("# a (2 seeds); b; c †\n\n> † not comparable with what stands before")
    assert text.count("\n## `") == 2
    (curve,) = (c for c in newest(comparison, "a") if c.name == "yarn-4")
    p = next(p for p in curve.points if (p.protocol, p.length) == ("same_tokens", 64))
    (line,) = re.findall(r"^\| a \(2 seeds\) \| yarn-4 \|.*± .*none \|$", text, re.MULTILINE)
    assert f"| {p.ppl:.2f} ± {(np.exp(p.ci_high) - np.exp(p.ci_low)) / 2:.2f} | none |" in line
    assert f"| {p.difference.value:+.3f} [{p.difference.low:+.3f}, " in text
    assert "| b | trained | " in text.partition("Difference from the same scaling")[2]
    assert "| a (2 seeds) | a-s0 (0), a-s1 (1) | 50, 100 | 16 | demo | c0ffee |" in text
    # a row of a table has as many cells as its heading
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({line.count("|") for line in block.splitlines()}) == 1


def test_the_figure_has_a_colour_a_scaling_and_dashes_a_group(comparison, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(plt, "close", lambda *_: None)
        figure(tmp_path / "comparison.png", comparison)
        drawn = plt.gcf()
    assert (tmp_path / "comparison.png").stat().st_size > 10_000
    axis = next(a for a in drawn.axes if "same tokens" in a.get_title())
    lines = {line.get_label(): line for line in axis.lines}
    for group in comparison.groups:
        curves = [c for c in comparison.curves if c.is_newest and c.group is group]
        for curve in curves:
            own = [p for p in curve.points if p.protocol == "same_tokens"]
            line = lines[curve.label]
            np.testing.assert_allclose(line.get_ydata(), [p.ppl for p in own])
            assert line.get_color() == lines[f"b: {curve.name}"].get_color()
        assert len({lines[c.label].get_linestyle() for c in curves}) == 1
    assert lines["a (2 seeds): trained"].get_linestyle() != lines["b: trained"].get_linestyle()
    thin = [line for line in axis.lines if line.get_linewidth() == 0.5]
    assert len(thin) == 2 * 2  # seeds of a's two scalings
    assert "NOT COMPARABLE" in drawn.get_suptitle()
    (legend,) = drawn.legends
    shown = [text.get_text() for text in legend.get_texts()]
    assert shown[:-1] == ["trained", "yarn-4", "a (2 seeds)", "b", "c †", "each seed"]
    plt.close(drawn)


def test_the_page_holds_all_it_needs(comparison):
    text = page(comparison)
    data = json.loads(re.search(r'type="application/json">(.*?)</script>', text)[1])
    assert [group["label"] for group in data["groups"]] == ["a (2 seeds)", "b", "c †"]
    assert data["notes"] == comparison.notes
    assert len(data["curves"]) == len(comparison.curves)
    for shown, curve in zip(data["curves"], comparison.curves, strict=True):
        assert (shown["name"], shown["step"], shown["newest"]) == (
            (curve.name, curve.step, curve.is_newest)
        )
        for one, p in zip(shown["points"], curve.points, strict=True):
            assert (one["protocol"], one["length"], one["nll"]) == (p.protocol, p.length, p.nll)
            assert one["nll"] * one["bits_per_nat"] == pytest.approx(p.bpb)
            assert one["seeds"] == list(p.of_seeds)
    # nothing is fetched, and the browser would refuse it
    assert "default-src 'none'" in text
    assert not re.search(r'<(script|link|img)[^>]*(src|href)="?(http|//)', text)
    assert "TITLE" not in text.partition("<style>")[0]


def test_a_name_is_text_and_no_markup(comparison):
    evil = "</script><b>x"
    comparison.notes.append(evil)
    text = page(comparison)
    assert evil not in text
    assert evil in json.loads(re.search(r'json">(.*?)</script>', text)[1])["notes"]


@pytest.mark.parametrize("nll", [float("inf"), float("nan"), 800.0])
def test_what_is_infinite_stays_so(comparison, nll, tmp_path):
    curve = comparison.curves[2]
    assert curve.is_newest
    gone = Estimate(-nll, float("nan"), float("nan"))
    point = curve.points[0]._replace(
        nll=nll,
        bpb=nll,
        ppl=float("inf"),
        ci_low=gone.low,
        ci_high=gone.low,
        of_seeds=(nll, 1.0),
        gain=gone,
    )
    odd = comparison._replace(curves=[_with(curve, point), *comparison.curves[3:]])
    data = json.loads(re.search(r'json">(.*?)</script>', page(odd))[1])
    written = {"inf": {"∞": 1.0}, "nan": None, "800.0": 800.0}[str(nll)]
    shown = data["curves"][0]["points"][0]
    assert (shown["nll"], shown["seeds"]) == (written, [written, 1.0])
    assert shown["interval"] == [None, None]
    assert truncation(odd.curves) == truncation(comparison.curves)
    text = {"inf": "e^inf", "nan": "nan", "800.0": "e^800.0"}[str(nll)]
    assert f"| a (2 seeds) | {curve.name} | {text} |" in markdown(odd)
    figure(tmp_path / "odd.png", odd)  # warnings are errors


def test_a_set_of_files_is_replaced_together(comparison, tmp_path, monkeypatch):
    leave(tmp_path / "out", comparison)
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert set(before) == {f"comparison.{end}" for end in ("png", "html", "md", "csv")}

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rope_jax.comparison.files.figure", full)
    with pytest.raises(UserError, match=r"^output: .* cannot be written \(No space left on device"):
        leave(tmp_path / "out", comparison._replace(notes=["other"]))
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_eight_groups_can_be_told_apart(comparison, tmp_path, monkeypatch):
    groups = [Group(f"{i}$_{{", (), False) for i in range(8)]
    curves = [
        Curve(g, c.name, 100, 16, c.scaling, c.auto, c.points, c.usable)
        for g in groups
        for c in comparison.curves[:2]
    ]
    monkeypatch.setattr(Group, "newest", 100)
    with monkeypatch.context() as patch:
        patch.setattr(plt, "close", lambda *_: None)
        figure(tmp_path / "many.png", Comparison(groups, curves, 0.02, []))
        drawn = plt.gcf()
    assert drawn.get_suptitle() == "8 groups of runs"
    dashes = {
        str(line._unscaled_dash_pattern)
        for line in drawn.axes[0].lines
        if str(line.get_label()).endswith(": trained")
    }
    assert len(dashes) == 8
    plt.close(drawn)


def _with(curve, point):
    return type(curve)(**{**vars(curve), "points": (point, *curve.points[1:])})


@pytest.fixture
def run_command(monkeypatch, capsys, tmp_path):
    """compare.py in this process, at tmp_path: (exit status, stdout, stderr)."""

    def run(*words):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["compare.py", *words])
        with pytest.raises(SystemExit) as caught:
            cli.run(command.main)
        return caught.value.code, *capsys.readouterr()

    return run


def test_the_command(sweep_of, run_command, tmp_path):
    sweep_of("one")
    sweep_of("two", seed=1)
    code, out, err = run_command("one", "two/evals/demo", "output=new/place", "resamples=50")
    assert (code, err) == (0, "")
    assert "(2 seeds)" in out
    names = {path.name for path in (tmp_path / "new/place").iterdir()}
    assert names == {f"comparison.{end}" for end in ("png", "html", "md", "csv")}


def test_what_cannot_be_compared_is_refused_unless_forced(sweep_of, run_command, tmp_path):
    sweep_of("one")
    sweep_of("two", bos="none")
    code, out, err = run_command("one", "two")
    assert (code, out) == (2, "")
    assert err == (
        "compare.py: bos: one/demo has document, two/demo none; sweep them with the same bos; "
        "force=true draws them all the same, marked\n"
    )
    assert not (tmp_path / "comparison").exists()
    code, out, err = run_command("one", "two", "force=true", "resamples=50")
    assert (code, err) == (0, "")
    assert "† not comparable" in out
    for end in ("html", "md"):
        text = (tmp_path / f"comparison/comparison.{end}").read_text()
        assert "two †" in text or "two \\u2020" in text
        assert "bos: one/demo has document, two/demo none" in text


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "the following arguments are required: RUN; see compare.py"),
        (("nowhere",), "nowhere: neither a run that was swept nor a sweep's folder"),
        (("one", "sweep=other"), "sweep: one has no sweep other; it has demo"),
        (("one", "output=one/config.yaml"), "output: one/config.yaml is a file; name a folder"),
        (("one", "force=maybe"), "overrides: force: should be true or false, not 'maybe'"),
        (("one", "resample=5"), "overrides: resample: unknown key; did you mean resamples?"),
    ],
)
def test_wrong_input_is_one_line(sweep_of, run_command, tmp_path, words, says):
    sweep_of("one")
    code, out, err = run_command(*words)
    assert (code, out) == (2, "")
    assert err.startswith(f"compare.py: {says}")
    assert err.count("\n") == 1
    assert not (tmp_path / "comparison").exists()
