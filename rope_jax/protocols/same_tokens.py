"""`same_tokens`: the same targets at every length, so that only the context before them grows."""

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rope_jax.protocols.base import RELIABLE_UNITS, Protocol, Windows


class SameTokens(Protocol):
    """Up to `blocks` windows per document, whose last `targets` targets are scored.

    They end at the same places for every length. The ends are drawn from [longest + 1, end of
    document] such that no token is scored twice.
    """

    name = "same_tokens"
    title = "the same tokens at every length"
    scored = "on the same tokens at every length"

    @property
    def tokens_per_block(self) -> int:
        return self.targets

    def windows(self, length: int) -> Windows:
        documents, ends, units = [], [], []
        count = 0  # of units
        for index, stream in enumerate(self.streams.tokens):
            end, unit = self._draw_ends(len(stream), index)
            documents.append(np.full(len(end), index, np.int64))
            ends.append(end)
            units.append(count + unit)
            count += int(unit[-1]) + 1
        starts = np.concatenate(ends) - length - 1
        firsts = np.full(len(starts), length - self.targets + 1, np.int64)
        return Windows(np.concatenate(documents), starts, firsts, np.concatenate(units))

    def _draw_ends(self, size: int, index: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Draw the ends of a document's blocks, ascending, and each one's unit in the document.

        Where documents are the units, blocks do not overlap. Where blocks are, a unit is a row of
        adjacent ones, more than `longest` tokens before the first scored token of the next unit.
        """
        if is_apart := self.streams.units == "blocks":
            group = min(self._blocks_per_unit, self._most_adjacent(size))
            spacing = self.longest + group * self.targets
        else:
            group, spacing = 1, self.targets
        first = self.longest + 1 + (group - 1) * self.targets
        count = min(-(-self.blocks // group), 1 + (size - first) // spacing)
        slack = size - first - (count - 1) * spacing
        random = np.random.default_rng([self.seed, 1, index])
        last = first + np.sort(random.integers(0, slack, count, endpoint=True))
        last += np.arange(count) * spacing
        ends = (last[:, None] - self.targets * np.arange(group)[::-1]).ravel()[: self.blocks]
        units = np.arange(len(ends)) // group if is_apart else np.zeros(len(ends), np.int64)
        return ends, units

    @functools.cached_property
    def _blocks_per_unit(self) -> int:
        """How many adjacent blocks a unit should have to reach `blocks` in every document.

        Wider units leave room for fewer. So as many as bring the number of scored tokens closest to
        the one asked for, but leave `RELIABLE_UNITS` units, or nine tenths of them where even
        single blocks are fewer.
        """
        sizes = np.array([len(stream) for stream in self.streams.tokens])
        most_adjacent = self._most_adjacent(sizes)

        def counts(group: int) -> tuple[int, int]:
            """Return the number of units, and of blocks up to `blocks` per document."""
            adjacent = np.minimum(group, most_adjacent)
            width = adjacent * self.targets
            room = 1 + (sizes - self.longest - 1 - width + self.targets) // (self.longest + width)
            count = np.minimum(-(-self.blocks // adjacent), room)
            return int(count.sum()), int(np.minimum(self.blocks, count * adjacent).sum())

        units, most = counts(1)
        fewest, best = min(RELIABLE_UNITS, -(-9 * units // 10)), 1
        for group in range(2, min(self.blocks, int(most_adjacent.max())) + 1):
            if most == self.blocks * len(sizes):
                break
            units, scored = counts(group)
            if units >= fewest and scored > most:
                best, most = group, scored
        return best

    def _most_adjacent(self, size: int | NDArray[np.int64]) -> Any:
        """How many adjacent blocks a document has room for, each after `longest` tokens."""
        return 1 + (size - self.longest - 1) // self.targets
