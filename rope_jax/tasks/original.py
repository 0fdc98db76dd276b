"""`passkey_text` and `needle`: the prompts of published tests, for models with a tokenizer."""

from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rope_jax.rope.settings import Whole
from rope_jax.tasks.base import Request, Sample, Task, TokenizerView, hide

_TASK = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize "
    "them. I will quiz you about the important information there."
)
_FILLER = (
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
)
_NEEDLE_TASK = (
    "A special magic number is hidden within the following text. Make sure to memorize it. I will "
    "quiz you about the number afterwards.\n"
)
_QUALITIES = (  # noqa: SIM905
    "ancient brave calm clever daring eager faithful gentle happy honest humble jolly kind lively "
    "lucky mighty modest noble patient polite proud quiet rapid secret simple steady sturdy tender "
    "timid vivid wise young"
).split()
_WORDS = (  # noqa: SIM905
    "anchor basket bridge button candle castle cellar church circle cradle desert dinner engine "
    "feather finger flower forest garden hammer harbor island jacket kettle ladder lantern letter "
    "market meadow mirror mountain needle orchard palace pepper pillow planet pocket prison ribbon "
    "river saddle school shadow shovel spider spring statue stone summer table temple thunder "
    "ticket timber tunnel valley vessel village wagon walnut whistle window winter wolf"
).split()


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
    digits: Annotated[int, Field(ge=1, le=64), Whole] = Field(5, description="digits of the key")

    @property
    def chance(self) -> float:
        return 1 / (9 * 10 ** (self.digits - 1))

    def sample(self, request: Request) -> Sample:
        words = request.words
        key = f" {request.draws.number(self.digits)}"
        needle = ["\nThe pass key is", key, ". Remember it.", key, " is the pass key.\n"]
        filler = _continued(words, f" {_FILLER}")
        return hide(
            _joined(words, needle),
            request._replace(text=np.tile(filler, -(-request.length // len(filler)))),
            start=np.concatenate([words.start(), words.encode(f"{_TASK}\n")]),
            question=_continued(words, "\nWhat is the pass key? The pass key is"),
            answer=_continued(words, key),
            setting=f"digits: {self.digits}",
        )


class RulerNeedle(Task):
    """RULER's single needle in a haystack, which is the corpus.

    TASK ↵ FILLER One of the special magic numbers for quiet-harbor is: 7143290. FILLER ↵
    What is the special magic number for quiet-harbor mentioned in the provided text? The special
    magic number for quiet-harbor mentioned in the provided text is → 7143290
    """

    title: ClassVar[str] = "needle (RULER)"
    source: ClassVar[str] = "Hsieh et al., arXiv 2404.06654, NVIDIA/RULER"
    task: Literal["needle"] = "needle"
    needs_words: ClassVar[bool] = True

    @property
    def chance(self) -> float:
        return 1 / (9 * 10**6)

    def sample(self, request: Request) -> Sample:
        words, draws = request.words, request.draws
        key = f"{draws.one_of(_QUALITIES)}-{draws.one_of(_WORDS)}"
        value = f" {draws.number(7)}"
        of_key = f"special magic number for {key} mentioned in the provided text"
        return hide(
            _joined(words, [f" One of the special magic numbers for {key} is:", value, "."]),
            request,
            start=np.concatenate([words.start(), words.encode(_NEEDLE_TASK)]),
            question=_continued(words, f"\nWhat is the {of_key}? The {of_key} is"),
            answer=_continued(words, value),
            setting="task: a needle and its question",
        )


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
