"""The outputs: CSV, Markdown, the figure, a page that needs no network, and the command."""

import csv
import io
import json
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from rope_jax import cli
from rope_jax.comparison.comparable import find_mismatches
from rope_jax.comparison.curves import Comparison, compare
from rope_jax.comparison.groups import Group
from rope_jax.comparison.read import find_sweeps, read_sweep
from rope_jax.config.presentation import CompareConfig
from rope_jax.console import plain_console
from rope_jax.errors import UserError
from rope_jax.plots.saving import save_figure
from rope_jax.report.comparison import (
    FILES,
    comparison_csv,
    comparison_markdown,
    write_comparison,
)
from rope_jax.report.figure import draw_comparison
from rope_jax.report.measured import measured_cell, truncation_levels
from rope_jax.report.page import format_page
from rope_jax.report.terminal import print_comparison
from rope_jax.results.statistics import Estimate
from scripts import compare as command


@pytest.fixture
def comparison(sweep_of):
    """Compare two seeds of one experiment at two steps, another experiment, and a marked one."""
    runs = [
        sweep_of("a-s0", steps=(50, 100)),
        sweep_of("a-s1", seed=1, shift=0.2, steps=(50, 100)),
        sweep_of("b", shift=-0.5, model="hidden_size: 32"),
        sweep_of("c", corpus="beef"),
    ]
    sweeps = [read_sweep(folder) for folder in find_sweeps(runs, None)]
    return compare(sweeps, find_mismatches(sweeps), CompareConfig(resamples=50))


def newest(comparison, group):
    return [c for c in comparison.curves if c.is_newest and c.group.label.startswith(group)]


def test_the_csv_has_every_point(comparison):
    rows = list(csv.DictReader(io.StringIO(comparison_csv(comparison))))
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
        assert [float(v) for v in row["nll_by_seed"].split()] == list(p.nll_by_seed)
        assert row["factor"] == ("" if p.factor is None else str(p.factor))
        for name in ("difference", "gain", "from_first", "above_truncation"):
            found = tuple(float(row[name + end] or "nan") for end in ("", "_low", "_high"))
            expected = getattr(p, name) or (float("nan"),) * 3
            np.testing.assert_array_equal(found, expected)
        assert row["marked"] == str(curve.group.label == "c †")
    assert {row["runs"] for row in rows} == {"a-s0 a-s1", "b", "c"}
    assert {row["units"] for row in rows} == {"24"}
    assert {row["group"]: row["settings"] for row in rows} == {
        "a (2 seeds)": "model.hidden_size 16",
        "b": "model.hidden_size 32",
        "c †": "model.hidden_size 16",
    }


def test_the_markdown_has_one_table_per_protocol_and_marks(comparison):
    text = comparison_markdown(comparison)
    assert text.startswith("# a (2 seeds); b; c †\n\n> † cannot be compared with the sweeps before")
    assert text.count("\n## `") == 2
    (curve,) = (c for c in newest(comparison, "a") if c.name == "yarn-4")
    p = next(p for p in curve.points if (p.protocol, p.length) == ("same_tokens", 64))
    (line,) = re.findall(r"^\| a \(2 seeds\) \|.* yarn-4 \|.* none \|$", text, re.MULTILINE)
    assert line.startswith("| a (2 seeds) | model.hidden_size 16 | yarn-4 | ")
    interval = measured_cell(p, "perplexity").interval.replace("[", r"\[").replace("]", r"\]")
    assert line.endswith(f"| {p.ppl:.2f} {interval} | none |")
    assert rf"| {p.difference.value:+.3f} \[{p.difference.low:+.3f}, " in text
    assert "| b | trained | " in text.partition("The difference from the same scaling")[2]
    sources = "| a (2 seeds) | a-s0 (0), a-s1 (1) | 50, 100 | 16 | demo | c0ffee |"
    assert f"{sources} model.hidden_size 16 |\n" in text
    # every row of a table has as many cells as its heading
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({line.count("|") for line in block.splitlines()}) == 1


def test_the_figure_has_one_colour_per_scaling_and_one_dash_per_group(comparison):
    drawn = draw_comparison(comparison)
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
    assert len(axis.collections) == 2 * len(comparison.groups)  # bands
    thin = [line for line in axis.lines if line.get_linewidth() == 0.5]
    assert len(thin) == 2 * 2  # seeds of a's two scalings
    assert "CANNOT BE COMPARED" in drawn.get_suptitle()
    (legend,) = drawn.legends
    shown = [text.get_text() for text in legend.get_texts()]
    assert shown == [
        *("trained", "yarn-4", "a (2 seeds; 16)", "b (32)"),
        *("c † (16)", "each seed", "95% interval", "truncation to the window"),
    ]


