"""The journal of an interrupted sweep in a file."""

import errno
import math

import pytest

from rope_jax import sealed
from rope_jax.errors import UserError
from rope_jax.evaluation import JournalEntry
from rope_jax.sweeps.journal import FileJournal


def opened(path, identity="run 1"):
    return FileJournal(path, identity, path.read_text() if path.exists() else "")


def test_entries_are_read_back_to_the_last_bit(tmp_path):
    path = tmp_path / "journal"
    entries = {
        "a b": JournalEntry([0.1, 1 / 3, math.inf], 0.25),
        "c": JournalEntry([-math.inf, 7.0, 1e-300], 1.0, [3, 0, 1]),
    }
    opened(path).update(entries)
    assert dict(opened(path)) == entries


def test_whole_lines_survive_any_cut(tmp_path):
    path = tmp_path / "journal"
    journal = opened(path)
    for number in range(3):
        journal[f"key {number}"] = JournalEntry([float(number)], 1.0)
    content = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(content) if byte == ord("\n")]
    for size in range(len(content) + 1):
        path.write_bytes(content[:size])
        found = opened(path)
        whole = sum(end <= size for end in ends) - 1  # the first line is the identity
        assert dict(found) == {f"key {n}": ([float(n)], 1.0, None) for n in range(max(0, whole))}
        # what is added after a cut is found
        found["more"] = JournalEntry([5.0], 2.0)
        assert opened(path)["more"] == ([5.0], 2.0, None)


def test_entries_of_another_checkpoint_are_dropped(tmp_path):
    path = tmp_path / "journal"
    opened(path)["a"] = JournalEntry([1.0], 1.0)
    other = opened(path, "run 2")
    assert dict(other) == {}
    other["b"] = JournalEntry([2.0], 1.0)
    assert dict(opened(path, "run 2")) == {"b": ([2.0], 1.0, None)}
    assert dict(opened(path)) == {}
    assert opened(path).dropped.startswith("1 measurement was dropped, because the checkpoint, the")


def test_nothing_is_written_before_the_first_measurement(tmp_path):
    path = tmp_path / "journal"
    journal = opened(path)
    assert not path.exists()
    journal["a"] = JournalEntry([1.0], 1.0)
    assert dict(opened(path)) == dict(journal)
    before = path.read_bytes()
    opened(path, "run 2")  # which may be refused: the earlier one can then still be resumed
    assert path.read_bytes() == before


def test_a_full_disk_is_one_line_and_keeps_what_is_written(tmp_path, monkeypatch):
    path = tmp_path / "journal"
    journal = opened(path)
    journal["a"] = JournalEntry([1.0], 1.0)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("rope_jax.sweeps.journal.open", full, raising=False)
    with pytest.raises(UserError, match=r"journal: .*; what is done is kept, and"):
        journal["b"] = JournalEntry([2.0], 1.0)
    assert dict(opened(path)) == {"a": ([1.0], 1.0, None)}


def test_the_hash_is_of_the_code_at_the_first_call(tmp_path, monkeypatch):
    (tmp_path / "angles.py").write_text("turns = 1")
    monkeypatch.setattr(sealed, "__file__", str(tmp_path / "sealed.py"))
    sealed.code_hash.cache_clear()
    try:
        before = sealed.code_hash()
        (tmp_path / "angles.py").write_text("turns = 2")
        assert sealed.code_hash() == before  # what was imported is not what is there now
        assert sealed.code_hash.__wrapped__() != before
    finally:
        sealed.code_hash.cache_clear()
