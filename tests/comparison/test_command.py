"""rope-jax compare: its files are written together, and replaced only by those of its sweeps."""

import json
import sys
from dataclasses import replace

import pytest
from matplotlib.figure import Figure

from rope_jax import cli
from rope_jax.commands import compare as command
from rope_jax.errors import UserError
from rope_jax.report.comparison import FILES, write_comparison
from tests.comparison.conftest import compared


@pytest.fixture(autouse=True)
def quick_figure(monkeypatch):
    """Write an empty figure, because the real one is slow and not what is tested."""
    monkeypatch.setattr("rope_jax.report.comparison.draw_comparison", lambda _: Figure((1, 1)))


@pytest.fixture
def run_command(monkeypatch, capsys, tmp_path):
    """Return a function that runs compare.py and returns (exit status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["compare.py", *words, *["resamples=50"] * bool(words)])
        with pytest.raises(SystemExit) as caught:
            cli.run(command.main)
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
    assert err.startswith("compare.py: output: new/place already holds a comparison of other swee")
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


def test_the_files_are_replaced_together(sweep_of, tmp_path, monkeypatch):
    comparison = compared(sweep_of("one"))
    write_comparison(tmp_path / "out", comparison)
    before = contents(tmp_path / "out")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rope_jax.report.comparison.write_figure", full)
    with pytest.raises(UserError, match=r"^output: .* cannot be written \(No space left on device"):
        write_comparison(tmp_path / "out", replace(comparison, notes=["other"]))
    assert contents(tmp_path / "out") == before


def test_mismatches_are_refused_unless_forced(sweep_of, run_command, tmp_path):
    sweep_of("one")
    sweep_of("two", bos="none")
    code, out, err = run_command("one", "two")
    assert (code, out) == (2, "")
    assert err.startswith("compare.py: bos: one/demo has document, two/demo has none; sweep them")
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
        ("the following arguments are required: RUN; see compare.py",),
        ("nowhere", "nowhere: no such folder"),
        ("empty", "empty: has no sweep; run rope-jax sweep on it first"),
        ("one", "output=" + "x/" * 3000, "output: x/x/x/"),
        ("one", "sweep=other", "sweep: one has no sweep other; it has demo"),
        ("one", "output=one/config.yaml", "output: one/config.yaml is a file; name a folder"),
        ("one", "resample=5", "overrides: resample: unknown key; did you mean resamples?"),
    ):
        code, out, err = run_command(*words)
        assert (code, out) == (2, "")
        assert err.startswith(f"compare.py: {says}")
        assert err.count("\n") == 1
    assert not (tmp_path / "comparison").exists()
