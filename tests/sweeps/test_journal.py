"""The journal of an interrupted sweep in a file."""

import math

import pytest

from rope_jax.evaluation.sweep import JournalEntry
from rope_jax.sweeps.journal import FileJournal


def opened(path, identity="run 1"):
    return FileJournal(path, identity, path.read_text() if path.exists() else "")


def test_entries_are_read_back_to_the_last_bit(tmp_path):
    path = tmp_path / "journal"
    entries = {
        "a b": JournalEntry([0.1, 1 / 3, math.inf], 0.25),
        "c": JournalEntry([-math.inf, 7.0, 1e-300], 1.0),
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
        assert dict(found) == {f"key {n}": ([float(n)], 1.0) for n in range(max(0, whole))}
        # what is added after a cut is found
        found["more"] = JournalEntry([5.0], 2.0)
        assert opened(path)["more"] == ([5.0], 2.0)


def test_entries_of_another_checkpoint_are_dropped(tmp_path):
    path = tmp_path / "journal"
    opened(path)["a"] = JournalEntry([1.0], 1.0)
    other = opened(path, "run 2")
    assert dict(other) == {}
    other["b"] = JournalEntry([2.0], 1.0)
    assert dict(opened(path, "run 2")) == {"b": ([2.0], 1.0)}
    assert dict(opened(path)) == {}


@pytest.mark.parametrize("junk", ["", "\n", "junk\n", '"run 1"\njunk\n', "\0\n"])
def test_a_file_that_is_no_journal_is_replaced(tmp_path, junk):
    path = tmp_path / "journal"
    path.write_text(junk)
    journal = opened(path)
    journal["a"] = JournalEntry([1.0], 1.0)
    assert dict(opened(path)) == {"a": ([1.0], 1.0)}


def test_other_processes_keep_it_in_memory(tmp_path):
    journal = FileJournal(None, "run 1", '"run 1"\n["a", [1.0], 2.0]\n')
    journal["b"] = JournalEntry([3.0], 1.0)
    assert dict(journal) == {"a": ([1.0], 2.0), "b": ([3.0], 1.0)}
    with pytest.raises(TypeError):
        del journal["a"]
