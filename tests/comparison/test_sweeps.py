"""Results are found and read whole, or refused."""

import shutil
from pathlib import Path

import pytest

from rope_jax.comparison.sweeps import find, read
from rope_jax.errors import UserError
from rope_jax.evaluation.statistics import Sums


def test_what_was_written_is_read(sweep_of):
    run = sweep_of("one", seed=3, steps=(50, 100))
    sweep = read(run / "evals/demo")
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


def test_the_baseline_is_there_though_it_is_no_curve(sweep_of):
    sweep = read(sweep_of("one", with_trained=False) / "evals/demo")
    assert {row.name for row in sweep.rows} == {"yarn-4"}
    assert {key for key in sweep.sums if key[0] == "trained"} == {
        ("trained", "same_tokens", 16, 100)
    }


def test_seeds_and_places_are_no_other_experiment(sweep_of):
    one, two, three = (
        read(sweep_of(*args, **more) / "evals/demo").experiment
        for args, more in (
            (("a",), {}),
            (("b",), {"seed": 1}),
            (("c",), {"model": "hidden_size: 32"}),
        )
    )
    assert one == two
    assert one != three


def test_a_run_stands_for_its_sweeps(sweep_of):
    run = sweep_of("one", name="a")
    sweep_of("one", name="b")
    a, b = run / "evals/a", run / "evals/b"
    shutil.copytree(a, run / "evals/.c.new")  # what a killed sweep left
    (run / "evals/.c.100.journal").write_text("")
    (run / "evals/stray").mkdir()
    assert find([run], None) == [a, b]
    assert find([run], "b") == [b]
    assert find([b, run, run], None) == [b, a]
    with pytest.raises(UserError, match=r"^sweep: .* has no sweep c; it has a, b$"):
        find([run], "c")
    with pytest.raises(UserError, match=r"is another sweep than b"):
        find([a], "b")


def test_without_a_name_the_sweep_that_all_have_is_meant(sweep_of):
    one, two = sweep_of("one", name="a"), sweep_of("two", name="a", seed=1)
    sweep_of("one", name="b")
    assert find([one, two], None) == [one / "evals/a", two / "evals/a"]
    sweep_of("two", name="b", seed=1)
    assert len(find([one, two], None)) == 4


def test_a_path_may_be_written_in_any_way(sweep_of, monkeypatch, tmp_path):
    run = sweep_of("one")
    plain = read(run / "evals/demo")
    (tmp_path / "link").symlink_to(run / "evals/demo")
    monkeypatch.chdir(run / "evals/demo")
    for way in (".", "../demo", "../../../one/evals/demo/", "../../../link"):
        (folder,) = find([Path(way)], None)
        sweep = read(folder)
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
    with pytest.raises(UserError, match=r"its files are of different sweeps; sweep again"):
        read(path.parent)


def test_what_holds_no_results_is_named(sweep_of, tmp_path):
    with pytest.raises(UserError, match=r"nowhere: neither a run that was swept nor a sweep's"):
        find([tmp_path / "nowhere"], None)
    (tmp_path / "run/evals").mkdir(parents=True)
    with pytest.raises(UserError, match=r"run: has no sweep; run eval_ppl.py on it first"):
        find([tmp_path / "run"], None)


@pytest.mark.parametrize("name", ["results.csv", "documents.csv", "summary.json", "sweep.yaml"])
def test_no_file_is_half_read(sweep_of, name):
    """Cut at any place, or absent: refused, with the folder's name. Never other figures."""
    folder = sweep_of("one", steps=(50, 100)) / "evals/demo"
    whole = (folder / name).read_bytes()
    good = read(folder)
    for end in [0, 1, *range(7, len(whole), max(1, len(whole) // 150)), len(whole) - 2]:
        (folder / name).write_bytes(whole[:end])
        said = ""
        try:
            found = read(folder)
        except UserError as error:
            said = str(error)
        if said:
            assert str(folder) in said
            assert "\n" not in said
        else:  # what was cut off is nothing that is read
            assert name in ("sweep.yaml", "summary.json")
            assert found.rows == good.rows
            assert found.windows == good.windows
    (folder / name).unlink()
    with pytest.raises(UserError, match=name):
        read(folder)


@pytest.mark.parametrize("name", ["results.csv", "documents.csv"])
def test_files_that_lack_lines_are_refused(sweep_of, name):
    folder = sweep_of("one") / "evals/demo"
    lines = (folder / name).read_text().splitlines(keepends=True)
    for gone in (1, len(lines) // 2, len(lines) - 1):
        (folder / name).write_text("".join(lines[:gone] + lines[gone + 1 :]))
        with pytest.raises(UserError, match=r"do not agree"):
            read(folder)
    (folder / name).write_text("".join(lines[: len(lines) // 2]))
    with pytest.raises(UserError, match=r"do not agree"):
        read(folder)


def test_files_of_two_sweeps_are_refused(sweep_of):
    one, two = (sweep_of(run, shift=s) / "evals/demo" for run, s in (("one", 0), ("two", 0.5)))
    shutil.copy(two / "documents.csv", one / "documents.csv")
    with pytest.raises(UserError, match=r"results.csv and documents.csv do not agree"):
        read(one)


def test_a_damaged_line_is_named(sweep_of):
    folder = sweep_of("one") / "evals/demo"
    text = (folder / "results.csv").read_text()
    (folder / "results.csv").write_text(text.replace("same_tokens,8,5,8", "same_tokens,x,5,8", 1))
    with pytest.raises(UserError, match=r"results.csv: line 2: invalid literal"):
        read(folder)
    (folder / "results.csv").write_text(text.replace(",corpus,", ",", 1))
    with pytest.raises(UserError, match=r"has no column corpus; made by another version"):
        read(folder)