def test_the_page_has_every_curve_and_fetches_nothing(comparison):
    text = format_page(comparison)
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
            assert one["bits"] == [p.bpb, p.bpb_low, p.bpb_high]
            assert one["nll"] * one["bits_per_nat"] == pytest.approx(p.bpb)
            assert one["seeds"] == list(p.nll_by_seed)
    assert [style["name"] for style in data["names"]] == ["trained", "yarn-4"]
    # nothing is fetched, and the browser would refuse to
    assert "default-src 'none'" in text
    assert not re.search(r'<(script|link|img)[^>]*(src|href)="?(http|//)', text)
    assert "TITLE" not in text.partition("<style>")[0]


def test_the_page_shows_markup_in_a_name_as_text(comparison):
    evil = "</script><b>x"
    comparison.notes.append(evil)
    text = format_page(comparison)
    assert evil not in text
    assert evil in json.loads(re.search(r'json">(.*?)</script>', text)[1])["notes"]


@pytest.mark.parametrize("nll", [float("inf"), float("nan"), 800.0])
def test_infinite_nan_and_huge_values_are_shown_as_such(comparison, nll, tmp_path):
    curve = comparison.curves[2]
    assert curve.is_newest
    gone = Estimate(-nll, float("nan"), float("nan"))
    point = replace(
        curve.points[0],
        nll=nll,
        bpb=nll,
        ppl=float("inf"),
        ci_low=gone.low,
        ci_high=gone.low,
        nll_by_seed=(nll, 1.0),
        gain=gone,
    )
    changed = replace(curve, points=(point, *curve.points[1:]))
    odd = replace(comparison, curves=[changed, *comparison.curves[3:]])
    data = json.loads(re.search(r'json">(.*?)</script>', format_page(odd))[1])
    written = 800.0 if nll == 800 else None
    shown = data["curves"][0]["points"][0]
    assert (shown["nll"], shown["seeds"]) == (written, [written, 1.0])
    assert shown["interval"] == [None, None]
    assert list(truncation_levels(odd.curves)) == list(truncation_levels(comparison.curves))
    text = {"inf": "e^inf", "nan": "nan", "800.0": "e^800.0"}[str(nll)]
    settings = "model.hidden_size 16"
    assert f"| a (2 seeds) | {settings} | {curve.name} | {text} |" in comparison_markdown(odd)
    save_figure(draw_comparison(odd), tmp_path / "odd.png")  # warnings are errors


def test_the_files_are_replaced_together(comparison, tmp_path, monkeypatch):
    write_comparison(tmp_path / "out", comparison)
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert set(before) == set(FILES)
    assert len(before["comparison.png"]) > 10_000

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rope_jax.report.comparison.write_figure", full)
    with pytest.raises(UserError, match=r"^output: .* cannot be written \(No space left on device"):
        write_comparison(tmp_path / "out", replace(comparison, notes=["other"]))
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_groups_with_one_and_the_same_curve_have_colours_of_their_own(comparison):
    """As models that differ in their position encoding have: only `trained` can be swept."""
    groups = comparison.groups
    curves = [curve for curve in comparison.curves if curve.name == "trained"]
    alike = replace(comparison, curves=curves)
    drawn = draw_comparison(alike)
    axis = next(a for a in drawn.axes if "same tokens" in a.get_title())
    lines = {line.get_label(): line for line in axis.lines}
    own = [lines[f"{group.label}: trained"] for group in groups]
    assert len({line.get_color() for line in own}) == len({line.get_marker() for line in own}) == 3
    assert {line.get_linestyle() for line in own} == {"-"}
    (legend,) = drawn.legends
    shown = [text.get_text() for text in legend.get_texts()]
    assert shown[:-3] == ["a (2 seeds; 16)", "b (32)", "c † (16)"]
    # the seeds of a group have its colour
    (thin,) = {line.get_color() for line in axis.lines if line.get_linewidth() == 0.5}
    assert thin == own[0].get_color()
    # the page shows the same colours, and no dashes
    data = json.loads(re.search(r'type="application/json">(.*?)</script>', format_page(alike))[1])
    assert [(g["color"], g["dash"]) for g in data["groups"]] == [
        (line.get_color(), "solid") for line in own
    ]
    whole = json.loads(
        re.search(r'type="application/json">(.*?)</script>', format_page(comparison))[1]
    )
    assert [group["color"] for group in whole["groups"]] == [None] * 3


