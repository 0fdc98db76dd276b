"""What a sweep measures beside perplexity: tasks on samples, and key tokens.

Shapes: W windows, n targets, n_plus_1 = n + 1 tokens; m: targets at the end with all scored ones.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from jaxtyping import Int32
from numpy.typing import NDArray
from pydantic import ValidationError

from rope_jax.config.tasks import LongPPL, SampledTask, SweepTask
from rope_jax.config.types import Ascending, Frozen, NonNegativeInt
from rope_jax.protocols.base import RELIABLE_UNITS, Metric, Streams, Windows, streams_of
from rope_jax.tasks import Draws, Request, Sample, TokenizerView

# What draws are for: equal numbers for different purposes must not be the same.
_FOR_TEXT, _FOR_QUESTION, _FOR_BLOCKS = 0, 1, 2
MIN_KEY_TOKENS = 200
"""A mean over fewer key tokens says little."""


class TaskMetric(Metric):
    """A task of a sweep, at one depth."""

    settings: SweepTask
    depth: float | None = None
    ablated: bool = False


@dataclass(eq=False, repr=False)
class SampledTaskMetric(TaskMetric):
    """A task on samples that are the same for all scalings, with the same keys at all lengths.

    streams: what samples are filled with; the text of each ends at the same place at every length.
    """

    settings: SampledTask
    words: TokenizerView
    streams: Streams
    longest: int
    seed: int
    depth: float | None = None
    ablated: bool = False

    def __post_init__(self) -> None:
        self.name = self.settings.label

    def windows(self, length: int) -> Windows:
        answers = np.stack([sample.answers for sample in self._samples(length)])
        scored = answers >= 0
        count = length - int(scored.any(0).argmax())
        numbers = np.arange(len(answers), dtype=np.int64)
        return Windows(
            document=numbers % len(self.streams.tokens),
            start=np.zeros_like(numbers),
            first=scored.argmax(1).astype(np.int64) + 1,
            unit=numbers,
            answers=answers[:, length - count :],
        )

    def tokens(self, windows: Windows, length: int) -> Int32[np.ndarray, "W n_plus_1"]:
        return np.stack([sample.tokens for sample in self._samples(length)])

    def fingerprint(self, windows: Windows, length: int) -> str:
        digest = hashlib.sha256()
        for array in (self.tokens(windows, length), windows.scored(length, length, length)):
            digest.update(array.astype("<i4").tobytes())
        return digest.hexdigest()[:16]

    def _samples(self, length: int) -> list[Sample]:
        """Return all samples; ValueError if they do not fit."""
        depth = 0.5 if self.depth is None else self.depth
        samples = []
        for number in range(self.settings.samples):
            draws = Draws(self.seed, number, purpose=_FOR_QUESTION)
            text = self._text(number)
            request = Request(self.words, text, draws, length, depth, self.ablated)
            samples.append(self.settings.sample(request))
        return samples

    def _text(self, number: int) -> NDArray[np.int32]:
        """Return the `longest` tokens that fill a sample: the same ones at every length."""
        text = self.streams.tokens[number % len(self.streams.tokens)]
        text = text[len(self.streams.bos_ids) :]
        begin = Draws(self.seed, number, purpose=_FOR_TEXT).below(len(text) - self.longest + 1)
        return text[begin : begin + self.longest]


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


class KeyTokenMetric(TaskMetric):
    """The key tokens of a mask, each an answer, at the end of windows that grow to the left."""

    settings: LongPPL

    def __init__(
        self,
        settings: LongPPL,
        mask: KeyTokens,
        documents: Sequence[NDArray[np.integer]],
        streams: Streams,
        *,
        longest: int,
        width: int,
        seed: int,
    ) -> None:
        """documents: without document starts. width: of a block, in tokens.

        ValueError: the mask is not of these documents, or there are too few key tokens.
        """
        self.name, self.settings = settings.label, settings
        blocks = self._chosen(mask, documents, longest, width, seed)
        read = sorted({document for document, _ in blocks})
        self.streams = streams_of(documents, read, "blocks", streams.bos, streams.bos_ids)
        self._document = np.searchsorted(read, [document for document, _ in blocks])
        self._tokens = [tokens for _, tokens in blocks]
        # the places of each block's first and last key token in its stream
        places = np.array([(tokens[0], tokens[-1]) for tokens in self._tokens])
        self._first, self._last = (places + len(streams.bos_ids)).T
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
    ) -> list[tuple[int, NDArray[np.int64]]]:
        """Return the blocks to score: each one's document, and its key tokens' places there."""
        path, blocks = self.settings.mask, []
        for keys in mask.documents:
            tokens = np.array(keys.tokens, np.int64)
            size = len(documents[keys.index]) if keys.index < len(documents) else 0
            if (tokens >= size).any():
                raise ValueError(f"mask: {path} has key tokens that are not in these documents")
            # as many before them whether or not a document start is
            blocks += [(keys.index, b) for b in key_blocks(tokens[tokens >= longest], width)]
        count = min(self.settings.samples, len(blocks))
        numbers = Draws(seed, purpose=_FOR_BLOCKS).different(len(blocks), count)
        chosen = [blocks[number] for number in sorted(numbers)]
        there_are, scored = (sum(len(tokens) for _, tokens in of) for of in (blocks, chosen))
        if there_are < MIN_KEY_TOKENS:
            raise ValueError(
                f"mask: {there_are:,} of its {mask.count:,} key tokens have the {longest:,} tokens "
                f"of the longest length before them, and fewer than {MIN_KEY_TOKENS} say little; "
                "leave out the longest length, or make a mask of more documents"
            )
        if scored < MIN_KEY_TOKENS:
            raise ValueError(
                f"samples: {count:,} blocks hold {scored:,} key tokens, and fewer than "
                f"{MIN_KEY_TOKENS} say little; take more blocks"
            )
        return chosen

    def windows(self, length: int) -> Windows:
        width = int((self._last - self._first).max()) + 1
        answers = np.full((len(self._tokens), width), -1, np.int32)
        for row, tokens in zip(answers, self._tokens, strict=True):
            row[width - 1 - (tokens[-1] - tokens)] = np.arange(len(tokens))
        return Windows(
            document=self._document,
            start=self._last - length,
            first=length - (self._last - self._first),
            unit=self._unit,
            answers=answers,
        )

    def fingerprint(self, windows: Windows, length: int) -> str:
        digest = hashlib.sha256()
        for stream in self.streams.tokens:
            digest.update(hashlib.sha256(stream.astype("<i4").tobytes()).digest())
        for document, tokens in zip(self._document, self._tokens, strict=True):
            digest.update(np.array([document, len(tokens), *tokens], "<i8").tobytes())
        return digest.hexdigest()[:16]


def key_blocks(tokens: NDArray[np.int64], width: int) -> list[NDArray[np.int64]]:
    """Divide a document's ascending key tokens into blocks of at most `width` places."""
    blocks, begin = [], 0
    while begin < len(tokens):
        end = int(np.searchsorted(tokens, tokens[begin] + width))
        blocks.append(tokens[begin:end])
        begin = end
    return blocks


def exact_answers(
    answers: Int32[np.ndarray, "W m"], is_top1: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return how many answers of each window [W] are exact: all targets are the first choice.

    answers: which answer each target belongs to, −1 if none.
    """
    rows, targets = np.nonzero(answers >= 0)
    numbers, is_wrong = answers[rows, targets], ~is_top1[rows, targets]
    exact = np.zeros((len(answers), answers.max(initial=-1) + 1), bool)
    exact[rows, numbers] = True
    exact[rows[is_wrong], numbers[is_wrong]] = False
    return exact.sum(1)
