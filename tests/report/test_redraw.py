"""scripts/plot_sweep.py draws a sweep's figures again from its folder or its table."""

import shutil
import sys
from pathlib import Path

import pytest

from rope_jax import cli
from rope_jax.errors import UserError
from scripts import plot_sweep


@pytest.fixture
def folder(sweep_of, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return sweep_of("one", steps=(50, 100), protocols=("same_tokens",)) / "evals" / "demo"


@pytest.fixture
def drawn(monkeypatch):
    """Collect what is drawn instead of drawing it."""
    calls = []

    def draw(comparison):
        calls.append((comparison.sweeps[0].rows, comparison.curves, comparison.how.figure_width))
        return {}

    monkeypatch.setattr("rope_jax.report.figure.draw_sweep", draw)
    return calls


def test_both_figures_of_a_folder_are_written_in_three_formats(folder, capsys, monkeypatch):
    saved = []
    monkeypatch.setattr(
        "rope_jax.plots.saving.save_output", lambda made, path: saved.append((made, path.name))
    )
    plot_sweep.main([str(folder), "figure_width=column", "output=mine.png"])
    assert [(made.get_figwidth(), name) for made, name in saved] == [
        *((3.3, "mine.png"), (3.3, "mine-steps.png"))
    ]
    names = [f"{name}.{end}" for name in ("mine", "mine-steps") for end in ("png", "pdf", "svg")]
    assert capsys.readouterr().out == f"{', '.join(names)}\n"


def test_a_table_alone_gives_the_same_figure_as_its_folder(folder, drawn, tmp_path):
    table = tmp_path / "mine.csv"
    shutil.copy(folder / "results.csv", table)
    plot_sweep.main([str(folder)])
    plot_sweep.main([str(folder / "results.csv")])  # which its summary is beside
    plot_sweep.main([str(table), "window=16"])
    (rows, curves, width), (same, same_curves, _), (others, other_curves, _) = drawn
    assert rows == same == others
    assert width == "page"
    assert [(one.step, one.window) for one in curves[::2]] == [(100, 16), (50, 16)]
    for one, again, other in zip(curves, same_curves, other_curves, strict=True):
        assert (one.name, one.step, one.window) == (other.name, other.step, other.window)
        assert one.points == again.points == other.points
        assert one.truncation == again.truncation == pytest.approx(other.truncation, rel=1e-12)


def test_a_summary_of_other_steps_is_refused(folder):
    text = (folder / "results.csv").read_text()
    for step in (50, 100):
        text = text.replace(f",{step},", f",{step + 1},")
    (folder / "results.csv").write_text(text)
    with pytest.raises(UserError, match="names no step of the results; sweep again"):
        plot_sweep.main([str(folder / "results.csv")])


def test_bad_input_is_reported_in_one_line(folder, capsys, monkeypatch):
    table = (folder / "results.csv").read_text()
    Path("one.csv").write_text(table)
    Path("odd.csv").write_text(table.replace(",same_tokens,8,", ",same,8,", 1))
    for *words, says in (
        ("nowhere.csv", "nowhere.csv: cannot be read (No such file or directory)"),
        ("odd.csv", "window=16", "odd.csv: line 2: protocol should be same_tokens, "),
        ("one.csv", "window: one.csv does not say at which window the model was trained"),
        ("one.csv", "window=16", "output=a.pdf", "output: a.pdf should end in .png"),
        (
            *("one/evals/demo/results.csv", "window=16"),
            "window: one/evals/demo/summary.json says at which window the model was trained; ",
        ),
    ):
        monkeypatch.setattr(sys, "argv", ["plot_sweep.py", *words])
        with pytest.raises(SystemExit) as caught:
            cli.run(plot_sweep.main)
        shown = capsys.readouterr()
        assert (caught.value.code, shown.out) == (2, "")
        assert shown.err.startswith(f"plot_sweep.py: {says}")
        assert shown.err.count("\n") == 1
