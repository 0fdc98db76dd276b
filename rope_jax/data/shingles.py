"""Which texts are near-copies of others: overlap of hashed n-grams of words.

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
"""A text with this share of its shingles in another, larger one is a near-copy of it."""

_WORD = re.compile(rb"\w+")  # of bytes: what a letter is in str changes with Python's version
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)

Shingles = NDArray[np.uint64]


def shingles(text: str) -> Shingles:
    """The distinct shingles of a text, sorted: uint64 [S]; none if it has fewer than WORDS words.

    A shingle is the polynomial hash, modulo 2^64, of WORDS consecutive words' CRC-32.
    """
    words = _WORD.findall(text.encode("utf-8"))
    crc = np.fromiter(map(zlib.crc32, words), np.uint64, len(words))
    hashed = np.zeros(max(0, len(words) - WORDS + 1), np.uint64)
    for i in range(WORDS):
        hashed = hashed * _MULTIPLIER + crc[i : i + len(hashed)]
    return _distinct([hashed])


def _distinct(texts: Sequence[Shingles]) -> Shingles:
    together = np.sort(np.concatenate([np.zeros(0, np.uint64), *texts]))
    # np.unique goes by a hash table here, many times slower.
    return together[np.insert(together[1:] != together[:-1], 0, True)[: len(together)]]


def near_copies(texts: Sequence[Shingles]) -> dict[int, int]:
    """Which texts to drop, each with the one to keep that it is a near-copy of.

    Larger texts come first (equal ones in their order); a text is dropped if it is contained in
    one that was kept. Containment is never below Jaccard similarity, so it alone decides.
    Memory is O(N^2).
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
    """How many shingles each two texts have in common, int64 [N, N]; 0 on the diagonal."""
    count = len(texts)
    shingle = np.concatenate([np.zeros(0, np.uint64), *texts])
    owner = np.repeat(np.arange(count), sizes)
    order = np.argsort(shingle, kind="stable")
    shingle, owner = shingle[order], owner[order]
    pairs = np.zeros(count * count, np.int64)
    first, distance = np.arange(len(shingle)), 0
    while len(first):  # owners of one shingle lie side by side: pair each with the next, the next…
        distance += 1
        first = first[first + distance < len(shingle)]
        first = first[shingle[first] == shingle[first + distance]]
        pairs += np.bincount(
            owner[first] * count + owner[first + distance], minlength=count * count
        )
    above = pairs.reshape(count, count)
    return above + above.T


def share_seen(texts: Sequence[Shingles], seen: Sequence[Shingles]) -> float:
    """Share of the distinct shingles of `texts` that occur in `seen`, 0 to 1."""
    distinct = _distinct(texts)
    common = np.intersect1d(distinct, _distinct(seen), assume_unique=True)
    return len(common) / max(1, len(distinct))
