"""What a task is: samples, each a window of tokens with the answers that are asked for in it.

A sample is read in one forward pass with the right answers in place (teacher forcing). An answer is
a group of targets; it is exact if each of them is the model's first choice.

Shapes: n targets of a window, n_plus_1 = n + 1 tokens.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Int32
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from rope_jax.tasks.draws import Draws


class TokenizerView(NamedTuple):
    """How a model's tokens are made; has_words: whether a token may stand for more than a byte."""

    encode: Callable[[str], NDArray[np.integer]]
    vocab_size: int
    bos_ids: Sequence[int]
    has_words: bool

    def joined(self, *pieces: str) -> NDArray[np.integer]:
        """Return the tokens of pieces, encoded one by one so that equal ones have equal tokens."""
        return np.concatenate([self.encode(piece) for piece in pieces])

    def start(self) -> NDArray[np.integer]:
        """Return what a sample begins with: the document start, if any."""
        return np.array(self.bos_ids, np.int32)

    def ordinary(self) -> Int32[np.ndarray, " V"]:
        """Return the tokens that random ones are drawn from: no document start.

        Of a byte model only bytes: it may have a document start that it does not use.
        """
        count = self.vocab_size if self.has_words else min(256, self.vocab_size)
        tokens = np.arange(count, dtype=np.int32)
        return tokens[~np.isin(tokens, self.bos_ids)]

    def random(self, draws: Draws, count: int) -> Int32[np.ndarray, " count"]:
        tokens = self.ordinary()
        return tokens[draws.tokens(len(tokens), count)]


class Sample(NamedTuple):
    """One window, and which answer each target belongs to, from 0; −1: it is not asked for."""

    tokens: Int32[np.ndarray, " n_plus_1"]
    answers: Int32[np.ndarray, " n"]


class Request(NamedTuple):
    """What a sample is made of."""

    words: TokenizerView
    text: NDArray[np.integer]
    """At least `length` tokens to fill the window with, of which the last ones are used."""
    draws: Draws
    """Equal ones give equal keys and values at every length and depth."""
    length: int
    depth: float
    """Where what is asked for is placed: 0 at the start of the window, 1 before the question."""
    ablated: bool = False
    """Whether what is asked for is replaced by other text, for comparison."""


class Question(BaseModel):
    """The settings of a task, and what they mean for its answers."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    task: str
    title: ClassVar[str]
    source: ClassVar[str]
    has_depth: ClassVar[bool] = True
    """Whether what is asked for can be placed at any depth."""
    has_answers: ClassVar[bool] = True
    """Whether its targets are answers that are exact or not; otherwise only their NLL counts."""
    needs_words: ClassVar[bool] = False
    """Whether it is for tokenizers whose tokens are longer than a byte."""

    @property
    def chance(self) -> float | None:
        """The share of exact answers by guessing well; None: it depends on the text or length."""
        return None

    def distance(self, length: int) -> int | None:
        """How many tokens before a target is the one that has to be found; None: it varies."""
        return None


class Task(Question):
    """A task on samples that it makes."""

    @abstractmethod
    def sample(self, request: Request) -> Sample:
        """Return a sample of n = length targets.

        ValueError: the window is too short; the message begins with the setting that is too large.
        """


def hide(
    needle: NDArray[np.integer],
    request: Request,
    *,
    question: NDArray[np.integer],
    answer: NDArray[np.integer],
    setting: str,
    start: NDArray[np.integer] | None = None,
) -> Sample:
    """Return the sample with start, text that holds the needle at the depth, question, answer.

    Ablated, more text is in the needle's place.
    setting: what makes them long, as in "digits: 5"; the ValueError begins with it if the window is
        too short for all of them. start: default: the document-start token.
    """
    text, length = request.text, request.length
    start = request.words.start() if start is None else start
    free = length + 1 - len(start) - len(question) - len(answer)
    missing = len(needle) - free
    if missing > 0:
        raise ValueError(
            f"{setting} need a window of {length + missing:,} tokens, not {length:,}; take a "
            "longer one"
        )
    hidden = needle[:0] if request.ablated else needle
    filler = text[len(text) - free + len(hidden) :]
    place = round(request.depth * len(filler))
    tokens = np.concatenate([start, filler[:place], hidden, filler[place:], question, answer])
    return answered_at_end(tokens, np.zeros(len(answer)))


def answered_at_end(tokens: NDArray[np.integer], last: NDArray[Any]) -> Sample:
    """Return the sample whose last targets belong to the answers `last`, and no others to any."""
    answers = np.full(len(tokens) - 1, -1, np.int32)
    answers[len(answers) - len(last) :] = last
    return Sample(tokens.astype(np.int32), answers)
