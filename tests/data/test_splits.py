"""Splits by hash (stable, disjoint, never empty by chance) and by position; long documents cut."""

import numpy as np
import pytest

from rope_jax.config.data import TextData
from rope_jax.data.corpora import load_documents
from rope_jax.data.splits import GAP, assign, by_position, parts, stable_key
from rope_jax.errors import UserError
from tests.data.test_corpora import read

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
    wanted = by_position(TEXTS["lines"], FRACTIONS)
    assert read(data, tmp_path) == {n: [(f"{path}:{n}", text)] for n, text in wanted.items()}
    (note,) = load_documents(data, tmp_path / "scratch").notes
    assert note.endswith("then come 5% validation and 10% test")
    cut = read(data.model_copy(update={"split_bytes": 4096}), tmp_path)
    for name, rows in cut.items():
        assert "".join(text for _, text in rows) == wanted[name]
        assert [d for d, _ in rows] == [f"{path}:{name}#{i}" for i in range(len(rows))]


def test_two_files_are_each_split_by_position_and_three_by_document(tmp_path):
    for name in "abc":
        (tmp_path / name).write_text(f"{name} {TEXTS['lines']}")
    for pattern, count, noted in (("[ab]", 2, 1), ("[abc]", 1, 0)):
        data = TextData(files=[str(tmp_path / pattern)])
        assert [len(rows) for rows in read(data, tmp_path).values()] == [count] * 3
        assert len(load_documents(data, tmp_path / "scratch").notes) == noted


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
    with pytest.raises(UserError, match=rf"^data: .* \({count} distinct\): .* set data.valid"):
        assign(keys, 0.1, 0.1)
    assert not assign(keys, 0.0, 0.0).any()
