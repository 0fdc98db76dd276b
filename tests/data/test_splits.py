"""Splits by hash (stable, disjoint, never empty by chance) and by position; long documents cut."""

import itertools

import numpy as np
import pytest

from rope_jax.config.data import TextData
from rope_jax.config.load import dump
from rope_jax.data.corpora import document_batches, load_documents
from rope_jax.data.splits import GAP, assign, by_position, parts, stable_key
from rope_jax.errors import UserError

FRACTIONS = {"validation": 0.05, "test": 0.1}
TEXTS = {
    "lines": "".join(f"line {number} of a book\n" for number in range(5000)),
    "one line": "word " * 20_000,
    "wide": "日本語🙂" * 5000,
    "short": "abc\n",
    "empty": "",
}


def rows_of(dataset):
    return [document for batch in document_batches(dataset) for document in batch]


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("most", [1024, 1025, 1026, 1027, 5000])
def test_parts_are_the_text_and_none_is_longer_than_asked(text, most):
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
    if not text:
        assert set(found.values()) == {""}
        return
    if len(text) < 100:
        return
    size, gap = len(text), GAP * len(text)
    starts = {"train": 0, "test": size - len(found["test"])}
    # validation lies between the two; a text that repeats itself needs the place, not the words
    starts["validation"] = next(
        start
        for start in range(len(found["train"]), size)
        if text.startswith(found["validation"], start)
        and start - len(found["train"]) >= gap - 1
        and starts["test"] - (start + len(found["validation"])) >= gap - 1
    )
    assert text.startswith(found["train"])
    assert text.endswith(found["test"])
    for name, fraction in FRACTIONS.items():
        assert fraction * size - 2 * gap <= len(found[name]) <= fraction * size
    assert len(found["train"]) > 0.8 * size
    if text == TEXTS["lines"]:
        assert all(part.endswith("\n") for part in found.values())
        assert all(part.startswith("line") for part in found.values())


def test_a_split_of_zero_leaves_no_gap():
    assert by_position("abc" * 1000, {}) == {"train": "abc" * 1000}


def test_one_file_is_split_by_position(tmp_path):
    path = tmp_path / "input.txt"
    path.write_text(TEXTS["lines"])
    documents = load_documents(TextData(files=[str(path)]), tmp_path / "scratch")
    found = {name: rows_of(split) for name, split in documents.splits.items()}
    assert {name: len(rows) for name, rows in found.items()} == dict.fromkeys(found, 1)
    wanted = by_position(TEXTS["lines"], FRACTIONS)
    assert {name: rows[0][1] for name, rows in found.items()} == wanted
    assert found["test"][0][0] == f"{path}:test"
    assert documents.notes == [
        "one document split by position: train is its beginning, then come 5% validation and "
        "10% test"
    ]


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
    kept = load_documents(whole, tmp_path / "whole").splits
    for name, split in kept.items():
        together = {}
        for document, part in rows_of(cut[name]):
            assert len(part.encode()) <= 2048
            file, _, number = document.rpartition("#")
            together.setdefault(file, []).append((int(number), part))
        for file, text in rows_of(split):
            numbers, texts = zip(*together.pop(file), strict=True)
            assert list(numbers) == list(range(len(numbers)))
            assert "".join(texts) == text
        assert not together
    assert sum(len(rows_of(split)) for split in cut.values()) > 12 * 5
    assert dump(data) != dump(whole)  # so the tokens of the two are cached apart


def test_one_file_may_be_split_and_then_cut(tmp_path):
    path = tmp_path / "input.txt"
    path.write_text(TEXTS["lines"])
    data = TextData(files=[str(path)], split_bytes=4096)
    splits = load_documents(data, tmp_path / "scratch").splits
    wanted = by_position(TEXTS["lines"], FRACTIONS)
    for name, split in splits.items():
        assert "".join(text for _, text in rows_of(split)) == wanted[name]
    for (one, _), (other, _) in itertools.pairwise(rows_of(splits["test"])):
        assert int(other.rpartition("#")[2]) == int(one.rpartition("#")[2]) + 1


def keys_of(*names):
    return np.array([stable_key(name) for name in names], np.uint64)


def test_stable_keys_are_golden():
    # The first 8 bytes of BLAKE2b with an 8-byte digest: other numbers move documents from test
    # to train.
    assert stable_key("asyncio") == 0x2315AC32D29A4116
    assert stable_key("é") != stable_key("e")


def test_a_split_depends_on_the_key_alone():
    names = [f"document {i}" for i in range(2000)]
    split = assign(keys_of(*names), 0.05, 0.1)
    assert np.array_equal(split[500:], assign(keys_of(*names[500:]), 0.05, 0.1))
    shares = np.bincount(split, minlength=3) / len(names)
    assert shares == pytest.approx([0.85, 0.05, 0.1], abs=0.02)


def test_validation_moves_nothing_into_or_out_of_test():
    keys = keys_of(*map(str, range(500)))
    assert np.array_equal(assign(keys, 0.0, 0.2) == 2, assign(keys, 0.3, 0.2) == 2)
    assert set(assign(keys, 0.0, 0.2)) == {0, 2}


def test_copies_share_a_split():
    keys = keys_of(*(str(i % 50) for i in range(200)))
    split = assign(keys, 0.2, 0.2)
    assert np.array_equal(split[:150], split[50:])


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
