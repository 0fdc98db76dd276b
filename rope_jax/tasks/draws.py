"""Random choices that every version of numpy makes alike."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from jaxtyping import Int32

T = TypeVar("T")

_PART = 2**31


class Draws:
    """A sequence of random choices: equal seeds give equal choices.

    numpy guarantees a bit generator's raw bits, but not what `Generator.integers` makes of them.
    """

    def __init__(self, *seed: int, purpose: int = 0) -> None:
        """Begin the sequence of a seed. purpose: equal seeds for different purposes differ."""
        self._bits = np.random.Philox(np.random.SeedSequence(seed, spawn_key=(purpose,)))

    def part(self) -> "Draws":
        """Return a sequence of its own: however much is drawn from it, this one goes on alike."""
        return Draws(int(self._bits.random_raw()), purpose=_PART)

    def below(self, bound: int) -> int:
        """Return a whole number in [0, bound), all equally likely."""
        return (int(self._bits.random_raw()) * bound) >> 64

    def fraction(self) -> float:
        """Return a number in [0, 1), a multiple of 2⁻⁵³."""
        return (int(self._bits.random_raw()) >> 11) * 2.0**-53

    def one_of(self, choices: Sequence[T]) -> T:
        """Return one of the choices, all equally likely."""
        return choices[self.below(len(choices))]

    def different(self, bound: int, count: int) -> list[int]:
        """Return `count` different whole numbers below `bound`, in random order.

        Every ordered choice is equally likely (Floyd's algorithm would need a shuffle as well).
        """
        moved: dict[int, int] = {}  # the first places of a Fisher–Yates shuffle of range(bound)
        found = []
        for place in range(count):
            other = place + self.below(bound - place)
            found.append(moved.get(other, other))
            moved[other] = moved.get(place, place)
        return found

    def tokens(self, bound: int, count: int) -> Int32[np.ndarray, " count"]:
        """Return `count` independent tokens below `bound`."""
        raw = self._bits.random_raw(count)
        return np.array([(bits * bound) >> 64 for bits in raw.tolist()], np.int32)
