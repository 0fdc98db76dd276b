"""Which windows are read, and which of their tokens count: numpy alone, no model.

A *stream* is one document's tokens, with the document-start token in front where `bos` asks for
it. A window of length n is n + 1 tokens of a stream: n inputs, and the n targets after them.
The target at place j of a window (0-based) has j + 1 tokens of context, and that count is what
"position" means here: a window's targets are at positions 1 to n.
"""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rope_jax.config.sweep import Bos, Protocol
from rope_jax.errors import UserError

# Windows of these overlap, and advance by a stride.
SLIDING: tuple[Protocol, ...] = ("sliding", "yarn_compat")


class Windows(NamedTuple):
    """W windows of one length."""

    document: NDArray[np.int64]
    """[W], index into the chosen streams."""
    start: NDArray[np.int64]
    """[W], where the window's first input stands in its stream."""
    first: NDArray[np.int64]
    """[W], the position of the first target that counts; all after it do."""


def make_streams(
    documents: Sequence[NDArray[np.integer]],
    *,
    longest: int,
    max_documents: int,
    bos: Bos,
    bos_id: int | None,
    seed: int,
) -> tuple[list[int], list[NDArray[np.int32]]]:
    """The chosen documents, (their indices, their streams): long enough for the longest window.

    The same for every length and scaling. UserError where no document is long enough.
    """
    prefix = [] if bos == "none" else [bos_id]
    lengths = np.array([len(document) + len(prefix) for document in documents], np.int64)
    eligible = np.flatnonzero(lengths > longest)
    if not eligible.size:
        would_do = int(lengths.max()) - 1 if lengths.size else 0
        raise UserError(
            f"lengths: none of the {len(lengths)} documents has the {longest + 1} tokens that "
            f"length {longest} needs; the longest length that would do is {would_do}"
        )
    chosen = np.sort(np.random.default_rng([seed, 0]).permutation(eligible)[:max_documents])
    streams = [np.concatenate([prefix, documents[i]]).astype(np.int32) for i in chosen]
    return chosen.tolist(), streams


def plan(
    protocol: Protocol,
    streams: Sequence[NDArray[np.int32]],
    length: int,
    *,
    lengths: Sequence[int],
    targets: int,
    blocks: int,
    stride: int,
    seed: int,
) -> Windows:
    """The windows of one length, which is one of `lengths`.

    same_tokens: up to `blocks` windows a document, whose last `targets` targets count. They end at
    the same places for every length; the ends are drawn from [longest + 1, end of document] so
    that what they score does not overlap.

    The others read the first `blocks` × longest targets of a document, or as many times longest as
    it has. whole_window: windows side by side, as far as whole ones do. per_position: the first
    `length` targets of every longest window; what lies past the length before counts.
    sliding, yarn_compat: windows that advance by `stride`; the first counts whole, of the others
    what the one before did not reach; the last one ends with the text.
    """
    longest = lengths[-1]
    document, start, first = [], [], []
    for index, stream in enumerate(streams):
        covered = min(blocks, (len(stream) - 1) // longest) * longest
        if protocol == "same_tokens":
            ends = _block_ends(len(stream), longest + 1, targets, blocks, seed, index)
            starts = ends - length - 1
            firsts = np.full(len(starts), length - targets + 1)
        elif protocol == "whole_window":
            starts = np.arange(covered // length) * length
            firsts = np.ones(len(starts), np.int64)
        elif protocol == "per_position":
            starts = np.arange(covered // longest) * longest
            firsts = np.full(len(starts), previous_length(length, lengths) + 1)
        else:
            ends = np.append(np.arange(length, covered, stride), covered)
            starts = ends - length
            firsts = np.append(0, ends[:-1]) - starts + 1
        document += [index] * len(starts)
        start += starts.tolist()
        first += firsts.tolist()
    return Windows(*(np.array(column, np.int64) for column in (document, start, first)))


def previous_length(length: int, lengths: Sequence[int]) -> int:
    """The one before it of the lengths; 0 before the first."""
    return max((n for n in lengths if n < length), default=0)


def cut(
    streams: Sequence[NDArray[np.int32]],
    documents: NDArray[np.int64],
    starts: NDArray[np.int64],
    length: int,
    *,
    bos: Bos,
    bos_id: int | None,
) -> NDArray[np.int32]:
    """The tokens of windows of these documents, from these places on: int32 [W, length + 1]."""
    tokens = np.stack(
        [
            streams[document][start : start + length + 1]
            for document, start in zip(documents, starts, strict=True)
        ]
    )
    if bos == "every_window":
        tokens[:, 0] = bos_id
    return tokens


def fingerprint(
    streams: Sequence[NDArray[np.int32]], windows: Windows, length: int, bos: Bos
) -> str:
    """Hash of exactly which tokens of which texts were scored: equal means comparable."""
    digest = hashlib.sha256()
    prefix = 0 if bos == "none" else 1
    for index, stream in enumerate(streams):
        own = windows.document == index
        starts = windows.start[own]
        spans = np.stack([starts + windows.first[own], starts + length + 1], axis=1) - prefix
        digest.update(stream[prefix:].astype("<i4").tobytes())
        digest.update(np.sort(spans, axis=0).astype("<i8").tobytes())
    return digest.hexdigest()[:16]


def _block_ends(
    size: int, first: int, targets: int, blocks: int, seed: int, index: int
) -> NDArray[np.int64]:
    """Ends of non-overlapping blocks of `targets` tokens, each in [first, size], rising."""
    count = min(blocks, 1 + (size - first) // targets)
    slack = size - first - (count - 1) * targets
    offsets = np.random.default_rng([seed, 1, index]).integers(0, slack, count, endpoint=True)
    return first + np.sort(offsets) + np.arange(count) * targets
