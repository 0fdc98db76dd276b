"""Choose the windows a protocol reads and the tokens it scores; numpy only, no model.

A *stream* is one document's tokens, preceded by the document-start token unless `bos` is "none".
A window of length n is n + 1 consecutive tokens of a stream: n inputs and their n targets. The
*position* of a target is the number of tokens of context before it: positions run from 1 to n.

Shapes: W windows; n_plus_1 = n + 1 tokens.
"""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Int64
from numpy.typing import NDArray

from rope_jax.config.sweep import Bos, Protocol
from rope_jax.errors import UserError

# Protocols whose windows overlap and advance by a stride.
SLIDING: tuple[Protocol, ...] = ("sliding", "yarn_compat")


class Windows(NamedTuple):
    """W windows of one length."""

    document: Int64[np.ndarray, " W"]
    """Index into the chosen streams."""
    start: Int64[np.ndarray, " W"]
    """Index of the window's first input in its stream."""
    first: Int64[np.ndarray, " W"]
    """Position of the first target that is scored; all after it are scored too."""


def make_streams(
    documents: Sequence[NDArray[np.integer]],
    *,
    longest: int,
    max_documents: int,
    bos: Bos,
    bos_id: int | None,
    seed: int,
) -> tuple[list[int], list[NDArray[np.int32]]]:
    """Choose documents long enough for the longest window; return (their indices, their streams).

    The choice is the same for every length and scaling. UserError: no document is long enough.
    """
    prefix = [] if bos == "none" else [bos_id]
    lengths = np.array([len(document) + len(prefix) for document in documents], np.int64)
    eligible = np.flatnonzero(lengths > longest)
    if not eligible.size:
        possible = int(lengths.max()) - 1 if lengths.size else 0
        raise UserError(
            f"lengths: none of the {len(lengths)} documents has the {longest + 1} tokens that "
            f"length {longest} needs; the longest possible length is {possible}"
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
    """Return a protocol's windows of one length, which must be one of `lengths`.

    same_tokens: up to `blocks` windows per document, whose last `targets` targets are scored. They
    end at the same places for every length. The ends are drawn from [longest + 1, end of document]
    such that no token is scored twice.

    All others cover the first `blocks` × longest targets of a document or, if it is shorter, the
    largest multiple of longest that fits.
    whole_window: adjacent windows, as many as fit; every target is scored.
    per_position: windows that start every `longest` targets; the targets past the previous length
    are scored.
    sliding, yarn_compat: windows that advance by `stride`. All targets of the first are scored; in
    the others, those past the end of the window before. The last one ends where the covered text
    ends.
    """
    longest = lengths[-1]
    parts: list[Windows] = []
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
        parts.append(Windows(np.full(len(starts), index), starts, firsts))
    return Windows(
        *(np.concatenate(column).astype(np.int64) for column in zip(*parts, strict=True))
    )


def previous_length(length: int, lengths: Sequence[int]) -> int:
    """Return the next shorter of the lengths; 0 for the shortest."""
    return max((n for n in lengths if n < length), default=0)


def cut(
    streams: Sequence[NDArray[np.int32]],
    documents: Int64[np.ndarray, " W"],
    starts: Int64[np.ndarray, " W"],
    length: int,
    *,
    bos: Bos,
    bos_id: int | None,
) -> Int32[np.ndarray, "W n_plus_1"]:
    """Return the tokens of the windows of `length` that begin at `starts` in `documents`."""
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
    """Return a hash of which tokens of which texts are scored: equal hashes mean comparable."""
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
    """Draw the ends of non-overlapping blocks of `targets` tokens, in [first, size], ascending."""
    count = min(blocks, 1 + (size - first) // targets)
    slack = size - first - (count - 1) * targets
    offsets = np.random.default_rng([seed, 1, index]).integers(0, slack, count, endpoint=True)
    return first + np.sort(offsets) + np.arange(count) * targets
