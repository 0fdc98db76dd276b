"""The default corpus: its files, its splits, near-copies, and the notes on it."""

import random
import re
import zlib

import numpy as np
import pytest

from rope_jax.config.data import StdlibData
from rope_jax.data.stdlib import (
    near_copies,
    share_seen,
    shingles,
    source_files,
    stdlib_root,
    stdlib_splits,
)
from rope_jax.errors import UserError


def words(seed, count=300):
    rng = random.Random(seed)
    return [f"name{rng.randrange(10**6)}" for _ in range(count)]


def prose(*args):
    return " ".join(words(*args))


def tree(root, files):
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def assert_whole_packages(splits):
    """No top-level package or module is in two of the splits, and none of these is empty."""
    groups = [{i.split("/")[0].removesuffix(".py") for i in split} for split in splits]
    assert all(groups)
    assert sum(map(len, groups)) == len(set.union(*groups))


def test_tests_data_and_generated_files_are_excluded(tmp_path):
    keep = ["b/z.py", "b.py", "a/tested.py", "a/c/d.py", "Z.py"]
    folders = "test a/tests a/test idlelib lib2to3 pydoc_data encodings site-packages __pycache__"
    leave = [f"{folder}/x.py" for folder in folders.split()]
    leave += ["_sysconfigdata__linux.py", "config-3.11-x86_64/python-config.py", "a/x.txt"]
    tree(tmp_path, dict.fromkeys(keep + leave, "x"))
    (tmp_path / "dangling.py").symlink_to(tmp_path / "nowhere")
    found = [path.relative_to(tmp_path).as_posix() for path in source_files(tmp_path)]
    assert found == sorted(keep)


def test_splits_keep_packages_whole_and_drop_copies(tmp_path):
    files = {f"p{i}/m{j}.py": prose(f"{i} {j}") for i in range(20) for j in range(3)}
    copy = prose("0 0") + " and one more line"
    tree(tmp_path, files | {"copied.py": copy, "latin.py": b"\xe9", "crlf.py": "a\r\n\té\rb"})
    data = StdlibData(validation_fraction=0.2, test_fraction=0.2)
    splits, notes = stdlib_splits(data, tmp_path)
    documents = {d.document: d.text for sources in splits.values() for d in sources}
    assert documents["crlf.py"] == "a\r\n\té\rb"
    assert set(documents) == {*files, "copied.py", "crlf.py"} - {"p0/m0.py"}
    assert_whole_packages([d.document for d in sources] for sources in splits.values())
    assert notes[0] == "near-copies dropped: 1 of 62 files"
    assert notes[1].startswith("overlap: 0.0% ")
    assert re.match(r"long documents: test has 0 of at least 4096 bytes, fewer than 64: ", notes[2])


def test_overlap_is_the_share_of_test_seen_in_train(tmp_path):
    # Each file has 300 words common to all files, and 700 of its own.
    common = prose("common")
    tree(tmp_path, {f"m{i}.py": f"{common} {prose(i, 700)}" for i in range(40)})
    splits, notes = stdlib_splits(StdlibData(test_fraction=0.05), tmp_path)
    test = len(splits["test"])
    assert test
    share = 100 * 296 / (296 + test * 700)
    assert float(re.search(r"([\d.]+)%", notes[1])[1]) == pytest.approx(share, abs=0.1)
    seen = [shingles(prose(1)), shingles(prose(2))]
    assert share_seen([*seen, seen[0]], [seen[1]]) == pytest.approx(0.5)  # of the distinct ones
    assert share_seen([], seen) == share_seen(seen, []) == 0.0


def test_no_sources_is_an_error(tmp_path):
    with pytest.raises(UserError, match=rf"^data\.type: stdlib finds no .* in {tmp_path};"):
        stdlib_splits(StdlibData(), tmp_path)


def test_the_corpus_of_this_interpreters_library(stdlib_corpus):
    corpus, root = stdlib_corpus, stdlib_root()
    splits = [corpus.train, corpus.validation, corpus.test]
    assert_whole_packages(split.ids for split in splits)
    assert np.count_nonzero(corpus.test.lengths() > 4096) >= 64
    for split in splits:
        for index in random.Random(0).sample(range(len(split)), 3):
            tokens = split.document(index)
            assert tokens[0] == 256
            assert tokens[1:].astype(np.uint8).tobytes() == (root / split.ids[index]).read_bytes()
    total = sum(map(len, splits))
    dropped, files = map(int, re.findall(r"\d+", corpus.report[3]))
    assert 0 < dropped < 40
    assert total + dropped == files
    assert float(re.search(r"([\d.]+)%", corpus.report[4])[1]) < 6


# Near-copies


def plain_shingles(text):
    """Compute shingles by their definition, with Python's integers."""
    crc = [zlib.crc32(word.encode()) for word in text.split()]
    return {
        sum(c * 0x9E3779B97F4A7C15 ** (4 - j) for j, c in enumerate(crc[i : i + 5])) % 2**64
        for i in range(len(crc) - 4)
    }


def test_shingles_are_the_distinct_hashed_5_grams_of_words():
    text = " ".join(words(0, 60) + words(1, 40) + words(0, 60))
    assert shingles(text).tolist() == sorted(plain_shingles(text))
    for short in ("", "four words are few", "— … !"):
        assert shingles(short).tolist() == []
    laid_out = shingles("def f(a, b):\n    return a + b")
    assert np.array_equal(laid_out, shingles("def f(a,b): return a+b"))


LONG = words(5, 1000)
EDITED = [*words(0)[:100], "edit", *words(0)[100:200], "edit", *words(0)[200:250]]


@pytest.mark.parametrize(
    ("texts", "dropped"),
    [
        ([EDITED, words(0), words(1)], {0}),  # the smaller of the two
        ([words(2)[:200], [*words(2)[:80], *words(3)]], set()),  # they share too little
        ([LONG[300:400], LONG], {0}),  # Jaccard similarity 0.1, but contained
        ([words(0)] * 3, {1, 2}),
        ([[]] * 3, set()),
        ([], set()),
    ],
)
def test_a_text_that_is_mostly_in_a_larger_one_is_dropped(texts, dropped):
    assert near_copies([shingles(" ".join(text)) for text in texts]) == dropped
