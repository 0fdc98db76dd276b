"""Random choices that every version of numpy makes alike."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from jaxtyping import Int32

T = TypeVar("T")

_PART = 2**31


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
