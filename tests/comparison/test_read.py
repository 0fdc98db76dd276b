"""The sweeps that a path stands for, and their results, which are read completely or refused."""

import re
import shutil
from pathlib import Path

import pytest

from rope_jax.comparison.read import find_sweeps, read_sweep
from rope_jax.errors import UserError
from rope_jax.results.statistics import Sums
from tests.comparison.conftest import compared


def test_a_run_stands_for_its_sweeps(sweep_of, monkeypatch):
    run = sweep_of("one", name="a")
    sweep_of("one", name="b")
    a, b = run / "evals/a", run / "evals/b"
    shutil.copytree(a, run / "evals/.c.new")  # left by a killed process
    (run / "evals/.c.100.journal").write_text("")
    (run / "evals/stray").mkdir()
    assert find_sweeps([run], None) == [a, b]
    assert find_sweeps([run], "b") == [b]
    assert find_sweeps([b, run, run], None) == [b, a]
    with pytest.raises(UserError, match=r"^sweep: .* has no sweep c; it has a, b$"):
        find_sweeps([run], "c")
    with pytest.raises(UserError, match=r"is not the sweep b; give its run instead"):
        find_sweeps([a], "b")
    # sweeps of one run are not pooled, and recognized by any path
    monkeypatch.chdir(a)
    labels = [group.label for group in compared(Path("."), Path("../b")).groups]
    assert labels == ["one a", "one b"]


def test_without_a_name_only_sweeps_that_all_runs_have_are_used(sweep_of):
    one, two = sweep_of("one", name="a"), sweep_of("two", name="a", seed=1)
    sweep_of("one", name="b")
    assert find_sweeps([one, two], None) == [one / "evals/a", two / "evals/a"]
    sweep_of("two", name="b", seed=1)
    assert len(find_sweeps([one, two], None)) == 4


def test_written_results_are_read_back(sweep_of):
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


@pytest.mark.parametrize("name", ["results.csv", "documents.csv", "summary.json", "sweep.yaml"])
def test_a_missing_file_is_named(sweep_of, name):
    folder = sweep_of("one", own=None) / "evals/demo"
    (folder / name).unlink()
    with pytest.raises(UserError, match=f"{name}.*; sweep again"):
        read_sweep(folder)


def test_what_no_sweep_writes_is_refused(sweep_of):
    folder = sweep_of("one", protocols=("same_tokens",)) / "evals/demo"
    for old, new in (
        ("same_tokens,8,5,8", "same_tokens,x,5,8"),
        ("same_tokens,8", "junk,8"),
        (",corpus,", ","),  # as of another version
        ("same_tokens,64,61,64,", ""),  # cut off
        *((None, text) for text in ("junk", "null", '{"run": "one"}')),
    ):
        path = folder / ("summary.json" if old is None else "results.csv")
        text = path.read_text()
        assert old is None or old in text
        path.write_text(new if old is None else text.replace(old, new, 1))
        says = f"{path}: is damaged, or was made by another version; sweep again"
        with pytest.raises(UserError, match=f"^{re.escape(says)}$"):
            read_sweep(folder)
        path.write_text(text)


def test_a_config_that_is_edited_after_the_sweep_changes_nothing(sweep_of):
    run = sweep_of("one", own=None)
    folder, config = run / "evals/demo", run / "config.yaml"
    shutil.copy(config, folder / "run.yaml")
    before = read_sweep(folder)
    config.write_text(config.read_text().replace("hidden_size: 16", "hidden_size: 17"))
    assert read_sweep(folder).experiment == before.experiment
    config.write_text("seed: 1x")
    assert read_sweep(folder).baselines == before.baselines
