"""Results are read completely, or refused."""

import shutil
from pathlib import Path

import pytest

from rope_jax.comparison.find import find_sweeps
from rope_jax.comparison.read import read_sweep
from rope_jax.errors import UserError
from rope_jax.evaluation.statistics import Sums


def test_what_was_written_is_read(sweep_of):
    run = sweep_of("one", seed=3, steps=(50, 100))
    sweep = read_sweep(run / "evals/demo")
    assert (sweep.run, sweep.seed, sweep.label) == ("one", 3, "one/demo")
    assert sweep.windows == {50: 16, 100: 16}
    assert len(sweep.rows) == 2 * 2 * 4 * 2  # scalings, protocols, lengths, steps
    row = sweep.rows[-1]
    assert (row.name, row.factor, row.auto, row.stride) == ("yarn-4", 4.0, False, 64)
    assert (row.length, row.step, row.documents, row.reliable) == (64, 100, 24, True)
    sums = sweep.sums["yarn-4", "whole_window", 64, 100]
    assert isinstance(sums, Sums)
    assert sums.mean() == pytest.approx(row.nll, rel=1e-12)
    assert '"beta_fast":32' in sweep.settings["yarn-4"]


def test_the_sums_of_the_baseline_are_read_though_it_is_not_a_curve(sweep_of):
    sweep = read_sweep(sweep_of("one", own=None) / "evals/demo")
    assert {row.name for row in sweep.rows} == {"yarn-4"}
    assert {key for key in sweep.sums if key[0] == "trained"} == {
        ("trained", "same_tokens", 16, 100)
    }


def test_runs_that_differ_in_seed_and_folder_are_one_experiment(sweep_of):
    one, two, three = (
        read_sweep(sweep_of(*args, **more) / "evals/demo").experiment
        for args, more in (
            (("a",), {}),
            (("b",), {"seed": 1}),
            (("c",), {"model": "hidden_size: 32"}),
        )
    )
    assert one == two
    assert one != three


def test_a_path_may_be_written_in_any_way(sweep_of, monkeypatch, tmp_path):
    run = sweep_of("one")
    plain = read_sweep(run / "evals/demo")
    (tmp_path / "link").symlink_to(run / "evals/demo")
    monkeypatch.chdir(run / "evals/demo")
    for way in (".", "../demo", "../../../one/evals/demo/", "../../../link"):
        (folder,) = find_sweeps([Path(way)], None)
        sweep = read_sweep(folder)
        assert (sweep.label, sweep.experiment) == ("one/demo", plain.experiment)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("summary.json", '"window": 16', '"window": 32'),
        ("summary.json", '"step": 100', '"step": 50'),
        ("summary.json", '"run": "one"', '"run": "other"'),
        ("summary.json", '"nll_at_window": ', '"nll_at_window": 9'),
        ("results.csv", ",one,0,", ",other,0,"),
        ("results.csv", ",one,0,", ",one,1,"),
    ],
)
def test_one_value_of_another_sweep_is_refused(sweep_of, name, old, new):
    path = sweep_of("one") / "evals/demo" / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(UserError, match=r"its files belong to different sweeps; sweep again"):
        read_sweep(path.parent)


@pytest.mark.parametrize("name", ["results.csv", "documents.csv", "summary.json", "sweep.yaml"])
def test_a_cut_file_is_refused(sweep_of, name):
    """Wherever a file is cut, it is refused with the folder's name, or the results are the same."""
    folder = sweep_of("one", steps=(50, 100)) / "evals/demo"
    whole = (folder / name).read_bytes()
    good = read_sweep(folder)
    for end in [0, 1, *range(7, len(whole), max(1, len(whole) // 150)), len(whole) - 2]:
        (folder / name).write_bytes(whole[:end])
        said = ""
        try:
            found = read_sweep(folder)
        except UserError as error:
            said = str(error)
        if said:
            assert str(folder) in said
            assert "\n" not in said
        else:  # what was cut off is not read
            assert name in ("sweep.yaml", "summary.json")
            assert found.rows == good.rows
            assert found.windows == good.windows
    (folder / name).unlink()
    with pytest.raises(UserError, match=name):
        read_sweep(folder)


@pytest.mark.parametrize("name", ["results.csv", "documents.csv"])
def test_files_that_lack_lines_are_refused(sweep_of, name):
    folder = sweep_of("one") / "evals/demo"
    lines = (folder / name).read_text().splitlines(keepends=True)
    for gone in (1, len(lines) // 2, len(lines) - 1):
        (folder / name).write_text("".join(lines[:gone] + lines[gone + 1 :]))
        with pytest.raises(UserError, match=r"disagree"):
            read_sweep(folder)
    (folder / name).write_text("".join(lines[: len(lines) // 2]))
    with pytest.raises(UserError, match=r"disagree"):
        read_sweep(folder)


def test_files_of_two_sweeps_are_refused(sweep_of):
    one, two = (sweep_of(run, shift=s) / "evals/demo" for run, s in (("one", 0), ("two", 0.5)))
    shutil.copy(two / "documents.csv", one / "documents.csv")
    with pytest.raises(UserError, match=r"results.csv and documents.csv disagree"):
        read_sweep(one)


def test_a_damaged_line_is_named(sweep_of):
    folder = sweep_of("one") / "evals/demo"
    text = (folder / "results.csv").read_text()
    (folder / "results.csv").write_text(text.replace("same_tokens,8,5,8", "same_tokens,x,5,8", 1))
    with pytest.raises(UserError, match=r"results.csv: line 2: invalid literal"):
        read_sweep(folder)
    (folder / "results.csv").write_text(text.replace(",corpus,", ",", 1))
    with pytest.raises(
        UserError, match=r"has no column corpus; it is damaged or was made by another"
    ):
        read_sweep(folder)
