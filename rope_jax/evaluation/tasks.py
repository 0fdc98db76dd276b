"""What a sweep measures: protocols of perplexity, and tasks with questions, as one kind of object.

A protocol reads windows of documents and scores their last targets. A task reads samples, windows
made for it, and scores the targets of its answers.

Shapes: W windows, n targets of a window, n_plus_1 = n + 1 tokens; m: how many targets at the end of
a window contain everything that is scored.
"""

import functools
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float64, Int32
from numpy.typing import NDArray

from rope_jax.config.sweep import Bos, Protocol
from rope_jax.config.tasks import LongPPL, SampledTask, SweepTask
from rope_jax.evaluation import protocols
from rope_jax.evaluation.key_tokens import (
    FEWEST,
    KeyBlock,
    KeyTokens,
    key_blocks,
    read_key_tokens,
)
from rope_jax.evaluation.protocols import Streams, Windows
from rope_jax.results.statistics import RELIABLE_UNITS
from rope_jax.tasks import Draws, Words

# What draws are for: equal numbers for different purposes must not be the same.
_FOR_TEXT, _FOR_QUESTION, _FOR_BLOCKS = 0, 1, 2


class Cell(NamedTuple):
    """One place of a task's table at a length."""

    depth: float | None = None
    """Where what is asked for lies, 0 at the start; None: it has no place."""
    taken_out: bool = False
    """Whether what is asked for was replaced by other text."""


class Measured(ABC):
    """A protocol or a task, with the texts that a sweep reads for it."""

    label: str
    """Its name in the results, unique in the sweep."""
    asks: bool
    """Whether it has answers that are exact or not, beside their NLL."""

    @property
    @abstractmethod
    def cells(self) -> tuple[Cell, ...]:
        """What is measured at each length."""

    @abstractmethod
    def windows(self, length: int, cell: Cell) -> Windows:
        """Return the windows of a length, and what is scored in them."""

    @abstractmethod
    def tokens(self, windows: Windows, length: int, cell: Cell) -> Int32[np.ndarray, "W n_plus_1"]:
        """Return the tokens of windows, read at a length that may exceed that of `windows`."""

    @abstractmethod
    def text(self, windows: Windows, length: int, cell: Cell) -> str:
        """Return a hash that is equal for equal `tokens`."""

    @abstractmethod
    def fingerprint(self, length: int, cell: Cell) -> str:
        """Return a hash of the tokens that are scored at a length."""

    def divisor(self, windows: Windows, length: int) -> Float64[np.ndarray, " W"]:
        """Return what the NLLs of a window are divided by before they are added up."""
        return np.ones(len(windows.start))

    def scored_bytes(self, windows: Windows, length: int) -> Float64[np.ndarray, " W"] | None:
        """Return the bytes of text of the scored targets of each window; None: unknown."""
        return None


class PerplexityProtocol(Measured):
    """A protocol of perplexity on a sweep's documents."""

    asks = False
    cells = (Cell(),)

    def __init__(
        self,
        protocol: Protocol,
        streams: Streams,
        *,
        lengths: Sequence[int],
        targets: int,
        max_blocks: int | Literal["auto"],
        stride: int,
        seed: int,
        bos: Bos,
        bos_id: int | None,
        token_bytes: NDArray[Any] | None,
    ) -> None:
        """Prepare a protocol; see `protocols.plan` and `protocols.blocks_per_document`."""
        self.label = protocol
        self._protocol, self._streams = protocol, streams
        self._lengths, self._targets, self._stride, self._seed = lengths, targets, stride, seed
        self._bos, self._bos_id, self._token_bytes = bos, bos_id, token_bytes
        self._blocks = protocols.blocks_per_document(
            max_blocks,
            protocol,
            streams.units,
            documents=len(streams.tokens),
            targets=targets,
            longest=lengths[-1],
        )

    @functools.cache  # noqa: B019  (it lives as long as its sweep)
    def windows(self, length: int, cell: Cell) -> Windows:
        return protocols.plan(
            self._protocol,
            self._streams.tokens,
            length,
            lengths=self._lengths,
            targets=self._targets,
            blocks=self._blocks,
            stride=self._stride,
            seed=self._seed,
            units=self._streams.units,
        )

    def scored_bytes(self, windows: Windows, length: int) -> Float64[np.ndarray, " W"] | None:
        if self._token_bytes is None:
            return None
        begin, end = windows.start + windows.first, windows.start + length + 1
        spans = zip(*(x.tolist() for x in (windows.document, begin, end)), strict=True)
        scored = [self._streams.tokens[document][slice(*span)] for document, *span in spans]
        return np.array([self._token_bytes[targets].sum() for targets in scored], np.float64)

    def tokens(self, windows: Windows, length: int, cell: Cell) -> Int32[np.ndarray, "W n_plus_1"]:
        return protocols.cut(
            self._streams.tokens,
            windows.document,
            windows.start,
            length,
            bos=self._bos,
            bos_id=self._bos_id,
        )

    def text(self, windows: Windows, length: int, cell: Cell) -> str:
        digest = hashlib.sha256()
        for array in (windows.document, windows.start):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    @functools.cache  # noqa: B019  (it lives as long as its sweep)
    def fingerprint(self, length: int, cell: Cell) -> str:
        windows = self.windows(length, cell)
        return protocols.fingerprint(self._streams.tokens, windows, length, self._bos)

    def divisor(self, windows: Windows, length: int) -> Float64[np.ndarray, " W"]:
        if self._protocol == "yarn_compat":
            return (length - windows.first + 1).astype(np.float64)
        return super().divisor(windows, length)


