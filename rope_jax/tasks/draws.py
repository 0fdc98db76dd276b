"""Random choices that every version of numpy makes alike, and the keys and values made of them."""

from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

import numpy as np
from jaxtyping import Int32

T = TypeVar("T")

_PART = 2**31
# what keys are called, what values of words are made of, and what may precede a word
NAMES = (  # noqa: SIM905
    "amber azure bronze cobalt copper coral crimson ebony emerald garnet golden indigo ivory jade "
    "lilac linen maroon mauve ochre olive opal pearl purple ruby russet scarlet silver topaz umber "
    "velvet violet yellow"
).split()
WORDS = (  # noqa: SIM905
    "anchor basket bridge button candle castle cellar church circle cradle desert dinner engine "
    "feather finger flower forest garden hammer harbor island jacket kettle ladder lantern letter "
    "market meadow mirror mountain needle orchard palace pepper pillow planet pocket prison ribbon "
    "river saddle school shadow shovel spider spring statue stone summer table temple thunder "
    "ticket timber tunnel valley vessel village wagon walnut whistle window winter wolf"
).split()
QUALITIES = (  # noqa: SIM905
    "ancient brave calm clever daring eager faithful gentle happy honest humble jolly kind lively "
    "lucky mighty modest noble patient polite proud quiet rapid secret simple steady sturdy tender "
    "timid vivid wise young"
).split()
NAMED = len(QUALITIES) * len(WORDS)
"""How many values `Draws.named` chooses from."""

Kind = Literal["numbers", "words", "uuids"]


class Draws:
    """A sequence of random choices: equal seeds for the same purpose give equal choices.

    numpy guarantees a bit generator's raw bits, but not what `Generator.integers` makes of them.
    """

    def __init__(self, *seed: int, purpose: int = 0) -> None:
        self._bits = np.random.Philox(np.random.SeedSequence(seed, spawn_key=(purpose,)))

    def part(self) -> "Draws":
        """Return an independent sequence: whatever is drawn from it, this one goes on alike."""
        return Draws(int(self._bits.random_raw()), purpose=_PART)

    def below(self, bound: int) -> int:
        """Return a whole number in [0, bound), all equally likely."""
        return (int(self._bits.random_raw()) * bound) >> 64

    def fraction(self) -> float:
        """Return a number in [0, 1), a multiple of 2⁻⁵³."""
        return (int(self._bits.random_raw()) >> 11) * 2.0**-53

    def one_of(self, choices: Sequence[T]) -> T:
        return choices[self.below(len(choices))]

    def different(self, bound: int, count: int) -> list[int]:
        """Return `count` different whole numbers below `bound`, in random order."""
        moved: dict[int, int] = {}  # the first places of a Fisher–Yates shuffle of range(bound)
        drawn = []
        for index in range(count):
            other = index + self.below(bound - index)
            drawn.append(moved.get(other, other))
            moved[other] = moved.get(index, index)
        return drawn

    def tokens(self, bound: int, count: int) -> Int32[np.ndarray, " count"]:
        raw = self._bits.random_raw(count)
        return np.array([(bits * bound) >> 64 for bits in raw.tolist()], np.int32)

    def digits(self, count: int) -> str:
        return "".join(str(self.below(10)) for _ in range(count))

    def number(self, count: int) -> str:
        """Return a number of `count` digits, of which the first is not 0."""
        return str(1 + self.below(9)) + self.digits(count - 1)

    def words(self) -> str:
        """Return three words, such as "anchor-meadow-wolf"."""
        return "-".join(self.one_of(WORDS) for _ in range(3))

    def named(self) -> str:
        """Return a quality and a word, such as "quiet-harbor"."""
        return f"{self.one_of(QUALITIES)}-{self.one_of(WORDS)}"

    def uuid(self) -> str:
        """Return a random UUID, version 4 of RFC 4122."""
        text = "".join(self.one_of("0123456789abcdef") for _ in range(30))
        variant = self.one_of("89ab")
        return f"{text[:8]}-{text[8:12]}-4{text[12:15]}-{variant}{text[15:18]}-{text[18:]}"


def distinct(make: Callable[[], T], count: int) -> list[T]:
    """Return `count` values that differ; there have to be that many."""
    values: dict[T, None] = {}  # in order
    while len(values) < count:
        values[make()] = None
    return list(values)
