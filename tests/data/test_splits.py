"""Splits by hash (stable, disjoint, never empty by chance) and by position; long documents cut."""

import numpy as np
import pytest

from rope_jax.config.data import TextData
from rope_jax.data.corpora import load_documents
from rope_jax.data.splits import GAP, assign, by_position, parts, stable_key
from rope_jax.errors import UserError
from tests.data.test_corpora import rows_of

FRACTIONS = {"validation": 0.05, "test": 0.1}
TEXTS = {
    "lines": "".join(f"line {number} of a book\n" for number in range(5000)),
    "one line": "word " * 20_000,
    "wide": "日本語🙂" * 5000,
    "short": "abc\n",
    "empty": "",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_parts_are_the_text_and_none_is_longer_than_asked(text):
    for most in (1024, 1025, 1026, 1027, 5000):
        found = list(parts(text, most))
        assert "".join(found) == text
        sizes = [len(part.encode()) for part in found]
        assert max(sizes) <= most
        assert all(size >= most // 2 for size in sizes[:-1])
        if text == TEXTS["lines"]:
            assert all(part.endswith("\n") for part in found)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_splits_by_position_are_in_order_with_gaps_between_them(text):
    found = by_position(text, FRACTIONS)
    assert list(found) == ["train", "validation", "test"]
    assert by_position(text, {}) == {"train": text}
    if len(text) < 100:
        assert text or set(found.values()) == {""}
        return
    size, gap = len(text), GAP * len(text)
    test_start = size - len(found["test"])
    # validation lies between the two; a text that repeats itself needs the place, not the words
    assert any(
        text.startswith(found["validation"], start)
        and start - len(found["train"]) >= gap - 1
        and test_start - (start + len(found["validation"])) >= gap - 1
        for start in range(len(found["train"]), size)
    )
    assert text.startswith(found["train"])
    assert text.endswith(found["test"])
    for name, fraction in FRACTIONS.items():
        assert fraction * size - 2 * gap <= len(found[name]) <= fraction * size
    assert len(found["train"]) > 0.8 * size
    if text == TEXTS["lines"]:
        assert all(part.endswith("\n") for part in found.values())
        assert all(part.startswith("line") for part in found.values())


def test_one_file_is_split_by_position_and_then_cut(tmp_path):
    path = tmp_path / "input.txt"
    path.write_text(TEXTS["lines"])
    data = TextData(files=[str(path)])
    documents = load_documents(data, tmp_path / "scratch")
    wanted = by_position(TEXTS["lines"], FRACTIONS)
    for name, split in documents.splits.items():
        ((_, text),) = rows_of(split)
        assert text == wanted[name]
    assert rows_of(documents.splits["test"])[0][0] == f"{path}:test"
    assert documents.notes == [
        "one document split by position: train is its beginning, then come 5% validation and "
        "10% test"
    ]
    cut = load_documents(data.model_copy(update={"split_bytes": 4096}), tmp_path / "cut").splits
    for name, split in cut.items():
        assert "".join(text for _, text in rows_of(split)) == wanted[name]
    numbers = [int(document.rpartition("#")[2]) for document, _ in rows_of(cut["test"])]
    assert numbers == [*range(len(numbers))]


def test_two_files_are_each_split_by_position_and_three_by_document(tmp_path):
    for name in "abc":
        (tmp_path / name).write_text(f"{name} {TEXTS['lines']}")
    two = TextData(files=[str(tmp_path / "a"), str(tmp_path / "b")])
    splits = load_documents(two, tmp_path / "two").splits
    assert [len(rows_of(split)) for split in splits.values()] == [2, 2, 2]
    three = TextData(files=[str(tmp_path / "[abc]")])
    found = load_documents(three, tmp_path / "three")
    assert [len(rows_of(split)) for split in found.splits.values()] == [1, 1, 1]
    assert found.notes == []


def test_the_parts_of_a_file_stay_in_its_split(tmp_path):
    rng = np.random.default_rng(0)
    for number in range(12):
        words = rng.choice(["rope", "turns", "slow", "fast"], 3000)
        (tmp_path / f"{number:02}.txt").write_text(f"{number}\n" + "\n".join(words))
    data = TextData(files=[str(tmp_path / "*.txt")], split_bytes=2048)
    whole = data.model_copy(update={"split_bytes": None})
    cut = load_documents(data, tmp_path / "cut").splits
    for name, split in load_documents(whole, tmp_path / "whole").splits.items():
        together = {}
        for document, part in rows_of(cut[name]):
            assert len(part.encode()) <= 2048
            file = document.rpartition("#")[0]
            together[file] = together.get(file, "") + part
        assert together == dict(rows_of(split))
    assert sum(len(rows_of(split)) for split in cut.values()) > 12 * 5


def keys_of(*names):
    return np.array([stable_key(name) for name in names], np.uint64)


def test_stable_keys_are_golden():
    # The first 8 bytes of BLAKE2b with an 8-byte digest: other numbers move documents from test
    # to train.
    assert stable_key("asyncio") == 0x2315AC32D29A4116


def test_a_split_depends_on_the_key_alone():
    names = [f"document {i}" for i in range(2000)]
    split = assign(keys_of(*names), 0.05, 0.1)
    assert np.array_equal(split[500:], assign(keys_of(*names[500:]), 0.05, 0.1))
    shares = np.bincount(split, minlength=3) / len(names)
    assert shares == pytest.approx([0.85, 0.05, 0.1], abs=0.02)
    # validation moves nothing into or out of test
    without = assign(keys_of(*names), 0.0, 0.1)
    assert np.array_equal(without == 2, split == 2)
    assert set(without) == {0, 2}


def test_a_few_documents_still_give_each_split_one():
    for start in range(30):
        split = assign(keys_of(*(str(start + i) for i in range(4))), 0.001, 0.001)
        assert sorted(split) == [0, 0, 1, 2]


@pytest.mark.parametrize("count", [1, 2])
def test_fractions_that_leave_nothing_to_train_on_are_refused(count):
    keys = keys_of(*(str(i % count) for i in range(10)))
    with pytest.raises(
        UserError, match=rf"^data: .* \({count} distinct\): .* set data.validation_fraction"
    ):
        assign(keys, 0.1, 0.1)
    assert not assign(keys, 0.0, 0.0).any()
