"""`passkey_text` and `needle`: the prompts of published tests, for models with a tokenizer."""

import math
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rope_jax.rope.settings import Whole
from rope_jax.tasks.base import Needle, Request, Sample, Task, TokenizerView, hide
from rope_jax.tasks.draws import NAMED, Kind, distinct

_TASK = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize "
    "them. I will quiz you about the important information there."
)
_FILLER = (
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
)
Count = Annotated[int, Field(ge=1, le=64), Whole]


class PasskeyText(Task):
    """The passkey in its original prompt, among five sentences repeated.

    TASK ↵ FILLER ↵ The pass key is 71432. Remember it. 71432 is the pass key. ↵ FILLER ↵
    What is the pass key? The pass key is → 71432

    The original cuts the filler by characters, and its keys have 1 to 5 digits. Here it is cut by
    tokens and goes on after the key where it stopped; all keys have as many digits.
    """

    title: ClassVar[str] = "passkey, original text"
    source: ClassVar[str] = "Mohtashami & Jaggi, arXiv 2305.16300, epfml/landmark-attention"
    task: Literal["passkey_text"] = "passkey_text"
    needs_words: ClassVar[bool] = True
    digits: Count = Field(5, description="digits of the key")

    @property
    def chance(self) -> float:
        return 1 / (9 * 10 ** (self.digits - 1))

    def sample(self, request: Request) -> Sample:
        words = request.words
        key = f" {request.draws.number(self.digits)}"
        needle = ["\nThe pass key is", key, ". Remember it.", key, " is the pass key.\n"]
        filler = _continued(words, f" {_FILLER}")
        return hide(
            [Needle(request.depth, _joined(words, needle), asked=True)],
            request._replace(text=np.tile(filler, -(-request.length // len(filler)))),
            start=np.concatenate([words.start(), words.encode(f"{_TASK}\n")]),
            question=_continued(words, "\nWhat is the pass key? The pass key is"),
            answer=_continued(words, key),
            setting=f"digits: {self.digits}",
        )


class RulerNeedle(Task):
    """RULER's needles in a haystack, which is the corpus.

    TASK ↵ FILLER One of the special magic numbers for quiet-harbor is: 7143290. FILLER ↵
    What is the special magic number for quiet-harbor mentioned in the provided text? The special
    magic number for quiet-harbor mentioned in the provided text is → 7143290

    The original's variants are single (keys 1, values 1, queries 1), multikey (4, 1, 1), multivalue
    (1, 4, 1) and multiquery (1, 1, 4, where there are as many keys as queries). The first needle
    that is asked for is at the depth. Other values of its key follow at random places in the order
    of the answer, which the original does not fix; the needles of other keys are at random places.
    Several values, joined by ", ", are one answer, exact only as a whole, where the original counts
    the values that occur in a generated text. The chance level is that of guessing which keys the
    values belong to.
    """

    title: ClassVar[str] = "needle (RULER)"
    source: ClassVar[str] = "Hsieh et al., arXiv 2404.06654, NVIDIA/RULER"
    task: Literal["needle"] = "needle"
    needs_words: ClassVar[bool] = True
    kind: Kind = Field(
        "numbers", description="values: numbers of 7 digits, words such as quiet-harbor, or UUIDs"
    )
    keys: Count = Field(1, description="keys in the text; at least as many as queries")
    values: Count = Field(1, description="values of each key, in a needle each")
    queries: Count = Field(1, description="keys that are asked for")

    @property
    def chance(self) -> float:
        if self._keys > 1:
            return 1 / math.perm(self._keys, self.queries)
        possible = {"numbers": 9 * 10**6, "words": NAMED, "uuids": 2**122}
        return 1 / math.perm(possible[self.kind], self.values)

    @property
    def _keys(self) -> int:
        return max(self.keys, self.queries)

    def sample(self, request: Request) -> Sample:
        words, draws, depth = request.words, request.draws, request.depth
        keys = distinct(draws.named, self._keys)
        make = {"numbers": lambda: draws.number(7), "words": draws.named, "uuids": draws.uuid}
        drawn = distinct(make[self.kind], self._keys * self.values)
        hidden = [drawn[key * self.values :][: self.values] for key in range(self._keys)]
        needles = []
        for number, (key, of_key) in enumerate(zip(keys, hidden, strict=True)):
            shares = sorted(draws.fraction() for _ in of_key)
            if number == 0:
                shares = [depth, *(depth + (1 - depth) * share for share in shares[1:])]
            about = f" One of the special magic {self.kind} for {key} is:"
            for share, value in zip(shares, of_key, strict=True):
                tokens = _joined(words, [about, f" {value}", "."])
                needles.append(Needle(share, tokens, asked=number < self.queries))
        asked = [value for of_key in hidden[: self.queries] for value in of_key]
        answer = [piece for value in asked for piece in (",", f" {value}")][1:]
        task, question = self._prompts(keys[: self.queries])
        return hide(
            needles,
            request,
            start=np.concatenate([words.start(), words.encode(task)]),
            question=_continued(words, question),
            answer=_joined(words, answer),
            setting=f"keys: {self._keys}",
        )

    def _prompts(self, queries: list[str]) -> tuple[str, str]:
        """What precedes and what follows the haystack."""
        *first, last = queries
        query = f"{', '.join(first)}, and {last}" if first else last
        kind, some, be, be_all = str(self.kind), "Some", "are", "are all"
        if self.queries * self.values == 1:
            kind, some, be, be_all = kind[:-1], "A", "is", "is"
        task = (
            f"{some} special magic {kind} {be} hidden within the following text. Make sure to "
            f"memorize it. I will quiz you about the {kind} afterwards.\n"
        )
        question = (
            f"\nWhat {be_all} the special magic {kind} for {query} mentioned in the provided text?"
            f" The special magic {kind} for {query} mentioned in the provided text {be}"
        )
        return task, question


def _continued(words: TokenizerView, text: str) -> NDArray[np.integer]:
    """The tokens of a text that continues another one.

    Some tokenizers put a space before every text, but none after a line break inside of it.
    """
    mark, marked = words.encode("\n"), words.encode(f"\n{text}")
    is_continued = np.array_equal(marked[: len(mark)], mark)
    return marked[len(mark) :] if is_continued else words.encode(text)


def _joined(words: TokenizerView, pieces: list[str]) -> NDArray[np.integer]:
    """The tokens of pieces, each encoded by itself so that equal ones have equal tokens."""
    return np.concatenate([_continued(words, piece) for piece in pieces])
