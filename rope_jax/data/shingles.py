"""Finds near-copies among texts by their shingles: hashed n-grams of words.

Shapes: N texts, S distinct shingles of a text.
"""

import re
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

WORDS = 5
"""Words in a shingle."""
CONTAINED = 0.5
"""A text is a near-copy of a larger one that has this fraction of its shingles."""

_WORD = re.compile(rb"\w+")  # bytes: which str characters are letters depends on the Python
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)

Shingles = NDArray[np.uint64]


def shingles(text: str) -> Shingles:
    """Return the distinct shingles of a text, sorted: uint64 [S]; none for under WORDS words.

    A shingle is the polynomial hash, modulo 2^64, of WORDS consecutive words' CRC-32.
    """
    words = _WORD.findall(text.encode("utf-8"))
    crc = np.fromiter(map(zlib.crc32, words), np.uint64, len(words))
    hashed = np.zeros(max(0, len(words) - WORDS + 1), np.uint64)
    for i in range(WORDS):
        hashed = hashed * _MULTIPLIER + crc[i : i + len(hashed)]
    return _distinct([hashed])


def _distinct(texts: Sequence[Shingles]) -> Shingles:
    """Return the distinct shingles of all texts together, sorted."""
    together = np.sort(np.concatenate([np.zeros(0, np.uint64), *texts]))
    # np.unique would use a hash table here, which is many times slower.
    return together[np.insert(together[1:] != together[:-1], 0, True)[: len(together)]]


def near_copies(texts: Sequence[Shingles]) -> dict[int, int]:
    """Return {text to drop: text to keep that it is a near-copy of}, both as indices.

    Going from the largest text to the smallest (equal ones in their order), a text is dropped if
    one kept before contains CONTAINED of it. Containment is never below Jaccard similarity, so
    the latter needs no test of its own. Memory is O(N²).
    """
    sizes = np.array([len(text) for text in texts], np.int64)
    shared = _shared_counts(texts, sizes)
    kept: list[int] = []
    dropped: dict[int, int] = {}
    for i in np.argsort(-sizes, kind="stable").tolist():
        overlap = shared[i, kept]
        if sizes[i] and kept and overlap.max() >= CONTAINED * sizes[i]:
            dropped[i] = kept[int(overlap.argmax())]
        else:
            kept.append(i)
    return dropped


def _shared_counts(texts: Sequence[Shingles], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of shingles that two texts share: int64 [N, N]; 0 on the diagonal."""
    count = len(texts)
    shingle = np.concatenate([np.zeros(0, np.uint64), *texts])
    owner = np.repeat(np.arange(count), sizes)
    order = np.argsort(shingle, kind="stable")
    shingle, owner = shingle[order], owner[order]
    pairs = np.zeros(count * count, np.int64)
    first, distance = np.arange(len(shingle)), 0
    # owners of one shingle are adjacent: pair each with the next one, then with the one after it…
    while len(first):
        distance += 1
        first = first[first + distance < len(shingle)]
        first = first[shingle[first] == shingle[first + distance]]
        pairs += np.bincount(
            owner[first] * count + owner[first + distance], minlength=count * count
        )
    above = pairs.reshape(count, count)
    return above + above.T


def share_seen(texts: Sequence[Shingles], seen: Sequence[Shingles]) -> float:
    """Return the fraction of the distinct shingles of `texts` that occur in `seen`."""
    distinct = _distinct(texts)
    common = np.intersect1d(distinct, _distinct(seen), assume_unique=True)
    return len(common) / max(1, len(distinct))
