"""Windows of a token stream as batches: pure functions of their arguments, with no state to save.

Shapes: B windows (rows), T tokens per window; counts: negative distances, then one per bucket.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from rope_jax.config.sections import (
    AnyPositions,
    DocumentsConfig,
    PlainPositions,
    PosePositions,
    RandomizedPositions,
)
from rope_jax.data.mix import Mix
from rope_jax.data.storage import TokenSplit
from rope_jax.errors import UserError

Array = Any  # of numpy on the host, of jax inside jit
_PLAIN, _SEPARATE = PlainPositions(), DocumentsConfig()
# What a row's own random numbers are for; the offsets of a step's windows have none.
_FOR_POSITIONS, _FOR_SHORT_WINDOWS = 1, 2


class Batch(NamedTuple):
    """B windows; each is T consecutive tokens of the stream, which may come from many documents."""

    tokens: Array
    """int32 [B, T], as are the other arrays but `weights`."""
    targets: Array
    segment_ids: Array
    """Tokens with the same number see each other. They increase within a row, from 0, with each
    document, or with each short window."""
    positions: Array
    """From 0 at the start of the window and of each document, unless the stage's `positions` or
    `documents` say otherwise."""
    weights: Array
    """float32 [B, T]: 0 where the target is of another document's start, else 1."""


class ShortRows(NamedTuple):
    """The first `rows` of a batch hold windows of `seq_len` tokens, a divisor of T."""

    seq_len: int
    rows: int


def training_batch(
    split: TokenSplit,
    *,
    seed: int,
    stage: int,
    step: int,
    seq_len: int,
    batch_size: int,
    rows: slice = slice(None),
    positions: AnyPositions = _PLAIN,
    documents: DocumentsConfig = _SEPARATE,
    short: ShortRows | None = None,
    mix: Mix | None = None,
) -> Batch:
    """Return the batch of one step: windows that start at tokens drawn uniformly.

    rows: the rows that this host builds; the rows of all hosts, concatenated, are the batch.
    positions: how tokens are numbered, except in short windows, whose positions are plain.
    short: which rows hold short windows side by side, each drawn like a window of its own.
    mix: the tasks whose samples end some windows, except those of rows of short windows.

    Raises UserError if the split has fewer than T + 1 tokens.
    """
    choices = len(split.tokens) - seq_len  # a window's last token is only a target
    if choices < 1:
        raise UserError(
            f"stages[{stage}].seq_len: a window of {seq_len} tokens needs {seq_len + 1}, but the "
            f"train split has {len(split.tokens)}; lower seq_len or give more text"
        )
    bits = np.random.Philox(np.random.SeedSequence([seed, stage, step]))
    offsets = _below(bits, batch_size, choices)[rows]
    numbers = np.arange(batch_size)[rows]

    def seeds(purpose: int, rows: NDArray[np.int64]) -> list[np.random.SeedSequence]:
        drawn_for = [seed, stage, step]
        return [np.random.SeedSequence(drawn_for, spawn_key=(purpose, r)) for r in rows.tolist()]

    batch = _windows(split, offsets, seq_len, documents)
    if mix is not None:
        batch = _with_samples(batch, mix, numbers, documents, seed, stage, step)
    if isinstance(positions, RandomizedPositions | PosePositions):
        of_rows = position_functions(positions, seeds(_FOR_POSITIONS, numbers), seq_len)
        batch = batch._replace(positions=np.take_along_axis(of_rows, batch.positions, axis=1))
    if short is not None:
        is_short = numbers < short.rows
        short_seeds = seeds(_FOR_SHORT_WINDOWS, numbers[is_short])
        replacements = _rows_of_short_windows(split, short_seeds, seq_len, short.seq_len, documents)
        # copies, since tokens and targets share their memory
        batch = Batch(*(leaf.copy() for leaf in batch))
        for leaf, other in zip(batch, replacements, strict=True):
            leaf[is_short] = other
    return batch


def _with_samples(
    batch: Batch, mix: Mix, rows: NDArray[np.int64], documents: DocumentsConfig, *seed: int
) -> Batch:
    """Replace the ends of some windows by samples of tasks, each of which is one more document."""
    windows = np.concatenate([batch.tokens, batch.targets[:, -1:]], axis=1)
    begins = mix.replace(windows, rows, *seed)[:, None]
    index = np.arange(batch.tokens.shape[1], dtype=np.int32)[None]
    is_sample = index >= begins
    # what precedes a sample does not predict its start
    weights = np.where(is_sample, np.float32(1), batch.weights)
    is_start = (index + 1 >= begins) & (index + 1 < begins + _unpredicted(mix.words.bos_ids))
    weights = np.where(is_start, np.float32(0), weights)
    segment_ids, positions = batch.segment_ids, batch.positions
    if documents.mask == "document":
        last = np.take_along_axis(segment_ids, np.clip(begins - 1, 0, index.size - 1), axis=1)
        number = np.where(begins == 0, 0, last + 1).astype(np.int32)
        segment_ids = np.where(is_sample, number, segment_ids)
    if documents.positions == "reset":
        positions = np.where(is_sample, index - begins, positions).astype(np.int32)
    return Batch(windows[:, :-1], windows[:, 1:], segment_ids, positions, weights)


