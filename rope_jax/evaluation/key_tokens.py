"""Key tokens: the ones that only far context makes likely, found by an evaluator, kept in a file.

A target's log-probability is taken twice: with all text before it that the evaluator's window
holds, and with K to K + s − 1 tokens before it. It is a key token if the first exceeds the second
by more than alpha, and beta.

Shapes: W windows, n targets of a window, n_plus_1 = n + 1 tokens; last: targets at a window's end;
N tokens of a document. The position of a target is the number of tokens before it in its window.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int32
from numpy.typing import NDArray
from pydantic import ValidationError

from rope_jax.config.types import Ascending, Frozen, NonNegativeInt

FEWEST = 200
"""A mean over fewer key tokens says little."""


class Evaluator(Frozen):
    """The checkpoint that found key tokens; window: in tokens."""

    run: str
    step: int
    window: int


class DocumentKeys(Frozen):
    index: NonNegativeInt
    """Among the documents of the split."""
    id: str
    tokens: Annotated[tuple[NonNegativeInt, ...], Ascending]
    """Their places in the document; a document start does not count."""


class KeyTokens(Frozen):
    """A file of key tokens, and what they depend on; short: K, stride: s."""

    corpus: str
    split: Literal["test", "validation"]
    evaluator: Evaluator
    short: int
    stride: int
    alpha: float
    beta: float
    max_documents: int
    seed: int
    candidates: int
    """How many targets have K tokens before them in the documents that were read."""
    documents: tuple[DocumentKeys, ...]

    @property
    def count(self) -> int:
        return sum(len(document.tokens) for document in self.documents)


def read_key_tokens(path: str) -> KeyTokens:
    """Return the content of a file. ValueError, which begins with the key `mask`: it has none."""
    try:
        return KeyTokens.model_validate_json(Path(path).expanduser().read_bytes())
    except OSError as error:
        raise ValueError(f"mask: {path} cannot be read ({error.strerror})") from None
    except ValidationError:
        raise ValueError(
            f"mask: {path} is not a file of key tokens; rope-jax key-tokens writes them"
        ) from None


class TargetWindow(NamedTuple):
    """A window, and the positions of the targets whose log-probability is taken in it.

    start: index of the window's first input in its document, whose end the window may exceed.
    """

    document: int
    start: int
    first: int
    last: int


def whole_windows(sizes: Sequence[int], length: int, least: int) -> list[TargetWindow]:
    """Return windows of documents whose targets have all, or more than `least`, before them."""
    windows = []
    for document, size in enumerate(sizes):
        previous = 0
        for end in (*range(length, size - 1, length - least), size - 1):
            start = max(end - length, 0)
            windows.append(TargetWindow(document, start, previous - start + 1, end - start))
            previous = end
    return windows


def near_windows(sizes: Sequence[int], short: int, stride: int) -> list[TargetWindow]:
    """Return windows whose targets have `short` to `short + stride − 1` tokens before them."""
    length = short + stride - 1
    return [
        TargetWindow(document, start, short, min(length, size - 1 - start))
        for document, size in enumerate(sizes)
        for start in range(0, size - short, stride)
    ]


def tokens_of(
    windows: Sequence[TargetWindow], length: int, streams: Sequence[NDArray[np.integer]]
) -> Int32[np.ndarray, "W n_plus_1"]:
    """Return the windows' tokens, those beyond a document's end repeating its last one."""
    places = np.arange(length + 1)
    rows = [streams[window.document].take(window.start + places, mode="clip") for window in windows]
    return np.stack(rows).astype(np.int32)


def log_probabilities(
    windows: Sequence[TargetWindow],
    length: int,
    sizes: Sequence[int],
    nll: Float32[np.ndarray, "W last"],
) -> list[NDArray[np.float32]]:
    """Return each token's log-probability by document, NaN where no window gives it."""
    log_p = [np.full(size, np.nan, np.float32) for size in sizes]
    unread = length - nll.shape[1]  # targets of a window, at its start
    for (document, start, first, last), row in zip(windows, nll, strict=True):
        log_p[document][start + first : start + last + 1] = -row[first - 1 - unread : last - unread]
    return log_p


def is_key(
    whole: Float32[np.ndarray, " N"], near: Float32[np.ndarray, " N"], alpha: float, beta: float
) -> Bool[np.ndarray, " N"]:
    """Return which tokens are key tokens, given their log-probabilities; NaN counts as none."""
    return (whole - near > alpha) & (whole > beta)


def key_blocks(tokens: NDArray[np.int64], width: int) -> list[NDArray[np.int64]]:
    """Divide a document's ascending key tokens into blocks of at most `width` places."""
    blocks, begin = [], 0
    while begin < len(tokens):
        end = int(np.searchsorted(tokens, tokens[begin] + width))
        blocks.append(tokens[begin:end])
        begin = end
    return blocks
