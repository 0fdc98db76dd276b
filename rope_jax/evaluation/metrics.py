"""What a sweep measures at each length: perplexity by a protocol, or a task.

Tasks read samples, or key tokens, and score their answers.

Shapes: W windows, n targets, n_plus_1 = n + 1 tokens; m: targets at the end with all scored ones.
"""

import functools
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Int32
from numpy.typing import NDArray

from rope_jax.config.tasks import LongPPL, SampledTask, SweepTask
from rope_jax.evaluation.key_tokens import (
    FEWEST,
    KeyBlock,
    KeyTokens,
    key_blocks,
    read_key_tokens,
)
from rope_jax.protocols import Protocol
from rope_jax.protocols.windows import RELIABLE_UNITS, Bos, Streams, Windows, streams_of
from rope_jax.tasks import Draws, Request, Words

Tokens = Int32[np.ndarray, "W n_plus_1"]
# What draws are for: equal numbers for different purposes must not be the same.
_FOR_TEXT, _FOR_QUESTION, _FOR_BLOCKS = 0, 1, 2


class TaskCell(NamedTuple):
    """One place of a task's table at a length."""

    depth: float | None = None
    """Where what is asked for lies, 0 at the start; None: it has no place."""
    ablated: bool = False
    """Whether what is asked for was replaced by other text."""


class Metric(ABC):
    """A protocol or a task, with the texts that a sweep reads for it."""

    label: str
    """Its name in the results, unique in the sweep."""
    has_answers: bool
    """Whether it has answers that are exact or not, beside their NLL."""
    by_position: bool = False
    """See `Protocol.by_position`."""
    cells: tuple[TaskCell, ...] = (TaskCell(),)
    """What is measured at each length."""

    @abstractmethod
    def windows(self, length: int, cell: TaskCell) -> Windows:
        """Return the windows of a length, and what is scored in them."""

    @abstractmethod
    def tokens(self, windows: Windows, length: int, cell: TaskCell) -> Tokens:
        """Return the tokens of windows, read at a length that may exceed theirs."""

    def windows_hash(self, windows: Windows, length: int, cell: TaskCell) -> str:
        """Return a hash that is equal for equal `tokens`."""
        return self.fingerprint(length, cell)

    @abstractmethod
    def fingerprint(self, length: int, cell: TaskCell) -> str:
        """Return a hash of the tokens that are scored at a length."""

    def divisor(self, windows: Windows, length: int) -> Float64[np.ndarray, " W"]:
        """Return what the NLLs of a window are divided by before they are added up."""
        return np.ones(len(windows.start))

    def scored_bytes(self, windows: Windows, length: int) -> Float64[np.ndarray, " W"] | None:
        """Return the bytes of text of the scored targets of each window; None: unknown."""
        return None


class Perplexity(Metric):
    """Perplexity on a sweep's documents, by a protocol."""

    has_answers = False

    def __init__(self, protocol: Protocol, token_bytes: NDArray[Any] | None) -> None:
        self.label, self.by_position = protocol.name, protocol.by_position
        self.protocol, self._token_bytes = protocol, token_bytes

    @functools.cache  # noqa: B019  (it lives as long as its sweep)
    def windows(self, length: int, cell: TaskCell) -> Windows:
        return self.protocol.windows(length)

    def tokens(self, windows: Windows, length: int, cell: TaskCell) -> Tokens:
        return self.protocol.streams.cut(windows.document, windows.start, length)

    def windows_hash(self, windows: Windows, length: int, cell: TaskCell) -> str:
        digest = hashlib.sha256()
        for array in (windows.document, windows.start):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    @functools.cache  # noqa: B019  (it lives as long as its sweep)
    def fingerprint(self, length: int, cell: TaskCell) -> str:
        return self.protocol.streams.fingerprint(self.windows(length, cell), length)

    def divisor(self, windows: Windows, length: int) -> Float64[np.ndarray, " W"]:
        return self.protocol.divisor(windows, length)

    def scored_bytes(self, windows: Windows, length: int) -> Float64[np.ndarray, " W"] | None:
        if self._token_bytes is None:
            return None
        begin, end = windows.start + windows.first, windows.start + length + 1
        spans = zip(*(x.tolist() for x in (windows.document, begin, end)), strict=True)
        scored = [self.protocol.streams.tokens[document][slice(*span)] for document, *span in spans]
        return np.array([self._token_bytes[targets].sum() for targets in scored], np.float64)


class TaskMetric(Metric):
    """A task of a sweep."""

    has_answers = True
    settings: SweepTask