def _rows_of_short_windows(
    split: TokenSplit,
    seeds: list[np.random.SeedSequence],
    seq_len: int,
    short_len: int,
    documents: DocumentsConfig,
) -> Batch:
    """Return rows of T tokens, one per seed, that consist of windows drawn uniformly."""
    per_row, choices = seq_len // short_len, len(split.tokens) - short_len
    offsets = [_below(np.random.Philox(seed), per_row, choices) for seed in seeds]
    windows = _windows(split, np.concatenate(offsets or [np.empty(0, int)]), short_len, documents)
    # number the segments of a row consecutively: each window begins a new one
    used = (windows.segment_ids[:, -1] + 1).reshape(-1, per_row)
    before = np.cumsum(used, axis=1, dtype=np.int32) - used
    windows = windows._replace(segment_ids=windows.segment_ids + before.reshape(-1, 1))
    return Batch(*(leaf.reshape(-1, seq_len) for leaf in windows))


def validation_batches(
    split: TokenSplit,
    *,
    seq_len: int,
    batch_size: int,
    batches: int,
    documents: DocumentsConfig = _SEPARATE,
) -> Iterator[Batch]:
    """Return evenly spaced windows, the same at every call, from the start to the end of the split.

    They may overlap. UserError: the split has fewer than T + 1 tokens.
    """
    last = len(split.tokens) - seq_len - 1
    if last < 0:
        raise UserError(
            f"data.validation_fraction: a window of {seq_len} tokens needs {seq_len + 1}, but the "
            f"validation split has {len(split.tokens)}; raise the fraction, give more text, or "
            "lower the stages' seq_len"
        )
    windows = batches * batch_size

    def batch(index: int) -> Batch:
        # Python integers: windows · last may exceed 64 bits
        chosen = range(index * batch_size, (index + 1) * batch_size)
        offsets = [window * last // max(windows - 1, 1) for window in chosen]
        return _windows(split, np.array(offsets, np.int64), seq_len, documents)

    return map(batch, range(batches))


def _windows(
    split: TokenSplit, offsets: NDArray[np.int64], seq_len: int, documents: DocumentsConfig
) -> Batch:
    window = np.empty((len(offsets), seq_len + 1), np.int32)
    count = _unpredicted(split.bos_ids)
    earlier = count - 1  # how far before a window a start may begin that reaches into it
    begins = np.zeros((len(offsets), earlier + seq_len + 1), bool)
    for row, offset in enumerate(offsets.tolist()):
        window[row] = split.tokens[offset : offset + seq_len + 1]
        first, last = np.searchsorted(split.starts, [offset - earlier, offset + seq_len + 1])
        begins[row, split.starts[first:last] - offset + earlier] = True
    before = np.lib.stride_tricks.sliding_window_view(begins[:, 1:], count, axis=1)
    weights = 1 - before.any(-1).astype(np.float32)
    is_start = begins[:, earlier:]
    is_start[:, 0] = True
    index = np.arange(seq_len, dtype=np.int32)
    begun = np.where(is_start[:, :-1], index, 0)
    batch = Batch(
        tokens=window[:, :-1],
        targets=window[:, 1:],
        segment_ids=np.cumsum(is_start[:, :-1], axis=1, dtype=np.int32) - 1,
        positions=index - np.maximum.accumulate(begun, axis=1),
        weights=weights,
    )
    if documents.mask == "none":
        batch = batch._replace(segment_ids=np.zeros_like(batch.segment_ids))
    if documents.positions == "continue":
        batch = batch._replace(positions=np.tile(index, (len(offsets), 1)))
    return batch


def _unpredicted(bos_ids: Sequence[int]) -> int:
    """Return how many tokens at the start of a document are no targets, with or without a start."""
    return max(len(bos_ids), 1)


# Positions that jump: a row has an increasing function f from [0, T) to [0, n), n = `length`. Where
# its tokens would be at p, they are at f(p): RoPE then sees them at distances up to n − 1, although
# there are only T tokens.


def position_functions(
    positions: RandomizedPositions | PosePositions,
    seeds: Sequence[np.random.SeedSequence],
    seq_len: int,
) -> NDArray[np.int32]:
    """Return f of each row at 0 … T − 1: int32 [B, T]. seeds: one per row."""
    functions = np.empty((len(seeds), seq_len), np.int32)
    for row, bits in enumerate(map(np.random.Philox, seeds)):
        if isinstance(positions, RandomizedPositions):
            functions[row] = randomized(bits, seq_len, positions.length)
        else:
            functions[row] = pose(bits, seq_len, positions.length, positions.chunks)
    return functions


def randomized(bits: np.random.Philox, seq_len: int, length: int) -> NDArray[np.int64]:
    """Return T different integers below n ≥ T in ascending order: int64 [T].

    Every set of T integers has the same probability. Ruoss et al., arXiv 2305.16843.
    """
    fewer = min(seq_len, length - seq_len)  # those that are taken, or those that are left out
    marked = np.zeros(length, bool)
    # The first different ones of a sequence of independent integers: never draw more than missing.
    while missing := fewer - int(np.count_nonzero(marked)):
        marked[_below(bits, missing, length)] = True
    return np.flatnonzero(marked if fewer == seq_len else ~marked)


def pose(bits: np.random.Philox, seq_len: int, length: int, chunks: int) -> NDArray[np.int64]:
    """Return u_c + i at the indices i of a window of N chunks, where c is i's chunk: int64 [T].

    Zhu et al., arXiv 2309.10400, eq. 4, with u_0 = 0 and u_c uniform in {u_(c−1), …, n − T}.
    The length of every chunk but the last is uniform in {1, …, ⌈T/N⌉}, as in the authors' code
    (dwzhu-pku/PoSE, for N = 2); that bound is ⌊(T − 1)/(N − 1)⌋ where the chunks would fill the
    window otherwise. The chunks are consecutive text, v_c = 0 in the paper's eq. 5; the authors
    also draw them from different places of a longer document.
    """
    most = min(-(-seq_len // chunks), (seq_len - 1) // (chunks - 1))
    starts = np.cumsum(1 + _below(bits, chunks - 1, most))
    jumps = np.zeros(chunks, np.int64)
    for chunk in range(1, chunks):
        least = int(jumps[chunk - 1])
        jumps[chunk] = least + _below(bits, 1, length - seq_len - least + 1)[0]
    index = np.arange(seq_len)
    return index + jumps[np.searchsorted(starts, index, side="right")]


def _below(bits: np.random.Philox, count: int, below: int) -> NDArray[np.int64]:
    """Return `count` integers in [0, below): ⌊bits · below / 2^64⌋ of the next random bits.

    Every version of numpy draws these bits alike, but not what Generator.integers makes of them.
    """
    raw = np.asarray(bits.random_raw(count), np.uint64)
    if below >= 2**32:  # the product needs Python's integers
        return np.array([x * below >> 64 for x in raw.tolist()], np.int64)
    factor, half = np.uint64(below), np.uint64(32)
    lower = (raw & np.uint64(2**32 - 1)) * factor >> half
    return ((raw >> half) * factor + lower >> half).astype(np.int64)


def distance_edges(length: int) -> list[int]:
    """Return the first distance of each bucket, 0, 1, 2, 4, 8, …, for positions below `length`."""
    return [0, *(2**power for power in range((length - 1).bit_length()))]


def count_distances(batch: Batch, length: int) -> Int[np.ndarray, " counts"]:
    """Return how many pairs are at a distance below 0, and in each bucket of `distance_edges`.

    A pair is a query and a key that it sees: its own token or an earlier one with the same segment
    id. The distance is the difference of their positions, below `length`; it is below 0 only where
    positions restart while documents see each other. Sliding windows and position maps are not
    taken into account.
    """
    positions = np.asarray(batch.positions, np.int64).ravel()
    new_segment = np.ones(batch.segment_ids.shape, bool)
    new_segment[:, 1:] = np.diff(batch.segment_ids, axis=1) != 0
    new_segment = new_segment.ravel()
    # Within a run, positions increase and tokens see each other.
    new_run = new_segment | (np.diff(positions, prepend=-1) <= 0)
    limits = np.array([0, *distance_edges(length)[1:], length])
    closer = np.zeros(limits.size, np.int64)  # pairs whose distance is below each limit
    keys = np.empty(0, np.int64)
    runs = np.split(positions, np.flatnonzero(new_run)[1:])
    for run, begins_segment in zip(runs, new_segment[new_run].tolist(), strict=True):
        if begins_segment:
            keys = keys[:0]
        visible = keys.size + np.arange(1, run.size + 1)
        keys = np.sort(np.concatenate([keys, run]), kind="stable")
        # later tokens of the run are at larger positions, so they are not among these
        farther = np.searchsorted(keys, run[:, None] - limits, side="right")
        closer += np.sum(visible[:, None] - farther, axis=0)
    return np.diff(closer, prepend=0)
