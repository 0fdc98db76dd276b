"""What a sweep measures on windows of its documents; numpy only, no model.

A *stream* is one document's tokens, preceded by the document-start tokens unless `bos` is "none".
A window of length n is n + 1 consecutive tokens of a stream: n inputs and their n targets. The
*position* of a target is the number of tokens of context before it: positions run from 1 to n.

A *unit* is what intervals resample: a document. Where fewer than `RELIABLE_UNITS` documents are
long enough, it is a block of one, with more than the longest length between the scored tokens of
two blocks. Intervals then hold for those documents, not for others.

Shapes: W windows; n_plus_1 = n + 1 tokens; m, count: targets at the end of a window.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from jaxtyping import Float64, Int32, Int64
from numpy.typing import NDArray

from rope_jax.errors import UserError

Bos = Literal["document", "every_window", "none"]
UnitKind = Literal["documents", "blocks"]

RELIABLE_UNITS = 20
"""An interval over fewer units is not to be trusted."""
TOKEN_BUDGET = 2**14
"""How many tokens `max_blocks: auto` scores per protocol, if the documents have as many."""


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
    bos: Bos
    bos_ids: tuple[int, ...]
    """The tokens before each document; () with bos "none"."""

    def cut(self, windows: Windows, length: int) -> Int32[np.ndarray, "W n_plus_1"]:
        """Return the tokens of windows of `length`."""
        places = zip(windows.document, windows.start, strict=True)
        tokens = np.stack([self.tokens[d][start : start + length + 1] for d, start in places])
        if self.bos == "every_window":
            tokens[:, : len(self.bos_ids)] = self.bos_ids
        return tokens

    def scored_bytes(
        self, windows: Windows, length: int, token_bytes: NDArray[Any]
    ) -> Float64[np.ndarray, " W"]:
        """Return the bytes of text of the scored targets of each window, given those by token."""
        begins, ends = windows.start + windows.first, windows.start + length + 1
        spans = zip(windows.document, begins, ends, strict=True)
        scored = [self.tokens[document][begin:end] for document, begin, end in spans]
        return np.array([token_bytes[targets].sum() for targets in scored], np.float64)

    def fingerprint(self, windows: Windows, length: int) -> str:
        """Return a hash of the texts, and of which of their tokens are scored."""
        digest = hashlib.sha256()
        prefix = len(self.bos_ids)
        for index, stream in enumerate(self.tokens):
            is_here = windows.document == index
            starts = windows.start[is_here]
            spans = np.stack([starts + windows.first[is_here], starts + length + 1], axis=1)
            digest.update(stream[prefix:].astype("<i4").tobytes())
            digest.update(np.sort(spans - prefix, axis=0).astype("<i8").tobytes())
        return digest.hexdigest()[:16]


def streams_of(
    documents: Sequence[NDArray[np.integer]],
    indices: Sequence[int],
    units: UnitKind,
    bos: Bos,
    bos_ids: Sequence[int],
) -> Streams:
    """Return the documents at `indices`, each preceded by its start tokens if asked for."""
    prefix = () if bos == "none" else tuple(bos_ids)
    tokens = [np.concatenate([prefix, documents[i]]).astype(np.int32) for i in indices]
    return Streams(list(indices), tokens, units, bos, prefix)


def make_streams(
    documents: Sequence[NDArray[np.integer]],
    *,
    longest: int,
    max_documents: int,
    bos: Bos,
    bos_ids: Sequence[int],
    seed: int,
) -> Streams:
    """Choose documents long enough for the longest window; UserError if there are none.

    The choice is the same for every length and scaling.
    """
    prefix = 0 if bos == "none" else 1  # only one, so that there is text for the samples of tasks
    lengths = np.array([len(document) + prefix for document in documents], np.int64)
    eligible = np.flatnonzero(lengths > longest)
    if not eligible.size:
        possible = int(lengths.max()) - 1 if lengths.size else 0
        raise UserError(
            f"lengths: none of the {len(lengths)} documents has the {longest + 1} tokens that "
            f"length {longest} needs; the longest possible length is {possible}"
        )
    chosen = np.sort(np.random.default_rng([seed, 0]).permutation(eligible)[:max_documents])
    units: UnitKind = "documents" if eligible.size >= RELIABLE_UNITS else "blocks"
    return streams_of(documents, chosen.tolist(), units, bos, bos_ids)


class Metric(ABC):
    """What is measured at each length: perplexity by a protocol, or a task."""

    name: str
    streams: Streams
    by_position: bool = False
    """Whether windows begin at the same places at every length and score the positions past the
    previous length, so that a causal model's pass over the longest windows gives them all."""

    @abstractmethod
    def windows(self, length: int) -> Windows:
        """Return the windows of one of the lengths, with the targets that they score."""

    def tokens(self, windows: Windows, length: int) -> Int32[np.ndarray, "W n_plus_1"]:
        """Return the tokens of windows, read at a length that may exceed theirs."""
        return self.streams.cut(windows, length)

    def fingerprint(self, windows: Windows, length: int) -> str:
        return self.streams.fingerprint(windows, length)

    def divisor(self, windows: Windows, length: int) -> Float64[np.ndarray, " W"]:
        """Return what a window's NLLs are divided by: 1, or the targets for a mean of means."""
        return np.ones(len(windows.start))


@dataclass(eq=False, repr=False, kw_only=True)
class Protocol(Metric):
    """Which windows of a sweep's documents are read, and which of their targets are scored.

    lengths: ascending. targets, max_blocks, stride, seed: as in a sweep's config.
    """

    title: ClassVar[str]
    """Above a panel of a figure: what is scored."""
    caption: ClassVar[str] = "context length"
    """What the columns of a table stand for; {stride} is replaced by the stride in tokens."""
    scored: ClassVar[str] = ""
    """What follows the caption where a table has to explain itself: which targets are scored."""
    axis_label: ClassVar[str] = "context length (tokens)"
    uses_stride: ClassVar[bool] = False

    streams: Streams = field(kw_only=False)
    lengths: Sequence[int]
    targets: int
    max_blocks: int | Literal["auto"]
    stride: int
    seed: int

    def __post_init__(self) -> None:
        self.longest = self.lengths[-1]
        blocks = self.max_blocks
        if blocks == "auto":
            documents = len(self.streams.tokens)
            blocks = -(-TOKEN_BUDGET // (documents * self.tokens_per_block))
            if self.streams.units == "blocks":
                blocks = max(blocks, -(-RELIABLE_UNITS // documents))
        self.blocks = int(blocks)

    @property
    def tokens_per_block(self) -> int:
        """How many targets of a document are a block, of which `max_blocks` are scored."""
        return self.longest

    def stride_at(self, length: int) -> int | None:
        """Return how far apart windows of a document start; None: at random places."""
        return None
