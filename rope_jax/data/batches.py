"""Windows of a token stream as batches: pure functions of their arguments, with no state to save.

Shapes: B windows (rows), T tokens per window.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rope_jax.data.tokens import TokenSplit
from rope_jax.errors import UserError

# numpy on the host, jax inside jit
Array = Any


class Batch(NamedTuple):
    """B windows; each is T consecutive tokens of the stream, which may come from many documents."""

    tokens: Array
    """int32 [B, T]."""
    targets: Array
    """int32 [B, T]: the next token."""
    segment_ids: Array
    """int32 [B, T]: number of the token's document in its window, from 0."""
    positions: Array
    """int32 [B, T]: from 0 at the start of the window and of each document."""
    weights: Array
    """float32 [B, T]: 0 where the target starts another document, else 1."""


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
    """Return the batch of one step: windows that start at tokens drawn uniformly.

    rows: the rows that this host builds; the rows of all hosts, concatenated, are the batch.

    Raises UserError if the split has fewer than T + 1 tokens, or its file was changed.
    """
    return _windows(
        split, training_offsets(split, seed, stage, step, seq_len, batch_size)[rows], seq_len
    )


def training_offsets(
    split: TokenSplit, seed: int, stage: int, step: int, seq_len: int, batch_size: int
) -> NDArray[np.int64]:
    """Return the offsets in the split at which a training batch's windows begin: int64 [B]."""
    choices = len(split.tokens) - seq_len  # a window's last token is only a target
    if choices < 1:
        raise UserError(
            f"stages[{stage}].seq_len: a window of {seq_len} tokens needs {seq_len + 1}, but the "
            f"train split has {len(split.tokens)}; lower seq_len or give more text"
        )
    return _uniform(np.random.SeedSequence([seed, stage, step]), choices, batch_size)


def validation_batches(
    split: TokenSplit, *, seq_len: int, batch_size: int, batches: int
) -> Iterator[Batch]:
    """Return evenly spaced windows, the same at every call, from the start to the end of the split.

    They overlap if the split is shorter than all windows together.

    Raises UserError if the split has fewer than T + 1 tokens.
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
        return _windows(split, np.array(offsets, np.int64), seq_len)

    return map(batch, range(batches))


def _uniform(seed: np.random.SeedSequence, choices: int, count: int) -> NDArray[np.int64]:
    """Return `count` integers in [0, choices), the same under every version of numpy."""
    # numpy guarantees the raw bits, but not what Generator.integers makes of them.
    raw = np.random.Philox(seed).random_raw(count)
    return np.array([(bits * choices) >> 64 for bits in raw.tolist()], np.int64)


def _windows(split: TokenSplit, offsets: NDArray[np.int64], seq_len: int) -> Batch:
    """Return the windows that begin at these offsets; the last token of each is only a target.

    Raises UserError if the split's file was changed.
    """
    window = np.empty((len(offsets), seq_len + 1), np.int32)
    is_start = np.zeros(window.shape, bool)
    for row, offset in enumerate(offsets.tolist()):
        window[row] = split.read(offset, offset + seq_len + 1)
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
