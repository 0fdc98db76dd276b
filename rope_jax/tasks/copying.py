"""`induction` and `repeat`: how far back a model copies, at one distance per length."""

from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rope_jax.rope.settings import Whole
from rope_jax.tasks.base import Request, Sample, Task, TokenizerView, answered_at_end
from rope_jax.tasks.draws import Draws


class Induction(Task):
    """Random tokens twice, back to back: each token of the second copy is n before it.

    START r r → r from its second token, with n = ⌊length / 2⌋ tokens in r

    Every token of a byte model is a byte. Between the start and the first copy are as many other
    random tokens as fill the window; ablated, the first copy is random, too. Each token is an
    answer by itself, with a chance level of 1 / the number of tokens to draw from.
    """

    title: ClassVar[str] = "induction"
    source: ClassVar[str] = "after Olsson et al., arXiv 2209.11895"
    task: Literal["induction"] = "induction"
    has_depth: ClassVar[bool] = False

    def distance(self, length: int) -> int:
        return length // 2

    def sample(self, request: Request) -> Sample:
        words, draws, length = request.words, request.draws, request.length
        n = self.distance(length)
        if n < 2:
            raise ValueError(
                f"task: induction needs a window of 4 tokens, not {length}; take a longer one"
            )
        copy, others = words.random(draws.part(), n), words.random(draws.part(), n)
        twice = np.concatenate([others if request.ablated else copy, copy])
        tokens, lost = _opened(words, draws, twice, length)
        return answered_at_end(tokens, np.arange(n - 1 - lost))


class Repeat(Task):
    """A stretch of a text, the text that precedes it, and the stretch again.

    START s FILLER s → s from its second token

    The text ends with the stretch, so the second one is a natural continuation; ablated, the window
    is the text alone. Each token is an answer by itself. Without a document start, the window
    begins with a random token.
    """

    title: ClassVar[str] = "repeat"
    source: ClassVar[str] = "a stretch of the corpus, after a gap"
    task: Literal["repeat"] = "repeat"
    has_depth: ClassVar[bool] = False
    stretch: Annotated[int, Field(ge=2, lt=2**31), Whole] = Field(
        32, description="tokens that are repeated"
    )

    def distance(self, length: int) -> int:
        return length - self.stretch

    def sample(self, request: Request) -> Sample:
        text, length = request.text, request.length
        if length < 2 * self.stretch:
            raise ValueError(
                f"stretch: {self.stretch:,} tokens twice need a window of {2 * self.stretch:,} "
                f"tokens, not {length:,}; take a longer one, or a smaller stretch"
            )
        last = text[len(text) - length :]
        if not request.ablated:
            last = np.concatenate([text[len(text) - self.stretch :], last[self.stretch :]])
        tokens, lost = _opened(request.words, request.draws, last, length)
        return answered_at_end(tokens, np.arange(self.stretch - 1 - lost))


def _opened(
    words: TokenizerView, draws: Draws, rest: NDArray[np.integer], length: int
) -> tuple[NDArray[np.integer], int]:
    """Put the start, and random tokens that fill the window, before the rest of a sample.

    Returns the tokens, and how many of the rest's first ones a start of several tokens replaces;
    as many answers cannot be found then.
    """
    start = words.start()
    free = length + 1 - len(start) - len(rest)
    filler = words.random(draws, max(free, 0))
    lost = max(-free, 0)
    return np.concatenate([start, filler, rest[lost:]]), lost
