"""Windows of a token stream as batches: pure functions of numbers, no iterator to save.

Shapes: B rows (windows), T tokens a window, N tokens in the split.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rope_jax.data.storage import TokenSplit
from rope_jax.errors import UserError

# numpy on the host, jax inside jit: both are leaves of the same tree.
Array = Any


class Batch(NamedTuple):
    """B windows. A window may hold the end of one document, whole ones, and the start of one."""

    tokens: Array
    """int32 [B, T]"""
    targets: Array
    """int32 [B, T], the token after each."""
    segment_ids: Array
    """int32 [B, T], which document of the window a token belongs to: 0, 1, 2…"""
    positions: Array
    """int32 [B, T], from 0 at the window's start and at each document's start."""
    weights: Array
    """float32 [B, T], 0 where the target starts another document, else 1."""


def training_batch(
    split: TokenSplit,
    *,
    seed: int,
    stage: int,
    step: int,
    seq_len: int,
    batch_size: int,
    rows: slice = slice(None),
) -> Batch:
    """The batch of one step: windows drawn uniformly over the stream, so by token.

    A pure function of its arguments. `rows` are those of the whole batch that this host builds;
    put together, the hosts' batches are the whole one.

    Raises UserError if the split is shorter than a window of T + 1 tokens.
    """
    return _windows(
        split, training_offsets(split, seed, stage, step, seq_len, batch_size)[rows], seq_len
    )


def training_offsets(
    split: TokenSplit, seed: int, stage: int, step: int, seq_len: int, batch_size: int
) -> NDArray[np.int64]:
    """Where in the split the windows of a training batch begin: [B]."""
    choices = len(split.tokens) - seq_len  # a window's last token is only a target
    if choices < 1:
        raise UserError(
            f"stages[{stage}].seq_len: windows of {seq_len} tokens need {seq_len + 1}, and the "
            f"train split has {len(split.tokens)}; lower it or give more text"
        )
    return _uniform(np.random.SeedSequence([seed, stage, step]), choices, batch_size)


def validation_batches(
    split: TokenSplit, *, seq_len: int, batch_size: int, batches: int
) -> Iterator[Batch]:
    """Evenly spaced windows, the same at every call, the first at the split's start.

    They overlap where the split is shorter than all of them together.

    Raises UserError if the split is shorter than a window of T + 1 tokens.
    """
    last = len(split.tokens) - seq_len - 1
    if last < 0:
        raise UserError(
            f"data.validation_fraction: windows of {seq_len} tokens need {seq_len + 1}, and the "
            f"validation split has {len(split.tokens)}; raise it, give more text, or lower "
            "the stages' seq_len"
        )
    windows = batches * batch_size
    offsets = np.arange(windows) * last // max(windows - 1, 1)
    return (_windows(split, chosen, seq_len) for chosen in offsets.reshape(batches, batch_size))


def _uniform(seed: np.random.SeedSequence, choices: int, count: int) -> NDArray[np.int64]:
    """`count` integers in [0, choices), the same under every version of numpy."""
    # NumPy keeps raw bits stable, not what Generator.integers makes of them.
    raw = np.random.Philox(seed).random_raw(count)
    return np.array([(bits * choices) >> 64 for bits in raw.tolist()], np.int64)


def _windows(split: TokenSplit, offsets: NDArray[np.int64], seq_len: int) -> Batch:
    """Windows of T + 1 tokens at each offset, as a batch."""
    window = np.empty((len(offsets), seq_len + 1), np.int32)
    is_start = np.zeros(window.shape, bool)
    for row, offset in enumerate(offsets.tolist()):
        window[row] = split.tokens[offset : offset + seq_len + 1]
        first, last = np.searchsorted(split.starts, [offset, offset + seq_len + 1])
        is_start[row, split.starts[first:last] - offset] = True
    weights = 1 - is_start[:, 1:].astype(np.float32)
    is_start[:, 0] = True
    index = np.arange(seq_len, dtype=np.int32)
    begun = np.where(is_start[:, :-1], index, 0)
    return Batch(
        tokens=window[:, :-1],
        targets=window[:, 1:],
        segment_ids=np.cumsum(is_start[:, :-1], axis=1, dtype=np.int32) - 1,
        positions=index - np.maximum.accumulate(begun, axis=1),
        weights=weights,
    )