class TaskMeasured(Measured):
    """A task of a sweep."""

    asks = True
    settings: SweepTask


class AskedTask(TaskMeasured):
    """A task on samples that are the same for all scalings, with the same keys at all lengths."""

    settings: SampledTask

    def __init__(
        self, settings: SampledTask, words: Words, streams: Streams, *, longest: int, seed: int
    ) -> None:
        """Prepare a task.

        streams: what samples are filled with. longest: the longest length; a sample's text ends at
            the same place at every length.
        """
        self.label, self.settings = settings.label, settings
        self._words, self._longest, self._seed = words, longest, seed
        first = 0 if words.bos_id is None else 1
        self._texts = [stream[first:] for stream in streams.tokens]

    @property
    def cells(self) -> tuple[Cell, ...]:
        asked = [Cell(depth) for depth in self.settings.places]
        return (*asked, Cell(taken_out=True))

    @functools.cache  # noqa: B019  (it lives as long as its sweep)
    def windows(self, length: int, cell: Cell) -> Windows:
        _, answers = self._samples(length, cell)
        scored = answers >= 0
        count = length - int(scored.any(0).argmax())
        numbers = np.arange(len(answers), dtype=np.int64)
        return Windows(
            document=numbers % len(self._texts),
            start=np.zeros_like(numbers),
            first=scored.argmax(1).astype(np.int64) + 1,
            unit=numbers,
            answers=answers[:, length - count :],
        )

    def tokens(self, windows: Windows, length: int, cell: Cell) -> Int32[np.ndarray, "W n_plus_1"]:
        return self._samples(length, cell)[0]

    def text(self, windows: Windows, length: int, cell: Cell) -> str:
        return self.fingerprint(length, cell)

    @functools.cache  # noqa: B019  (it lives as long as its sweep)
    def fingerprint(self, length: int, cell: Cell) -> str:
        digest = hashlib.sha256()
        for array in self._samples(length, cell):
            digest.update(array.astype("<i4").tobytes())
        return digest.hexdigest()[:16]

    def _samples(
        self, length: int, cell: Cell
    ) -> tuple[Int32[np.ndarray, "W n_plus_1"], Int32[np.ndarray, "W n"]]:
        """Return the tokens and the answers of all samples; ValueError if they do not fit."""
        samples = [
            self.settings.sample(
                self._words,
                self._text(number),
                Draws(self._seed, number, purpose=_FOR_QUESTION),
                length,
                0.5 if cell.depth is None else cell.depth,
                taken_out=cell.taken_out,
            )
            for number in range(self.settings.samples)
        ]
        tokens, answers = zip(*samples, strict=True)
        return np.stack(tokens), np.stack(answers)

    def _text(self, number: int) -> NDArray[np.int32]:
        """Return the `longest` tokens that fill a sample: the same ones at every length."""
        text = self._texts[number % len(self._texts)]
        ends = len(text) - self._longest + 1
        end = self._longest + Draws(self._seed, number, purpose=_FOR_TEXT).below(ends)
        return text[end - self._longest : end]


