"""What a task is: samples, each a window of tokens with the answers that are asked for in it.

A sample is read in one forward pass with the right answers in place (teacher forcing): nothing is
generated. An answer is a group of targets; it is exact if each of them is the model's first choice.

Shapes: n targets of a window, n_plus_1 = n + 1 tokens.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import numpy as np
from jaxtyping import Int32
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from rope_jax.tasks.draws import Draws


class Words(NamedTuple):
    """How a model's tokens are made."""

    encode: Callable[[str], NDArray[np.integer]]
    vocab_size: int
    bos_id: int | None
    """The token that a sample begins with; None: none."""
    has_words: bool
    """Whether a token stands for more than a byte, so that prompts written for people are short."""

    def start(self) -> NDArray[np.integer]:
        """Return what a sample begins with."""
        return np.array([] if self.bos_id is None else [self.bos_id], np.int32)


class Sample(NamedTuple):
    """One window and what is asked in it."""

    tokens: Int32[np.ndarray, " n_plus_1"]
    answers: Int32[np.ndarray, " n"]
    """Which answer a target belongs to, numbered from 0; −1: it is not asked for."""


class Task(BaseModel):
    """A task's settings, and how its samples are made."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    task: str
    title: ClassVar[str]
    """What is asked, for the title of a table or a figure."""
    source: ClassVar[str]
    """Where the task comes from."""
    has_depth: ClassVar[bool] = True
    """Whether what is asked for can be placed at any depth."""
    needs_words: ClassVar[bool] = False
    """Whether the task's texts are for tokenizers whose tokens are longer than a byte."""

    @property
    def chance(self) -> float:
        """The share of exact answers from guessing well without finding what is asked for."""
        return 0.0

    @abstractmethod
    def sample(
        self,
        words: Words,
        text: NDArray[np.integer],
        draws: Draws,
        length: int,
        depth: float,
        *,
        taken_out: bool = False,
    ) -> Sample:
        """Return a sample of n = length targets.

        text: at least n tokens to fill the window with, of which the last ones are used.
        draws: equal ones give equal keys and values at every length and depth.
        depth: where what is asked for is placed: 0 at the start of the window, 1 before the
            question. It has no effect unless `has_depth`.
        taken_out: whether what is asked for is replaced by other text, for comparison.

        ValueError: the window is too short; the message begins with the setting that is too large.
        """

    def distance(self, length: int) -> int | None:
        """How many tokens before a target is the one that has to be found; None: it varies."""
        return None


def answer_at_end(tokens: NDArray[np.integer], count: int) -> Sample:
    """Return the sample whose last `count` tokens are one answer."""
    answers = np.full(len(tokens) - 1, -1, np.int32)
    answers[len(answers) - count :] = 0
    return Sample(tokens.astype(np.int32), answers)
