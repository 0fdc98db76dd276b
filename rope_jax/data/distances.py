"""Which distances a batch trains: counts of (query, key) pairs by relative position.

Shapes: B rows, T tokens per window; counts: negative distances, then one per bucket.
"""

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from rope_jax.data.batches import Batch


def distance_edges(length: int) -> list[int]:
    """Return the first distance of each bucket, 0, 1, 2, 4, 8, …, for positions below `length`."""
    return [0, *(2**power for power in range((length - 1).bit_length()))]


def count_distances(batch: Batch, length: int) -> Int[np.ndarray, " counts"]:
    """Return how many pairs are at a distance below 0, and in each bucket of `distance_edges`.

    A pair is a query and a key that it sees: its own token or an earlier one with the same segment
    id. The distance is the difference of their positions, below `length`; it can be below 0 only
    if positions restart while documents see each other. Sliding windows and position maps are not
    taken into account. Costs one binary search per token and bucket.
    """
    positions = np.asarray(batch.positions, np.int64).ravel()
    new_segment = np.ones(batch.segment_ids.shape, bool)
    new_segment[:, 1:] = np.diff(batch.segment_ids, axis=1) != 0
    new_segment = new_segment.ravel()
    # Within a run, positions increase and tokens see each other.
    new_run = new_segment | (np.diff(positions, prepend=-1) <= 0)
    limits = np.array([0, *distance_edges(length)[1:], length])
    closer = _pairs_within_runs(positions, np.cumsum(new_run), limits)
    if not np.array_equal(new_run, new_segment):
        runs = np.split(positions, np.flatnonzero(new_run)[1:])
        closer += _pairs_across_runs(runs, new_segment[new_run], limits)
    return np.diff(closer, prepend=0)


def _pairs_within_runs(
    positions: NDArray[np.int64], runs: NDArray[np.int64], limits: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return how many pairs within a run are closer than each limit.

    positions: increasing within every run. runs: the number of each token's run, ascending.
    """
    # Each run gets a range of numbers of its own, so that all of them form one sorted array.
    first = runs * (positions.max() + 2)
    keys, seen = first + positions, np.arange(1, positions.size + 1)
    closer = []
    for limit in limits.tolist():
        farther = np.searchsorted(keys, first + np.maximum(positions - limit, -1), side="right")
        closer.append(int(np.sum(seen - farther)))
    return np.array(closer)


def _pairs_across_runs(
    runs: list[NDArray[np.int64]], begins_segment: NDArray[np.bool_], limits: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return how many pairs of a query and a key of an earlier run are closer than each limit.

    begins_segment: whether a run begins a segment, whose runs see each other.
    """
    closer = np.zeros(limits.size, np.int64)
    keys = np.empty(0, np.int64)
    for run, begins in zip(runs, begins_segment.tolist(), strict=True):
        if begins:
            keys = run
            continue
        farther = np.searchsorted(keys, run[:, None] - limits, side="right")
        closer += np.sum(keys.size - farther, axis=0)
        keys = np.sort(np.concatenate([keys, run]), kind="stable")
    return closer
