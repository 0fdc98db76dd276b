"""comparison.csv, .md and .tex, and the values that are listed in them."""

import csv
import io
import json
import math
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure

from rope_jax import cli
from rope_jax.commands.main import compare as command
from rope_jax.comparison.curves import compare
from rope_jax.config.presentation import CompareConfig
from rope_jax.console import signed_text
from rope_jax.errors import UserError
from rope_jax.report.comparison import (
    FILES,
    comparison_csv,
    comparison_latex,
    comparison_markdown,
)
from rope_jax.report.measured import interval_text
from rope_jax.results.statistics import Estimate
from tests.comparison.conftest import compared, read


@pytest.fixture(scope="module")
def comparison(lasting):
    """Compare two seeds of one experiment at two steps, another experiment, and a marked one."""
    return compared(
        lasting("a-s0", steps=(50, 100)),
        lasting("a-s1", seed=1, shift=0.2, steps=(50, 100)),
        lasting("b", shift=-0.5, model="hidden_size: 32"),
        lasting("c", corpus="beef"),
    )


def test_the_csv_has_every_point(comparison):
    rows = list(csv.DictReader(io.StringIO(comparison_csv(comparison))))
    points = [(c, p) for c in comparison.curves for p in c.points]
    for row, (curve, p) in zip(rows, points, strict=True):
        assert (row["group"], row["name"], row["protocol"]) == (
            (curve.group.label, curve.name, p.protocol)
        )
        assert (int(row["step"]), int(row["length"])) == (curve.step, p.length)
        for name in ("nll", "ci_low", "ci_high", "ppl", "bpb"):
            assert float(row[name]) == getattr(p, name)
        assert [float(v) for v in row["nll_by_seed"].split()] == list(p.nll_by_seed)
        assert row["factor"] == ("" if p.factor is None else str(p.factor))
        for name in ("difference", "gain", "from_first", "above_truncation"):
            found = tuple(float(row[name + end] or "nan") for end in ("", "_low", "_high"))
            np.testing.assert_array_equal(found, getattr(p, name) or (math.nan,) * 3)
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
    curve = next(c for c in comparison.newest if c.name == "yarn-4")
    p = next(p for p in curve.points if (p.protocol, p.length) == ("same_tokens", 64))
    (line,) = re.findall(r"^\| a \(2 seeds\) \|.* yarn-4 \|.* none \|$", text, re.MULTILINE)
    assert line.startswith("| a (2 seeds) | yarn-4 | ")
    loss = Estimate(p.nll, p.ci_low, p.ci_high)
    interval = interval_text(loss).replace("[", r"\[").replace("]", r"\]")
    assert line.endswith(f"| {p.ppl:.2f} {interval} | none |")
    assert rf"| {signed_text(p.difference.value)} \[{signed_text(p.difference.low)}, " in text
    assert "| b | trained | " in text.partition("The difference from the same scaling")[2]
    sources = "| a (2 seeds) | a-s0 (0), a-s1 (1) | 50, 100 | 16 | demo | c0ffee |"
    assert f"{sources} model.hidden_size 16 |\n" in text
    # every row of a table has as many cells as its heading
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({line.count("|") for line in block.splitlines()}) == 1


def test_latex_writes_each_group_once_and_a_row_of_truncation_for_one(sweep_of):
    runs = sweep_of("a_1", model="hidden_size: 32"), sweep_of("b", shift=0.5)
    first, *_, second = comparison_latex(compared(*runs)).split("\\begin{tabular}")[1:]
    heading, *lines = re.findall(r"^  (.*) \\\\$", first, re.MULTILINE)
    assert heading == "runs & scaling & 8 & 16 & 32 & 64 & usable"
    assert [line.split(" & ")[:2] for line in lines] == [
        [r"a\_1", "trained"],
        ["", "yarn-4"],
        ["b", "trained"],
        ["", "yarn-4"],
    ]
    assert "usable" not in second  # whole_window scores other tokens
    found = compared(runs[0])
    (line,) = (x for x in comparison_latex(found).splitlines() if "truncation &" in x)
    points = {(p.protocol, p.length): p for p in found.curves[0].points}
    value = f"{points['same_tokens', 16].ppl:.2f}"
    assert line.removesuffix(r" \\").split(" & ") == ["  truncation", "", *[value] * 3, ""]


