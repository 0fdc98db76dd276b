"""The sweeps that a path stands for."""

import errno
import shutil
from pathlib import Path

import pytest

from rope_jax.comparison.read import find_sweeps
from rope_jax.errors import UserError
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


def test_a_sweep_whose_replacement_was_interrupted_is_put_in_place(sweep_of, monkeypatch):
    run = sweep_of("one")
    evals = run / "evals"
    for path in (run, evals / "demo"):
        (evals / "demo").rename(evals / ".demo.old")
        shutil.copytree(evals / ".demo.old", evals / ".demo.new")
        (evals / ".demo.new/new").touch()
        assert find_sweeps([path], None) == [evals / "demo"]
        assert (evals / "demo/new").exists()
        assert [entry.name for entry in evals.iterdir()] == ["demo"]
        (evals / "demo/new").unlink()
    # which is reported if it cannot be done
    (evals / "demo").rename(evals / ".demo.old")

    def read_only(*_):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "rename", read_only)
    with pytest.raises(UserError, match=r"evals/demo: a killed sweep left it under a"):
        find_sweeps([evals.parent], None)
    assert (evals / ".demo.old/results.csv").exists()
