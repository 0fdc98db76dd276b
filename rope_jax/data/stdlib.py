"""The default corpus: the source of the running Python's standard library.

Real text with long-range structure on every machine, without network. Files that are near-copies of
others are found by their shingles, hashed n-grams of words.

Shapes: N texts, S distinct shingles of a text.
"""

import contextlib
import os
import re
import sysconfig
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rope_jax import stopping
from rope_jax.config.data import StdlibData
from rope_jax.data.splits import SPLITS, Document, assign, stable_key
from rope_jax.errors import UserError

# The default sweeps need so many test documents of at least so many bytes.
_LONG_DOCUMENTS, _LONG_BYTES = 64, 4096
_WORDS = 5  # in a shingle
_CONTAINED = 0.5  # a text is a near-copy of a larger one that has this fraction of its shingles

_WORD = re.compile(rb"\w+")  # bytes: which str characters are letters depends on Python's version
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)

Shingles = NDArray[np.uint64]

# Absent on some systems, near-copies of one another, or not part of the library.
_EXCLUDED = {
    *("test", "tests", "idlelib", "lib2to3", "pydoc_data", "encodings"),
    *("site-packages", "dist-packages", "__pycache__"),
}


def stdlib_root() -> Path:
    """Return the folder of the running interpreter's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def source_files(root: Path) -> list[Path]:
    """Return the files of the corpus, sorted by path below `root`, the same on every platform."""
    files: list[Path] = []
    for folder, subfolders, names in os.walk(root):
        kept = set(subfolders) - _EXCLUDED
        # these prefixes are of generated code
        subfolders[:] = [name for name in kept if not name.startswith("config-")]
        python = (name for name in names if name.endswith(".py"))
        files += [Path(folder, name) for name in python if not name.startswith("_sysconfigdata")]
    # a distribution may contain dangling links
    return sorted((p for p in files if p.is_file()), key=lambda p: p.relative_to(root).as_posix())


def stdlib_splits(data: StdlibData, root: Path) -> tuple[dict[str, list[Document]], list[str]]:
    """Return the documents of each split, and notes on them for the user, one line each.

    Near-copies and files that are not UTF-8 are dropped. All files of a top-level package or module
    go to the same split. UserError: there are no source files.
    """
    sources: list[Document] = []
    for path in source_files(root):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            text = path.read_bytes().decode("utf-8")  # text mode would change line ends
            sources.append(Document(path.relative_to(root).as_posix(), text))
    if not sources:
        raise UserError(
            f"data.type: stdlib finds no source files in {root}; set data.type=text and data.files"
        )
    grams = [shingles(source.text) for source in sources]
    copies = near_copies(grams)
    kept = [i for i in range(len(sources)) if i not in copies]
    # The group of a file is its top-level package or module: `asyncio`, `ast`.
    groups = [sources[i].document.split("/")[0].removesuffix(".py") for i in kept]
    keys = np.array([stable_key(group) for group in groups], np.uint64)
    split = assign(keys, data.validation_fraction, data.test_fraction)
    members = {name: np.array(kept)[split == number] for number, name in enumerate(SPLITS)}
    overlap = share_seen([grams[i] for i in members["test"]], [grams[i] for i in members["train"]])
    splits = {name: [sources[i] for i in members[name]] for name in SPLITS}
    count = sum(len(source.text.encode("utf-8")) >= _LONG_BYTES for source in splits["test"])
    note = f"long documents: test has {count} of at least {_LONG_BYTES} bytes"
    if count < _LONG_DOCUMENTS:
        note += f", fewer than {_LONG_DOCUMENTS}: intervals will be wide; raise data.test_fraction"
    return splits, [
        f"near-copies dropped: {len(copies)} of {len(sources)} files",
        f"overlap: {overlap:.1%} of the shingles in test also occur in train",
        note,
    ]


def shingles(text: str) -> Shingles:
    """Return the distinct hashes of _WORDS words: polynomials mod 2^64 of their CRC-32, sorted."""
    stopping.check()
    words = _WORD.findall(text.encode("utf-8"))
    crc = np.fromiter(map(zlib.crc32, words), np.uint64, len(words))
    hashed = np.zeros(max(0, len(words) - _WORDS + 1), np.uint64)
    for i in range(_WORDS):
        hashed = hashed * _MULTIPLIER + crc[i : i + len(hashed)]
    return _distinct([hashed])


def _distinct(texts: Sequence[Shingles]) -> Shingles:
    """Return the distinct shingles of all texts together, sorted."""
    together = np.sort(np.concatenate([np.zeros(0, np.uint64), *texts]))
    # np.unique would use a hash table here, which is many times slower
    return together[np.insert(together[1:] != together[:-1], 0, True)[: len(together)]]


def near_copies(texts: Sequence[Shingles]) -> set[int]:
    """Return the indices of texts that are near-copies of others.

    Texts are visited from the largest to the smallest (ties in input order); one is dropped if a
    text kept earlier has _CONTAINED of its shingles or more. Containment is never below Jaccard
    similarity. Memory is O(N²).
    """
    from scipy import sparse

    sizes = np.array([len(text) for text in texts], np.int64)
    together = np.concatenate([np.zeros(0, np.uint64), *texts])
    distinct = _distinct(texts)
    columns, rows = np.searchsorted(distinct, together), np.append(0, np.cumsum(sizes))
    ones = np.ones(len(together), np.int64)
    has = sparse.csr_array((ones, columns, rows), shape=(len(texts), len(distinct)))
    shared = (has @ has.T).toarray()  # shingles that two texts share
    kept: list[int] = []
    for i in np.argsort(-sizes, kind="stable").tolist():
        if not sizes[i] or shared[i, kept].max(initial=0) < _CONTAINED * sizes[i]:
            kept.append(i)
    return set(range(len(texts))) - set(kept)


def share_seen(texts: Sequence[Shingles], seen: Sequence[Shingles]) -> float:
    """Return the fraction of the distinct shingles of `texts` that occur in `seen`."""
    distinct = _distinct(texts)
    return float(np.isin(distinct, _distinct(seen)).sum() / max(1, len(distinct)))
