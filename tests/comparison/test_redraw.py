"""scripts/plot_sweep.py draws a sweep's figures again from its folder or its table."""

import csv
import shutil
import sys

import pytest
from PIL import Image

from rope_jax import cli
from rope_jax.errors import UserError
from rope_jax.report import figure as sweep_figures
from scripts import plot_sweep


@pytest.fixture
def folder(sweep_of, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return sweep_of("one", steps=(50, 100), protocols=("same_tokens",)) / "evals" / "demo"


@pytest.fixture
def drawn(monkeypatch):
    """Collect what is drawn instead of drawing it."""
    calls = []

    def draw(rows, checkpoints, *, width):
        calls.append((rows, checkpoints, width))
        return {}

    monkeypatch.setattr(sweep_figures, "draw_sweep", draw)
    return calls


def test_a_folder_gets_both_figures_in_three_formats(folder, capsys):
    plot_sweep.main([str(folder), "figure_width=column"])
    names = [f"{name}.{end}" for name in ("curve", "steps") for end in ("png", "pdf", "svg")]
    assert capsys.readouterr().out == f"{', '.join(str(folder / name) for name in names)}\n"
    for name in ("curve", "steps"):
        with Image.open(folder / f"{name}.png") as image:
            assert image.size[0] == 660  # 3.3 inches
        assert (folder / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        assert "<svg" in (folder / f"{name}.svg").read_text()


def test_a_table_alone_gives_the_same_figure_as_its_folder(folder, drawn, tmp_path):
    table = tmp_path / "mine.csv"
    shutil.copy(folder / "results.csv", table)
    plot_sweep.main([str(folder)])
    plot_sweep.main([str(table), "window=16"])
    (rows, checkpoints, width), (same, others, _) = drawn
    assert width == "page"
    for one, other in zip(rows, same, strict=True):
        assert (one.name, one.kind, one.step, one.auto, one.factor) == (
            *(other.name, other.kind, other.step, other.auto, other.factor),
        )
        assert (one.nll, one.ci_low, one.ci_high, one.bpb, one.units) == (
            *(other.nll, other.ci_low, other.ci_high, other.bpb, other.units),
        )
    for one, other in zip(checkpoints, others, strict=True):
        assert (one.run, one.step, one.window) == (other.run, other.step, other.window)
        assert one.nll_at_window == pytest.approx(other.nll_at_window, rel=1e-12)


def test_results_with_their_summary_take_the_window_from_there(folder, drawn):
    plot_sweep.main([str(folder)])
    plot_sweep.main([str(folder / "results.csv")])
    (_, checkpoints, _), (_, same, _) = drawn
    assert [(one.step, one.window) for one in same] == [(100, 16), (50, 16)]
    assert same == checkpoints


def test_a_summary_of_other_steps_is_refused(folder):
    text = (folder / "results.csv").read_text()
    for step in (50, 100):
        text = text.replace(f",{step},", f",{step + 1},")
    (folder / "results.csv").write_text(text)
    with pytest.raises(UserError, match="names no step of the results; sweep again"):
        plot_sweep.main([str(folder / "results.csv")])


def test_the_window_follows_from_automatic_factors(folder, drawn, tmp_path):
    table = tmp_path / "auto.csv"
    with (folder / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:  # yarn at 4 times the window of 16, by length
        if row["name"] == "yarn-4":
            row |= {"auto": "True", "factor": str(max(1.0, int(row["length"]) / 16))}
        for column in ("units", "corpus", "map"):  # an earlier version had no such columns
            del row[column]
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    plot_sweep.main([str(table)])
    assert {checkpoint.window for checkpoint in drawn[0][1]} == {16}


def test_the_output_names_the_curve(folder, tmp_path, monkeypatch):
    made = {}
    monkeypatch.setattr(
        sweep_figures, "save_output", lambda figure, path: made.update({path: figure})
    )
    plot_sweep.main([str(folder), f"output={tmp_path}/mine.png"])
    assert [path.name for path in made] == ["mine.png", "mine-steps.png"]


@pytest.mark.parametrize(
    ("edit", "words", "says"),
    [
        (None, ["nowhere.csv"], "nowhere.csv: cannot be read (No such file or directory)"),
        (
            ("name,", "nom,"),
            [],
            "one.csv: has no column name; it is damaged ",
        ),
        (("trained,none", "trained"), [], "one.csv: line 2 is incomplete"),
        (
            (",same_tokens,8,", ",same_tokens,x,"),
            [],
            "one.csv: line 2: length: should be a valid integer, ",
        ),
        ((",same_tokens,8,", ",same,8,"), [], "one.csv: line 2: protocol should be same_tokens, "),
        (None, ["one.csv"], "window: one.csv does not say at which window the model was trained"),
        (None, ["one.csv", "window=16", "output=a.pdf"], "output: a.pdf should end in .png"),
        (
            None,
            ["one/evals/demo", "window=16"],
            "window: one/evals/demo/summary.json says at which window the model was trained; ",
        ),
        (
            None,
            ["one/evals/demo/results.csv", "window=16"],
            "window: one/evals/demo/summary.json says at which window the model was trained; ",
        ),
        (None, ["one.csv", "window=0"], "overrides: window: should be greater than 0, not 0"),
    ],
)
def test_bad_input_is_reported_in_one_line(
    folder, capsys, monkeypatch, tmp_path, edit, words, says
):
    text = (folder / "results.csv").read_text()
    (tmp_path / "one.csv").write_text(text.replace(*edit, 1) if edit else text)
    monkeypatch.setattr(sys, "argv", ["plot_sweep.py", *(words or ["one.csv", "window=16"])])
    with pytest.raises(SystemExit) as caught:
        cli.run(plot_sweep.main)
    shown = capsys.readouterr()
    assert (caught.value.code, shown.out) == (2, "")
    assert shown.err.startswith(f"plot_sweep.py: {says}")
    assert shown.err.count("\n") == 1