def test_bits_per_byte_that_are_not_known_are_refused(sweep_of):
    (sweep,) = read(sweep_of("one"))
    unknown = [replace(sweep, rows=[row._replace(bpb=None) for row in sweep.rows])]
    with pytest.raises(UserError, match=r"^show: these results have no bits per byte"):
        compare(unknown, [], CompareConfig(show="bits_per_byte"))
    compare(unknown, [], CompareConfig(show="nats", resamples=50))


def test_differences_that_three_decimals_do_not_show_are_zero(sweep_of):
    estimates = {
        8: Estimate(-0.0004, -0.00049, 0.0),
        16: Estimate(0.0, 0.0, 0.0),
        32: Estimate(-0.0001, -0.02, 0.0003),
        64: Estimate(0.0006, -0.0004, 0.0016),
    }
    one = compared(sweep_of("one"))
    curves = [
        replace(c, points=tuple(replace(p, above_truncation=estimates[p.length]) for p in c.points))
        for c in one.curves
    ]
    found = replace(one, curves=curves)
    text = comparison_markdown(found).partition("The loss above truncation")[2]
    cells = r"0.000 | 0.000 | 0.000 \[−0.020, 0.000\] | +0.001 \[0.000, +0.002\] |"
    assert f"| yarn-4 | {cells}" in text


def test_losses_above_truncation_are_listed_instead_of_perplexities(sweep_of):
    runs = sweep_of("one"), sweep_of("two", shift=-0.5, model="hidden_size: 32")
    names = {"two": "wide", "yarn-4": "YaRN"}
    text = comparison_markdown(compared(*runs, show="above_truncation", labels=names))
    # the second run's zero is truncation of the first one's model, too
    (wide,) = re.findall(r"^\| wide \| YaRN \| (.*) \|$", text, re.MULTILINE)[:1]
    values = [float(cell.replace("−", "-").split()[0].strip("*")) for cell in wide.split(" | ")[:4]]
    shift = values[1] - 0.25
    assert shift == pytest.approx(-0.5, abs=0.05)
    assert values == pytest.approx([0.5 + shift, 0.25 + shift, 0.125 + shift, 0.375 + shift])
    assert "Nats per token above truncation by context length" in text
    assert "Nats per token, as truncation scores other tokens, by length of adjacent" in text
    # the first group's own truncation is everyone's, so its loss above it is listed once
    own = text.partition("truncation to the window of the same runs")[2].partition("\n\n#")[0]
    assert set(re.findall(r"^\| (one|wide) ", own, re.MULTILINE)) == {"wide"}
    with pytest.raises(UserError, match=r"^labels: yarn is no curve or run; there are trained, "):
        compared(*runs, labels={"yarn": "YaRN"})
    with pytest.raises(UserError, match=r"^show: these results do not have the loss at the window"):
        compared(sweep_of("three", protocols=("whole_window",)), show="above_truncation")


@pytest.fixture(autouse=True)
def quick_figure(monkeypatch):
    """Write an empty figure, because the real one is slow and not what is tested."""
    monkeypatch.setattr("rope_jax.report.comparison.draw_comparison", lambda _: Figure((1, 1)))


