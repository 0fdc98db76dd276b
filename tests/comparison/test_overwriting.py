"""A comparison is not replaced by one of other sweeps without a word."""

import json
import sys

import pytest
from matplotlib.figure import Figure

from rope_jax import cli
from rope_jax.commands import compare as command
from rope_jax.report.comparison import FILES


@pytest.fixture
def run_command(monkeypatch, capsys, tmp_path):
    """Return a function that runs compare.py and returns (exit status, stdout, stderr)."""

    def run(*words):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["compare.py", *words, "resamples=20"])
        # the figure is slow, and not what is tested
        monkeypatch.setattr("rope_jax.report.comparison.draw_comparison", lambda _: Figure())
        with pytest.raises(SystemExit) as caught:
            cli.run(command.main)
        return caught.value.code, *capsys.readouterr()

    return run


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_same_sweeps_replace_their_comparison_and_say_so(sweep_of, run_command, tmp_path):
    sweep_of("one")
    sweep_of("two", seed=1)
    code, out, _ = run_command("one", "two")
    assert code == 0
    assert "replaced" not in out
    place = tmp_path / "comparison"
    assert set(contents(place)) == set(FILES)
    sources = json.loads((place / "comparison.json").read_text())["sweeps"]
    assert sources == {
        f"../{run}/evals/demo": {"run": run, "sweep": "demo", "seed": seed, "steps": [100]}
        for seed, run in enumerate(("one", "two"))
    }
    # in another order, and by another path
    code, out, _ = run_command("two/evals/demo", str(tmp_path / "one"))
    assert code == 0
    assert "replaced comparison/comparison.png, " in out


def test_a_comparison_of_other_sweeps_is_refused_and_kept(sweep_of, run_command, tmp_path):
    for number, run in enumerate("abcdef"):
        sweep_of(run, seed=number)
    run_command(*"abcdef")
    before = contents(tmp_path / "comparison")
    code, out, err = run_command("a", "b")
    assert (code, out) == (2, "")
    assert err == (
        "compare.py: output: comparison already holds a comparison of other sweeps; name another "
        "folder with output=, or replace it with replace=true\n"
    )
    assert contents(tmp_path / "comparison") == before
    code, out, err = run_command("a", "b", "replace=true")
    assert (code, err) == (0, "")
    assert "replaced comparison/comparison.png, " in out
    assert len(json.loads((tmp_path / "comparison/comparison.json").read_text())["sweeps"]) == 2


@pytest.mark.parametrize(
    "content", [None, "", "[]", "{}", '{"sweeps": {"x": 1}}', '{"sweeps": 3}', "\0"]
)
def test_a_comparison_that_does_not_say_what_it_was_made_of_is_refused(
    sweep_of, run_command, tmp_path, content
):
    sweep_of("one")
    place = tmp_path / "comparison"
    place.mkdir()
    (place / "comparison.csv").write_text("of an earlier version\n")
    if content is not None:
        (place / "comparison.json").write_text(content)
    before = contents(place)
    code, out, err = run_command("one")
    assert (code, out) == (2, "")
    assert err.startswith("compare.py: output: comparison already holds a comparison of other sw")
    assert err.count("\n") == 1
    assert contents(place) == before


def test_a_folder_with_other_files_is_written_to(sweep_of, run_command, tmp_path):
    sweep_of("one")
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures/mine.txt").write_text("mine")
    code, out, _ = run_command("one", "output=figures")
    assert code == 0
    assert "replaced" not in out
    assert set(contents(tmp_path / "figures")) == {*FILES, "mine.txt"}


def test_what_was_moved_together_is_recognized(sweep_of, run_command, tmp_path):
    sweep_of("one")
    run_command("one", "output=one/compared")
    (tmp_path / "one").rename(tmp_path / "two")
    code, out, _ = run_command("two", "output=two/compared")
    assert code == 0
    assert "replaced two/compared/comparison.png, " in out
