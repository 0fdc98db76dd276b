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
from jaxtyping import Bool, Float32, Int32, Int64
from numpy.typing import NDArray
from pydantic import ValidationError

from rope_jax.config.types import Ascending, Frozen, NonNegativeInt
from rope_jax.rope.files import read_limited

FEWEST = 200
"""A mean over fewer key tokens says little."""
_MOST_BYTES = 2**28


class Evaluator(Frozen):
    """The checkpoint that found key tokens; window: in tokens."""

    run: str
    step: int
    window: int


class DocumentKeys(Frozen):
    """The key tokens of one document."""

    index: NonNegativeInt
    """Among the documents of the split."""
    id: str
    tokens: Annotated[tuple[NonNegativeInt, ...], Ascending]
    """Their places in the document; a document start does not count."""


class KeyTokens(Frozen):
    """A file of key tokens, and what they depend on."""

    corpus: str
    """The corpus's fingerprint."""
    split: Literal["test", "validation"]
    evaluator: Evaluator
    short: int
    """K."""
    stride: int
    """s."""
    alpha: float
    beta: float
    max_documents: int
    seed: int
    """Of the choice of documents."""
    candidates: int
    """How many targets have K tokens before them in the documents that were read."""
    documents: tuple[DocumentKeys, ...]

    @property
    def count(self) -> int:
        """How many key tokens they hold."""
        return sum(len(document.tokens) for document in self.documents)


def read_key_tokens(path: str) -> KeyTokens:
    """Return the content of a file. ValueError, which begins with the key `mask`: it has none."""
    try:
        content = read_limited(Path(path).expanduser(), _MOST_BYTES)
        return KeyTokens.model_validate_json(content)
    except OSError as error:
        raise ValueError(f"mask: {path} cannot be read ({error.strerror})") from None
    except ValidationError:
        raise ValueError(
            f"mask: {path} is not a file of key tokens; scripts/key_tokens.py writes them"
        ) from None


class TargetWindows(NamedTuple):
    """Windows of one length, and the targets whose log-probability is taken in each."""

    length: int
    document: Int64[np.ndarray, " W"]
    start: Int64[np.ndarray, " W"]
    """Index of the window's first input in its document."""
    first: Int64[np.ndarray, " W"]
    """Position of the first target that counts."""
    last: Int64[np.ndarray, " W"]
    """Position of the last one. Behind it, a window may exceed its document."""

    def tokens(self, streams: Sequence[NDArray[np.integer]]) -> Int32[np.ndarray, "W n_plus_1"]:
        """Return the windows' tokens, those beyond a document's end repeating its last one."""
        places = self.start[:, None] + np.arange(self.length + 1)
        rows = [
            streams[document][np.minimum(row, len(streams[document]) - 1)]
            for document, row in zip(self.document, places, strict=True)
        ]
        return np.stack(rows).astype(np.int32)


def whole_windows(sizes: Sequence[int], length: int, least: int) -> TargetWindows:
    """Return windows of documents whose targets have all, or more than `least`, before them."""
    parts = []
    for document, size in enumerate(sizes):
        ends = np.append(np.arange(length, size - 1, length - least), size - 1)
        starts = np.maximum(ends - length, 0)
        firsts = np.append(0, ends[:-1]) - starts + 1
        parts.append((np.full(len(ends), document), starts, firsts, ends - starts))
    return _joined(length, parts)


def near_windows(sizes: Sequence[int], short: int, stride: int) -> TargetWindows:
    """Return windows whose targets have `short` to `short + stride − 1` tokens before them."""
    length = short + stride - 1
    parts = []
    for document, size in enumerate(sizes):
        starts = np.arange(0, max(0, size - short), stride)
        lasts = np.minimum(length, size - 1 - starts)
        parts.append((np.full(len(starts), document), starts, np.full(len(starts), short), lasts))
    return _joined(length, parts)


def _joined(length: int, parts: Sequence[tuple[NDArray[np.int64], ...]]) -> TargetWindows:
    columns = (np.concatenate(column).astype(np.int64) for column in zip(*parts, strict=True))
    return TargetWindows(length, *columns)


def log_probabilities(
    windows: TargetWindows, sizes: Sequence[int], nll: Float32[np.ndarray, "W last"]
) -> list[NDArray[np.float32]]:
    """Return each token's log-probability by document, NaN where no window gives it."""
    log_p = [np.full(size, np.nan, np.float32) for size in sizes]
    unseen = windows.length - nll.shape[1]  # targets of a window, at its start
    for document, start, first, last, row in zip(*windows[1:], nll, strict=True):
        log_p[document][start + first : start + last + 1] = -row[first - 1 - unseen : last - unseen]
    return log_p


def is_key(
    whole: Float32[np.ndarray, " N"], near: Float32[np.ndarray, " N"], alpha: float, beta: float
) -> Bool[np.ndarray, " N"]:
    """Return which tokens are key tokens, given their log-probabilities; NaN counts as none."""
    return (whole - near > alpha) & (whole > beta)


class KeyBlock(NamedTuple):
    """Key tokens of a document that one window scores."""

    document: int
    tokens: NDArray[np.int64]
    """Their places in the document, ascending."""


def key_blocks(document: int, tokens: NDArray[np.int64], width: int) -> list[KeyBlock]:
    """Divide a document's ascending key tokens into blocks of at most `width` places."""
    blocks, begin = list[KeyBlock](), 0
    while begin < len(tokens):
        end = int(np.searchsorted(tokens, tokens[begin] + width))
        blocks.append(KeyBlock(document, tokens[begin:end]))
        begin = end
    return blocks
