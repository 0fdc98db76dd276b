"""The default corpus: its files, its splits, and the note on it."""

import random

import numpy as np
import pytest

from rope_jax.config.data import StdlibData
from rope_jax.data.stdlib import source_files, stdlib_root, stdlib_splits
from rope_jax.errors import UserError


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
    files = {f"p{i}/m{j}.py": f"{i} {j}" for i in range(20) for j in range(3)}
    files["crlf.py"] = "a\r\n\té\rb"
    tree(tmp_path, files | {"bz2.py": "as gzip.py", "latin.py": b"\xe9"})
    data = StdlibData(validation_fraction=0.2, test_fraction=0.2)
    splits, notes = stdlib_splits(data, tmp_path)
    documents = {d.document: d.text for sources in splits.values() for d in sources}
    assert documents == files
    assert_whole_packages([d.document for d in sources] for sources in splits.values())
    (note,) = notes
    assert note.startswith("long documents: test has 0 of at least 4096 bytes, fewer than 64: ")


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
    assert 0 < len(source_files(root)) - sum(map(len, splits)) < 40
