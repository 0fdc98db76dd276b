"""Choose the windows a protocol reads and the tokens it scores; numpy only, no model.

A *stream* is one document's tokens, preceded by the document-start token unless `bos` is "none".
A window of length n is n + 1 consecutive tokens of a stream: n inputs and their n targets. The
*position* of a target is the number of tokens of context before it: positions run from 1 to n.

A *unit* is what intervals resample: a document. Where fewer than `RELIABLE_UNITS` documents are
long enough, it is a block of a document, and the scored tokens of two blocks are more than the
longest length apart. Intervals then hold for those documents, not for others.

Shapes: W windows; n_plus_1 = n + 1 tokens; m, count: targets at the end of a window.
"""

import hashlib
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Int32, Int64
from numpy.typing import NDArray

from rope_jax.config.sweep import Bos, Protocol
from rope_jax.errors import UserError
from rope_jax.results.rows import UnitKind
from rope_jax.results.statistics import RELIABLE_UNITS

TOKEN_BUDGET = 2**14
"""How many tokens `max_blocks: auto` scores per protocol, if the documents have as many."""

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
    unit: Int64[np.ndarray, " W"]
    """Index of the window's unit, from 0. A unit lies in one document, or is a task's sample."""
    answers: Int32[np.ndarray, "W m"] | None = None
    """Which answer each of the last m targets belongs to, −1 if none; None: all targets from
    `first` on are scored."""

    def scored(self, length: int, read_length: int, count: int) -> Int32[np.ndarray, "W count"]:
        """Return which answer the last `count` targets belong to; −1: they are not scored.

        read_length: of the windows that were read, of which these may be a prefix.
        """
        if self.answers is not None:
            missing = count - self.answers.shape[1]
            return np.pad(self.answers, ((0, 0), (missing, 0)), constant_values=-1)
        positions = np.arange(read_length - count, read_length) + 1
        is_scored = (positions >= self.first[:, None]) & (positions <= length)
        return np.where(is_scored, 0, -1).astype(np.int32)

    def scored_tokens(self, length: int) -> Int64[np.ndarray, " W"]:
        """Return how many targets are scored in each window."""
        if self.answers is not None:
            return (self.answers >= 0).sum(1)
        return length - self.first + 1


class Streams(NamedTuple):
    """The documents that a sweep reads."""

    indices: list[int]
    """Which of the documents given."""
    tokens: list[NDArray[np.int32]]
    units: UnitKind
    """What intervals resample."""


