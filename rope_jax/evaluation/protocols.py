"""Which windows are read, and which of their tokens count: numpy alone, no model.

A *stream* is one document's tokens, with the document-start token in front where `bos` asks for
it. A window of length n is n + 1 tokens of a stream: n inputs, and the n targets after them.
The target at place j of a window (0-based) has j + 1 tokens of context, and that count is what
"position" means here.
"""

import hashlib
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rope_jax.errors import UserError
from rope_jax.sweep_schema import Bos, Protocol

# same_tokens reads windows of its own; the other protocols cut documents into tiles.
LAYOUT: dict[Protocol, str] = {
    "same_tokens": "blocks",
    "whole_window": "tiles",
    "per_position": "tiles",
}


class Windows(NamedTuple):
    """W windows of one length."""

    document: NDArray[np.int64]
    """[W], index into the chosen streams."""
    start: NDArray[np.int64]
    """[W], where the window's first input stands in its stream."""


class Bucket(NamedTuple):
    """Targets with `first` to `last` tokens of context, both inclusive."""

    first: int
    last: int


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
    layout: str,
    streams: Sequence[NDArray[np.int32]],
    length: int,
    *,
    longest: int,
    targets: int,
    blocks: int,
    seed: int,
) -> Windows:
    """The windows of one length.

    "blocks": up to `blocks` windows a document that end at the same places for every length;
    the ends are drawn from [longest + 1, end of document] so that their `targets` scored tokens
    do not overlap. "tiles": windows side by side from the start of the document, covering the
    first `blocks` × longest targets, as far as whole windows of this length do.
    """
    document, start = [], []
    for index, stream in enumerate(streams):
        if layout == "blocks":
            ends = _block_ends(len(stream), longest + 1, targets, blocks, seed, index)
            starts = ends - length - 1
        else:
            covered = min(blocks, (len(stream) - 1) // longest) * longest
            starts = np.arange(covered // length) * length
        document += [index] * len(starts)
        start += starts.tolist()
    return Windows(np.array(document, np.int64), np.array(start, np.int64))


def buckets(protocol: Protocol, length: int, targets: int, lengths: Sequence[int]) -> list[Bucket]:
    """What a protocol scores in a window of `length`: one row of results a bucket."""
    if protocol == "same_tokens":
        return [Bucket(length - targets + 1, length)]
    if protocol == "whole_window":
        return [Bucket(1, length)]
    edges = [0, *lengths]
    return [Bucket(a + 1, b) for a, b in itertools.pairwise(edges)]


def lengths_read(protocol: Protocol, lengths: Sequence[int]) -> Sequence[int]:
    """The window lengths a protocol needs: per_position reads the longest alone."""
    return lengths[-1:] if protocol == "per_position" else lengths


def cut(
    streams: Sequence[NDArray[np.int32]],
    windows: Windows,
    length: int,
    *,
    bos: Bos,
    bos_id: int | None,
) -> NDArray[np.int32]:
    """The windows' tokens, int32 [W, length + 1]."""
    tokens = np.stack(
        [
            streams[document][start : start + length + 1]
            for document, start in zip(*windows, strict=True)
        ]
    )
    if bos == "every_window":
        tokens[:, 0] = bos_id
    return tokens


def fingerprint(
    streams: Sequence[NDArray[np.int32]], windows: Windows, bucket: Bucket, bos: Bos
) -> str:
    """Hash of exactly which tokens of which texts were scored: equal means comparable."""
    digest = hashlib.sha256()
    prefix = 0 if bos == "none" else 1
    for index, stream in enumerate(streams):
        starts = windows.start[windows.document == index]
        spans = np.stack([starts + bucket.first, starts + bucket.last + 1], axis=1) - prefix
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
