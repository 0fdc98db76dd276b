"""Windows of a fit: each within one document, and which of their targets count.

Shapes: B windows, n context length.
"""

import numpy as np
from numpy.typing import NDArray

from rope_jax.data.tokens import TokenSplit
from rope_jax.errors import UserError


def windows_within_documents(
    split: TokenSplit, *, seed: int, step: int, length: int, count: int
) -> NDArray[np.int32]:
    """Return windows of n + 1 tokens that begin at offsets drawn uniformly: int32 [B, n + 1].

    Only offsets whose window lies within one document are drawn, so that every query has all n
    tokens of context. A pure function of its arguments, and the same under every version of numpy.

    UserError: no document of the split is long enough.
    """
    choices = np.maximum(split.lengths() - length, 0)
    ends = np.cumsum(choices)
    if not len(ends) or not ends[-1]:
        raise UserError(
            f"length: no document of the training split has {length + 1:,} tokens; lower length, "
            "or name longer texts with data"
        )
    raw = np.random.Philox(np.random.SeedSequence([seed, length, step])).random_raw(count)
    drawn = np.array([(bits * int(ends[-1])) >> 64 for bits in raw.tolist()], np.int64)
    document = np.searchsorted(ends, drawn, side="right")
    offsets = split.starts[document] + drawn - (ends - choices)[document]
    rows = [split.read(offset, offset + length + 1) for offset in offsets.tolist()]
    return np.stack(rows).astype(np.int32)


def repeats_from_afar(tokens: NDArray[np.int32], window: int, repeated: int) -> NDArray[np.float32]:
    """Mark the targets that only far context can tell: float32 [B, n], 1 or 0.

    tokens: [B, n + 1]. A target counts if the `repeated` tokens that end with it occur earlier in
    the window, but not with a target at most L = `window` tokens back. A model that sees only L
    tokens cannot copy it; one that uses more can.
    """
    marked = np.zeros((tokens.shape[0], tokens.shape[1] - 1), np.float32)
    for row, text in zip(marked, tokens, strict=True):
        content, width = text.tobytes(), text.itemsize
        last: dict[bytes, int] = {}
        for end in range(repeated, len(text) + 1):
            piece = content[(end - repeated) * width : end * width]
            row[end - 2] = end - last.get(piece, end) > window
            last[piece] = end
    return marked