class KeyTokenTask(TaskMeasured):
    """The key tokens of a mask, each an answer, at the end of windows that grow to the left."""

    settings: LongPPL
    cells = (Cell(),)

    def __init__(
        self,
        settings: LongPPL,
        documents: Sequence[NDArray[np.integer]],
        *,
        longest: int,
        width: int,
        seed: int,
        bos: Bos,
        bos_id: int | None,
    ) -> None:
        """Read the mask and choose the blocks that are scored.

        documents: those of the split that the mask is of, without document starts. longest: the
            longest length. width: the most tokens from a block's first to its last.

        ValueError, which begins with a key: the mask is not of these documents, or there are too
        few key tokens.
        """
        self.label, self.settings = settings.label, settings
        self._bos, self._bos_id = bos, bos_id
        mask = read_key_tokens(settings.mask)
        self._blocks = self._chosen(mask, documents, longest, width, seed)
        prefix = [] if bos == "none" else [bos_id]
        read = sorted({block.document for block in self._blocks})
        self._streams = [
            np.concatenate([prefix, documents[document]]).astype(np.int32) for document in read
        ]
        self._document = np.searchsorted(read, [block.document for block in self._blocks])
        # the places of each block's first and last key token in its stream
        places = np.array([(block.tokens[0], block.tokens[-1]) for block in self._blocks])
        self._first, self._last = (places + len(prefix)).T
        few = len(read) < RELIABLE_UNITS
        part = self._last // longest if few else np.zeros(len(places), np.int64)
        pairs = np.stack([self._document, part], axis=1)
        self._unit = np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1)

    def _chosen(
        self,
        mask: KeyTokens,
        documents: Sequence[NDArray[np.integer]],
        longest: int,
        width: int,
        seed: int,
    ) -> list[KeyBlock]:
        """Return the blocks that are scored, in the order of the texts."""
        path, blocks = self.settings.mask, list[KeyBlock]()
        for one in mask.documents:
            tokens = np.array(one.tokens, np.int64)
            size = len(documents[one.index]) if one.index < len(documents) else 0
            if (tokens >= size).any():
                raise ValueError(f"mask: {path} has key tokens that are not in these documents")
            # as many before them whether or not a document start is
            blocks += key_blocks(one.index, tokens[tokens >= longest], width)
        count = min(self.settings.samples, len(blocks))
        numbers = Draws(seed, purpose=_FOR_BLOCKS).different(len(blocks), count)
        chosen = [blocks[number] for number in sorted(numbers)]
        there_are, scored = (sum(len(block.tokens) for block in of) for of in (blocks, chosen))
        if there_are < FEWEST:
            raise ValueError(
                f"mask: {there_are:,} of its {mask.count:,} key tokens have the {longest:,} tokens "
                f"of the longest length before them, and fewer than {FEWEST} say little; leave out "
                "the longest length, or make a mask of more documents"
            )
        if scored < FEWEST:
            raise ValueError(
                f"samples: {count:,} blocks hold {scored:,} key tokens, and fewer than {FEWEST} "
                "say little; take more blocks"
            )
        return chosen

    @functools.cache  # noqa: B019  (it lives as long as its sweep)
    def windows(self, length: int, cell: Cell) -> Windows:
        width = int((self._last - self._first).max()) + 1
        answers = np.full((len(self._blocks), width), -1, np.int32)
        for row, block in zip(answers, self._blocks, strict=True):
            row[width - 1 - (block.tokens[-1] - block.tokens)] = np.arange(len(block.tokens))
        return Windows(
            document=self._document,
            start=self._last - length,
            first=length - (self._last - self._first),
            unit=self._unit,
            answers=answers,
        )

    def tokens(self, windows: Windows, length: int, cell: Cell) -> Int32[np.ndarray, "W n_plus_1"]:
        return protocols.cut(
            self._streams,
            windows.document,
            windows.start,
            length,
            bos=self._bos,
            bos_id=self._bos_id,
        )

    def text(self, windows: Windows, length: int, cell: Cell) -> str:
        return self.fingerprint(length, cell)

    @functools.cache  # noqa: B019  (it lives as long as its sweep)
    def fingerprint(self, length: int, cell: Cell) -> str:
        digest = hashlib.sha256()
        for stream in self._streams:
            digest.update(hashlib.sha256(stream.astype("<i4").tobytes()).digest())
        for document, block in zip(self._document, self._blocks, strict=True):
            digest.update(np.array([document, len(block.tokens), *block.tokens], "<i8").tobytes())
        return digest.hexdigest()[:16]


def exact_answers(
    answers: Int32[np.ndarray, "W m"], is_first: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return how many answers of each window are exact, and how many there are: two arrays [W].

    answers: which answer each target belongs to, −1 if none. is_first: whether each target is the
    model's first choice. An answer is exact if all of its targets are.
    """
    width = int(answers.max(initial=0)) + 1
    window = np.arange(len(answers))[:, None]
    # number every answer of every window; what is not scored goes to a bin that is dropped
    numbers = np.where(answers >= 0, window * width + answers, len(answers) * width).ravel()
    bins = len(answers) * width + 1
    targets = np.bincount(numbers, minlength=bins)[:-1].reshape(-1, width)
    wrong = np.bincount(numbers, ~is_first.ravel(), minlength=bins)[:-1].reshape(-1, width)
    return ((targets > 0) & (wrong == 0)).sum(1), (targets > 0).sum(1)
