"""Positions of training windows that jump, as pure functions of (seed, stage, step, row).

A row has an increasing function f from [0, T) to [0, length). Where its tokens would be at p, they
are at f(p): RoPE then sees them at distances up to length − 1, although there are only T tokens.

Shapes: B rows, T tokens per window. n is `length`.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rope_jax.config.windows import PosePositions, Positions, RandomizedPositions


def position_functions(
    positions: Positions, seeds: Sequence[np.random.SeedSequence], seq_len: int
) -> NDArray[np.int32]:
    """Return f of each row at 0 … T − 1: int32 [B, T].

    seeds: one per row. The raw bits of Philox are used, which every version of numpy draws alike.
    """
    functions = np.empty((len(seeds), seq_len), np.int32)
    for row, seed in enumerate(seeds):
        bits = np.random.Philox(seed)
        match positions:
            case RandomizedPositions(length=length):
                functions[row] = randomized(bits, seq_len, length)
            case PosePositions(length=length, chunks=chunks):
                functions[row] = pose(bits, seq_len, length, chunks)
            case _:
                functions[row] = np.arange(seq_len)
    return functions


def randomized(bits: np.random.Philox, seq_len: int, length: int) -> NDArray[np.int64]:
    """Return T different integers below n ≥ T in ascending order: int64 [T].

    Every set of T integers has the same probability. Ruoss et al., arXiv 2305.16843.
    """
    if 2 * seq_len > length:  # draw those that are left out
        return np.flatnonzero(~_different(bits, length - seq_len, length))
    return np.flatnonzero(_different(bits, seq_len, length))


def pose(bits: np.random.Philox, seq_len: int, length: int, chunks: int) -> NDArray[np.int64]:
    """Return u_c + i at the places i of a window of N chunks, where c is i's chunk: int64 [T].

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
    place = np.arange(seq_len)
    return place + jumps[np.searchsorted(starts, place, side="right")]


def _different(bits: np.random.Philox, count: int, below: int) -> NDArray[np.bool_]:
    """Mark `count` different integers in [0, below), at most half of them: bool [below].

    They are the first different ones of a sequence of independent integers, so all sets of them
    have the same probability.
    """
    marked = np.zeros(below, bool)
    missing = count
    while missing:  # never draws more than are missing
        marked[_below(bits, missing, below)] = True
        missing = count - int(np.count_nonzero(marked))
    return marked


def _below(bits: np.random.Philox, count: int, below: int) -> NDArray[np.int64]:
    """Return ⌊bits · below / 2^64⌋ of the next random bits, for `below` up to 2^31: [count]."""
    raw = np.asarray(bits.random_raw(count), np.uint64)
    high, low = raw >> np.uint64(32), raw & np.uint64(2**32 - 1)
    carried = (low * np.uint64(below)) >> np.uint64(32)
    return ((high * np.uint64(below) + carried) >> np.uint64(32)).astype(np.int64)