class SampledTaskMetric(TaskMetric):
    """A task on samples that are the same for all scalings, with the same keys at all lengths."""

    settings: SampledTask

    def __init__(
        self, settings: SampledTask, words: Words, streams: Streams, *, longest: int, seed: int
    ) -> None:
        """streams: what samples are filled with; a sample's text ends at the same place always."""
        self.label, self.settings = settings.label, settings
        self.cells = (*map(TaskCell, settings.places), TaskCell(ablated=True))
        self._words, self._longest, self._seed = words, longest, seed
        first = 0 if words.bos_id is None else 1
        self._texts = [stream[first:] for stream in streams.tokens]

    @functools.cache  # noqa: B019  (it lives as long as its sweep)
    def windows(self, length: int, cell: TaskCell) -> Windows:
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

    def tokens(self, windows: Windows, length: int, cell: TaskCell) -> Tokens:
        return self._samples(length, cell)[0]

    @functools.cache  # noqa: B019  (it lives as long as its sweep)
    def fingerprint(self, length: int, cell: TaskCell) -> str:
        digest = hashlib.sha256()
        for array in self._samples(length, cell):
            digest.update(array.astype("<i4").tobytes())
        return digest.hexdigest()[:16]

    def _samples(self, length: int, cell: TaskCell) -> tuple[Tokens, Int32[np.ndarray, "W n"]]:
        """Return the tokens and the answers of all samples; ValueError if they do not fit."""
        depth = 0.5 if cell.depth is None else cell.depth
        samples = []
        for number in range(self.settings.samples):
            draws = Draws(self._seed, number, purpose=_FOR_QUESTION)
            text = self._text(number)
            request = Request(self._words, text, draws, length, depth, cell.ablated)
            samples.append(self.settings.sample(request))
        tokens, answers = zip(*samples, strict=True)
        return np.stack(tokens), np.stack(answers)

    def _text(self, number: int) -> NDArray[np.int32]:
        """Return the `longest` tokens that fill a sample: the same ones at every length."""
        text = self._texts[number % len(self._texts)]
        ends = len(text) - self._longest + 1
        end = self._longest + Draws(self._seed, number, purpose=_FOR_TEXT).below(ends)
        return text[end - self._longest : end]


class KeyTokenMetric(TaskMetric):
    """The key tokens of a mask, each an answer, at the end of windows that grow to the left."""

    settings: LongPPL

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
        """documents: without document starts. width: of a block, in tokens.

        ValueError: the mask is not of these documents, or there are too few key tokens.
        """
        self.label, self.settings = settings.label, settings
        mask = read_key_tokens(settings.mask)
        self._blocks = self._chosen(mask, documents, longest, width, seed)
        read = sorted({block.document for block in self._blocks})
        self._streams = streams_of(documents, read, "blocks", bos, bos_id)
        self._document = np.searchsorted(read, [block.document for block in self._blocks])
        # the places of each block's first and last key token in its stream
        places = np.array([(block.tokens[0], block.tokens[-1]) for block in self._blocks])
        self._first, self._last = (places + (bos != "none")).T
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
    def windows(self, length: int, cell: TaskCell) -> Windows:
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

    def tokens(self, windows: Windows, length: int, cell: TaskCell) -> Tokens:
        return self._streams.cut(windows.document, windows.start, length)

    @functools.cache  # noqa: B019  (it lives as long as its sweep)
    def fingerprint(self, length: int, cell: TaskCell) -> str:
        digest = hashlib.sha256()
        for stream in self._streams.tokens:
            digest.update(hashlib.sha256(stream.astype("<i4").tobytes()).digest())
        for document, block in zip(self._document, self._blocks, strict=True):
            digest.update(np.array([document, len(block.tokens), *block.tokens], "<i8").tobytes())
        return digest.hexdigest()[:16]


def exact_answers(
    answers: Int32[np.ndarray, "W m"], is_top1: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return how many answers of each window [W] are exact: all targets are the first choice.

    answers: which answer each target belongs to, −1 if none.
    """
    width = int(answers.max(initial=0)) + 1
    window = np.arange(len(answers))[:, None]
    # number every answer of every window; what is not scored goes to a bin that is dropped
    numbers = np.where(answers >= 0, window * width + answers, len(answers) * width).ravel()
    bins = len(answers) * width + 1
    targets = np.bincount(numbers, minlength=bins)[:-1].reshape(-1, width)
    wrong = np.bincount(numbers, ~is_top1.ravel(), minlength=bins)[:-1].reshape(-1, width)
    return ((targets > 0) & (wrong == 0)).sum(1)
