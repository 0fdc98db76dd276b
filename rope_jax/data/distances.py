"""Which distances a batch trains: counts of (query, key) pairs by relative position.

Shapes: B rows, T tokens per window; counts: negative distances, then one per bucket.
"""

import numpy as np
from jaxtyping import Int

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