def make_streams(
    documents: Sequence[NDArray[np.integer]],
    *,
    longest: int,
    max_documents: int,
    bos: Bos,
    bos_id: int | None,
    seed: int,
) -> Streams:
    """Choose documents long enough for the longest window.

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
    units: UnitKind = "documents" if eligible.size >= RELIABLE_UNITS else "blocks"
    return Streams(chosen.tolist(), streams, units)


def blocks_per_document(
    max_blocks: int | Literal["auto"],
    protocol: Protocol,
    units: UnitKind,
    *,
    documents: int,
    targets: int,
    longest: int,
) -> int:
    """Return the most blocks (or, except for same_tokens, windows of `longest`) per document.

    "auto": as many as score `TOKEN_BUDGET` tokens in all documents, and enough for
    `RELIABLE_UNITS` units where blocks are the units.
    """
    if max_blocks != "auto":
        return max_blocks
    tokens = targets if protocol == "same_tokens" else longest
    needed = -(-TOKEN_BUDGET // (documents * tokens))
    return needed if units == "documents" else max(needed, -(-RELIABLE_UNITS // documents))


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
    units: UnitKind,
) -> Windows:
    """Return a protocol's windows of one length, which must be one of `lengths`.

    same_tokens: up to `blocks` windows per document, whose last `targets` targets are scored. They
    end at the same places for every length. The ends are drawn from [longest + 1, end of document]
    such that no token is scored twice; see `_far_ends` where blocks are the units.

    All others cover the first `blocks` × longest targets of a document or, if it is shorter, the
    largest multiple of longest that fits. Where blocks are the units, they cover `blocks` parts of
    longest targets instead, each a unit, with as much text between them.
    whole_window: adjacent windows, as many as fit; every target is scored.
    per_position: windows that start every `longest` targets; the targets past the previous length
    are scored.
    sliding, yarn_compat: windows that advance by `stride`. All targets of the first are scored; in
    the others, those past the end of the window before. The last one ends where the covered text
    ends.
    """
    longest = lengths[-1]
    group = 1
    if protocol == "same_tokens" and units == "blocks":
        group = _blocks_per_unit([len(stream) for stream in streams], longest, targets, blocks)
    parts: list[Windows] = []
    count = 0  # of units
    for index, stream in enumerate(streams):
        size = len(stream)
        if protocol == "same_tokens":
            if units == "blocks":
                ends, unit = _far_ends(size, longest, targets, blocks, group, seed, index)
            else:
                ends = _block_ends(size, longest + 1, targets, blocks, seed, index)
                unit = np.zeros(len(ends), np.int64)
            starts = ends - length - 1
            firsts = np.full(len(starts), length - targets + 1)
            parts.append(Windows(np.full(len(starts), index), starts, firsts, count + unit))
            count += int(unit[-1]) + 1
            continue
        for begin, covered in _covered(size, longest, blocks, units):
            starts, firsts = _cover(protocol, length, covered, lengths, stride)
            place = np.full(len(starts), index), begin + starts, firsts
            parts.append(Windows(*place, np.full(len(starts), count)))
            count += 1
    columns = zip(*(part[:4] for part in parts), strict=True)  # all but `answers`
    return Windows(*(np.concatenate(column).astype(np.int64) for column in columns))


def _covered(size: int, longest: int, blocks: int, units: UnitKind) -> list[tuple[int, int]]:
    """Return (first input, number of targets) of the parts of a stream that are read."""
    if units == "documents":
        return [(0, min(blocks, (size - 1) // longest) * longest)]
    count = min(blocks, 1 + (size - 1 - longest) // (2 * longest))
    return [(2 * longest * part, longest) for part in range(count)]


def _cover(
    protocol: Protocol, length: int, covered: int, lengths: Sequence[int], stride: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the windows' starts in the first `covered` targets of a text, and what they score.

    The second array holds the position of each window's first scored target.
    """
    longest = lengths[-1]
    if protocol == "whole_window":
        starts = np.arange(covered // length) * length
        return starts, np.ones(len(starts), np.int64)
    if protocol == "per_position":
        starts = np.arange(covered // longest) * longest
        return starts, np.full(len(starts), previous_length(length, lengths) + 1)
    ends = np.append(np.arange(length, covered, stride), covered)
    starts = ends - length
    return starts, np.append(0, ends[:-1]) - starts + 1


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


def _far_ends(
    size: int, longest: int, targets: int, blocks: int, group: int, seed: int, index: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw the ends of blocks that are units; return them and each block's unit in the document.

    A unit is a row of `group` adjacent blocks of `targets` tokens, or fewer in a document that has
    no room for them. From the last scored token of a unit to the first of the next it is more than
    `longest` tokens.
    """
    group = min(group, _most_adjacent(size, longest, targets))
    width = group * targets
    first, spacing = longest + 1 + width - targets, longest + width
    count = min(-(-blocks // group), 1 + (size - first) // spacing)
    slack = size - first - (count - 1) * spacing
    offsets = np.random.default_rng([seed, 1, index]).integers(0, slack, count, endpoint=True)
    last = first + np.sort(offsets) + np.arange(count) * spacing
    ends = last[:, None] - targets * np.arange(group)[::-1]
    return ends.ravel()[:blocks], np.repeat(np.arange(count), group)[:blocks]


def _blocks_per_unit(sizes: Sequence[int], longest: int, targets: int, blocks: int) -> int:
    """Return how many adjacent blocks a unit should have to reach `blocks` in every document.

    Wider units leave room for fewer. So there are as many blocks in one as bring the number of
    scored tokens closest to the one asked for, but no more than leave `RELIABLE_UNITS` units, or
    nine tenths of them where even single blocks are fewer.
    """

    def counts(group: int) -> tuple[int, int]:
        """Return the number of units, and of blocks up to `blocks` per document."""
        units = scored = 0
        for size in sizes:
            own = min(group, _most_adjacent(size, longest, targets))
            spacing = longest + own * targets
            room = 1 + (size - longest - 1 - (own - 1) * targets) // spacing
            count = min(-(-blocks // own), room)
            units += count
            scored += min(blocks, count * own)
        return units, scored

    units, most = counts(1)
    fewest, best = min(RELIABLE_UNITS, -(-9 * units // 10)), 1
    widest = max(_most_adjacent(size, longest, targets) for size in sizes)
    for group in range(2, min(blocks, widest) + 1):
        if most == blocks * len(sizes):
            break
        units, scored = counts(group)
        if units >= fewest and scored > most:
            best, most = group, scored
    return best


def _most_adjacent(size: int, longest: int, targets: int) -> int:
    """Return how many adjacent blocks a document has room for, each after `longest` tokens."""
    return 1 + (size - longest - 1) // targets