def test_eight_groups_of_two_scalings_have_a_panel_each(comparison, monkeypatch, tmp_path):
    groups = [Group(label=f"{i}$_{{$", sweeps=(), marked=False) for i in range(8)]
    curves = [
        replace(curve, group=group, step=100) for group in groups for curve in comparison.curves[:2]
    ]
    monkeypatch.setattr(Group, "newest", 100)
    drawn = draw_comparison(Comparison(groups=groups, curves=curves, tolerance=0.02, notes=[]))
    save_figure(drawn, tmp_path / "many.png")  # a name with two dollar signs is not a formula
    assert drawn.get_suptitle() == "8 groups of runs"
    panels = {
        tuple(axis.get_title().split("\n")): axis for axis in drawn.axes if axis.get_visible()
    }
    protocols = ("same_tokens", "whole_window")
    assert list(panels) == [(group.label, p) for p in protocols for group in groups]
    for (label, _), axis in panels.items():
        drawn_here = [line for line in axis.lines if str(line.get_label()).startswith(label)]
        assert len(drawn_here) == len(axis.collections) == 2  # lines and bands
        assert len({(line.get_color(), line.get_marker()) for line in drawn_here}) == 2


def test_markdown_shows_names_as_they_are(comparison):
    names = ["[red]x", "[/]", "a|b", "<b>", "*x*", "$y$", "run_one-s1"]
    comparison.groups[0] = replace(comparison.groups[0], label="; ".join(names))
    curves = [replace(c, group=comparison.groups[0]) for c in comparison.curves[2:4]]
    text = comparison_markdown(replace(comparison, curves=curves))
    shown = r"\[red\]x; \[/\]; a\|b; \<b\>; \*x\*; \$y\$; run_one-s1"
    assert text.startswith(f"# {shown}; b; c †\n")
    assert f"| {shown} | yarn-4 | " in text


def test_the_terminal_shows_names_as_they_are(comparison):
    comparison.groups[0] = replace(comparison.groups[0], label=r"[red]x [/] \[b] :smile:")
    curves = [replace(c, group=comparison.groups[0]) for c in comparison.curves[2:4]]
    for make in (plain_console, Console):  # also on a console that reads markup
        stream = io.StringIO()
        console = make(file=stream, width=200)
        print_comparison(console, replace(comparison, curves=curves, notes=["[/] [red]x"]))
        assert r"[red]x [/] \[b] :smile:" in stream.getvalue()
        assert "[/] [red]x\n" in stream.getvalue()


@pytest.fixture
def run_command(monkeypatch, capsys, tmp_path):
    """Return a function that runs compare.py and returns (exit status, stdout, stderr)."""

    def run(*words):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["compare.py", *words])
        with pytest.raises(SystemExit) as caught:
            cli.run(command.main)
        return caught.value.code, *capsys.readouterr()

    return run


def test_the_command_writes_every_file(sweep_of, run_command, tmp_path):
    sweep_of("one")
    sweep_of("two", seed=1)
    code, out, err = run_command("one", "two/evals/demo", "output=new/place", "resamples=50")
    assert (code, err) == (0, "")
    assert "(2 seeds)" in out
    assert {path.name for path in (tmp_path / "new/place").iterdir()} == set(FILES)
    page = tmp_path / "new/place/comparison.html"
    assert out.splitlines()[-1].endswith(f" -m webbrowser {page.as_uri()}")


def test_mismatches_are_refused_unless_forced(sweep_of, run_command, tmp_path):
    sweep_of("one")
    sweep_of("two", bos="none")
    code, out, err = run_command("one", "two")
    assert (code, out) == (2, "")
    assert err == (
        "compare.py: bos: one/demo has document, two/demo has none; sweep them with the same bos; "
        "with force=true they are drawn anyway, and marked\n"
    )
    assert not (tmp_path / "comparison").exists()
    code, out, err = run_command("one", "two", "force=true", "resamples=50")
    assert (code, err) == (0, "")
    assert "† cannot be compared" in out
    for end in ("html", "md"):
        text = (tmp_path / f"comparison/comparison.{end}").read_text()
        assert "two †" in text or "two \\u2020" in text
        assert "bos: one/demo has document, two/demo has none" in text


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "the following arguments are required: RUN; see compare.py"),
        (("nowhere",), "nowhere: no such folder"),
        (("one/evals",), "one/evals: is neither a run that was swept nor the folder of a sweep"),
        (("one/config.yaml",), "one/config.yaml: is neither a run that was swept nor the folder"),
        (("x" * 300,), f"{'x' * 300}: no such folder"),
        (("one", "output=" + "x/" * 3000), "output: x/x/x/"),
        (("one", "sweep=other"), "sweep: one has no sweep other; it has demo"),
        (("one", "output=one/config.yaml"), "output: one/config.yaml is a file; name a folder"),
        (("one", "force=maybe"), "overrides: force: should be true or false, not 'maybe'"),
        (("one", "resample=5"), "overrides: resample: unknown key; did you mean resamples?"),
    ],
)
def test_bad_input_is_reported_in_one_line(sweep_of, run_command, tmp_path, words, says):
    sweep_of("one")
    code, out, err = run_command(*words)
    assert (code, out) == (2, "")
    assert err.startswith(f"compare.py: {says}")
    assert err.count("\n") == 1
    assert not (tmp_path / "comparison").exists()
