"""Folders are replaced as a whole, whenever the process is killed, and their damage is named."""

import contextlib
import itertools
import shutil
from pathlib import Path

import pytest

from rope_jax.errors import UserError
from rope_jax.runs.directory import RunDirectory
from rope_jax.sealed import (
    finish_replacing,
    locked,
    replacing,
    replacing_folder,
    write_text,
)


class Killed(BaseException):
    """Stands for a kill: nothing handles it."""


def write(folder: Path, text: str) -> None:
    with replacing_folder(folder) as new:
        (new / "a").write_text(text)
        (new / "b").write_text(text)


def read(folder: Path) -> set[str]:
    return {path.read_text() for path in folder.iterdir()}


def killed_at(call: int, after: bool, folder: Path, text: str) -> bool:
    """Write, and be killed before or after the given system call; whether there was that call."""
    calls = itertools.count(1)

    def dying(action):
        def wrapper(*arguments, **options):
            dies = next(calls) == call
            if after or not dies:
                action(*arguments, **options)
            if dies:
                raise Killed

        return wrapper

    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Killed):
        for place, name in ((Path, "rename"), (Path, "mkdir"), (shutil, "rmtree")):
            patch.setattr(place, name, dying(getattr(place, name)))
        write(folder, text)
        return False
    return True


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("there_was_one", [False, True])
def test_a_kill_at_any_point_loses_nothing(tmp_path, there_was_one, after):
    for call in range(1, 20):
        folder = tmp_path / f"{call}" / "sweep"
        if there_was_one:
            write(folder, "old")
        died = killed_at(call, after, folder, "new")
        leftovers = [path.name for path in folder.parent.glob(".*")]
        finish_replacing(folder)
        if folder.exists():
            assert read(folder) in ({"old"}, {"new"})
        else:
            assert not there_was_one
        # a reader leaves alone what may belong to a live writer, and a writer tidies up
        assert not died or set(leftovers) <= {".sweep.new", ".sweep.old", ".sweep.deleted"}
        write(folder, "newest")
        assert read(folder) == {"newest"}
        assert [path.name for path in folder.parent.iterdir()] == ["sweep"]
        if not died:
            return
    pytest.fail("it was killed at every call, so some calls were not tried")


def test_what_is_half_deleted_is_never_put_back(tmp_path, monkeypatch):
    folder = tmp_path / "sweep"
    write(folder, "old")
    rmtree, deleted = shutil.rmtree, []

    def half(path, **options):
        if any(path.iterdir()):
            deleted.append(path)
            (path / "a").unlink()
            raise Killed
        rmtree(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", half)
        with pytest.raises(Killed):
            write(folder, "new")
    assert deleted
    rmtree(folder)  # by the user
    finish_replacing(folder)
    assert not folder.exists()
    with replacing_folder(folder) as new:
        (new / "a").write_text("newest")
        finish_replacing(folder)  # by a reader
        assert not folder.exists()
    assert read(folder) == {"newest"}
    assert [path.name for path in tmp_path.iterdir()] == ["sweep"]


def test_links_are_replaced_and_their_targets_stay(tmp_path):
    target, folder = tmp_path / "elsewhere", tmp_path / "sweep"
    write(target, "old")
    folder.symlink_to(target)
    write(folder, "new")
    assert (read(folder), read(target)) == ({"new"}, {"old"})
    mine = target / "a"
    (tmp_path / ".config.tmp.yaml").symlink_to(mine)  # the temporary name of a file
    write_text(tmp_path / "config.yaml", "a: 1")
    assert mine.read_text() == "old"
    assert not (tmp_path / "config.yaml").is_symlink()
    assert (tmp_path / "config.yaml").read_text() == "a: 1"
    assert not list(tmp_path.glob(".*"))


def test_a_failure_leaves_what_was_there_and_nothing_else(tmp_path):
    path, folder = tmp_path / "a.csv", tmp_path / "sweep"
    (tmp_path / ".a.tmp.csv").write_text("half")  # of a killed writer
    write_text(path, "whole")
    write(folder, "old")
    with pytest.raises(TypeError), replacing(path) as temporary:
        temporary.write_text(None)
    with pytest.raises(TypeError):
        write(folder, None)
    assert (path.read_text(), read(folder)) == ("whole", {"old"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "sweep"]


def test_a_read_only_sweep_is_not_replaced(tmp_path, monkeypatch):
    run = RunDirectory(tmp_path)
    (run.evals / "mine").mkdir(parents=True)
    monkeypatch.setattr("os.access", lambda path, mode: path != run.evals / "mine")
    refused = pytest.raises(UserError, match="evals/mine: cannot be written; choose another name")
    with refused, run.lock_sweep("mine"):
        pytest.fail("it was locked")


def test_a_lock_excludes_others_and_leaves_nothing(tmp_path):
    path = tmp_path / ".lock"
    with locked(path, "busy"):
        with pytest.raises(UserError, match=r"^busy$"), locked(path, "busy"):
            pytest.fail("it was locked")
        assert path.exists()
    assert not path.exists()