@pytest.fixture
def run_command(monkeypatch, capsys, tmp_path):
    """Return a function that runs the command and returns (exit status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["compare", *words, *["resamples=50"] * bool(words)])
        with pytest.raises(SystemExit) as caught:
            cli.run(command)
        return caught.value.code, *capsys.readouterr()

    return run


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_same_sweeps_replace_their_comparison_and_say_so(
    sweep_of, run_command, tmp_path, monkeypatch
):
    sweep_of("one")
    sweep_of("two", seed=1)
    code, out, err = run_command("one", "two/evals/demo", "output=new/place")
    assert (code, err) == (0, "")
    assert "(2 seeds)" in out
    assert "replaced" not in out
    place = tmp_path / "new/place"
    assert set(contents(place)) == set(FILES)
    assert out.splitlines()[-1].endswith(f" -m webbrowser {(place / 'comparison.html').as_uri()}")
    sources = place / "comparison.json"
    assert json.loads(sources.read_text())["sweeps"] == [
        "../../one/evals/demo",
        "../../two/evals/demo",
    ]
    # in another order, by another path, and beside other files
    (place / "mine.txt").write_text("mine")
    code, out, _ = run_command("two", str(tmp_path / "one"), "output=new/place")
    assert "replaced new/place/comparison.png, " in out
    assert set(contents(place)) == {*FILES, "mine.txt"}
    # and of others are refused
    before = contents(place)
    code, out, err = run_command("one", "output=new/place")
    assert (code, out) == (2, "")
    assert err.startswith("compare: output: new/place already holds a comparison of other swee")
    assert err.endswith("or replace it with replace=true\n")
    # as is one that does not say what it was made of
    for content in ('{"sweeps": {"x": 1}}', '{"sweeps": 3}', None):
        sources.unlink() if content is None else sources.write_text(content)
        assert run_command("one", "two", "output=new/place")[::2] == (2, err)
        sources.write_bytes(before["comparison.json"])
        assert contents(place) == before
    # without the extra `page` no old page stays beside the new files
    monkeypatch.setattr("rope_jax.report.comparison.is_installed", lambda package: False)
    code, out, err = run_command("one", "output=new/place", "replace=true")
    assert set(contents(place)) == {*FILES, "mine.txt"} - {"comparison.html"}
    assert out.endswith("next: pip install 'rope-jax[page]'  # to write comparison.html\n")
    assert (code, err) == (0, "")
    assert len(json.loads(sources.read_text())["sweeps"]) == 1
    # what was moved together is recognized
    run_command("one", "output=one/compared")
    (tmp_path / "one").rename(tmp_path / "three")
    code, out, _ = run_command("three", "output=three/compared")
    assert code == 0
    assert "replaced three/compared/comparison.png, " in out


def test_mismatches_are_refused_unless_forced(sweep_of, run_command, tmp_path):
    sweep_of("one")
    sweep_of("two", bos="none")
    code, out, err = run_command("one", "two")
    assert (code, out) == (2, "")
    assert err.startswith("compare: bos: one/demo has document, two/demo has none; sweep them")
    assert err.endswith("with force=true they are drawn anyway, and marked\n")
    assert not (tmp_path / "comparison").exists()
    code, out, err = run_command("one", "two", "force=true")
    assert (code, err) == (0, "")
    assert "† cannot be compared" in out
    text = (tmp_path / "comparison/comparison.md").read_text()
    assert "two †" in text
    assert "bos: one/demo has document, two/demo has none" in text


def test_bad_input_is_reported_in_one_line(sweep_of, run_command, tmp_path):
    sweep_of("one")
    (tmp_path / "empty/evals").mkdir(parents=True)
    for *words, says in (
        ("the following arguments are required: RUN; see compare",),
        ("nowhere", "nowhere: no such folder"),
        ("empty", "empty: has no sweep; run rope-jax sweep on it first"),
        ("one", "output=" + "x" * 300, "xxx"),
        ("one", "sweep=other", "sweep: one has no sweep other; it has demo"),
        ("one", "output=one/config.yaml", "output: one/config.yaml is a file; name a folder"),
        ("one", "resample=5", "overrides: resample: unknown key; did you mean resamples?"),
    ):
        code, out, err = run_command(*words)
        assert (code, out) == (2, "")
        assert err.startswith(f"compare: {says}")
        assert err.count("\n") == 1
    assert not (tmp_path / "comparison").exists()
