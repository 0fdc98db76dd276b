"""The mask of one band of a position map: static, and compiled into a program.

Shapes: T queries, S keys, `*batch` any leading axes.
"""

from dataclasses import dataclass, replace
from typing import TypeVar

import jax
import numpy as np
from jaxtyping import Bool, Int

__all__ = ["BandMask"]

Array = TypeVar("Array", jax.Array, np.ndarray)


@dataclass(frozen=True)
class BandMask:
    """The keys of a band, by distance d = i − j ≥ 0 in the window and by document position.

    A token's document position is its index in its own document, from 0.

    nearest:    the smallest d.
    beyond:     d is below this; None: there is no limit.
    first:      only a document's first tokens, this many (attention sinks); None: all.
    chunk:      tokens per chunk of a document, where a chunk rule holds; None: no such rule.
    chunks_back: with `chunk`, how many chunks before the query's own the key's may lie: from the
                first number to the second, None being unlimited.
    own_chunk:  tokens per chunk of a document, where only the query's own is visible; None: all.
    """

    nearest: int = 0
    beyond: int | None = None
    first: int | None = None
    chunk: int | None = None
    chunks_back: tuple[int, int | None] = (0, None)
    own_chunk: int | None = None

    def needs_document_positions(self, nearest: int, farthest: int | None) -> bool:
        """Whether document positions decide about keys at such distances; farthest None: no end."""
        if self.first is not None or (self.own_chunk is not None and farthest != 0):
            return True
        if self.chunk is None:
            return False
        least, most = self.chunks_back
        # a key at distance d is ⌊d/chunk⌋ or ⌈d/chunk⌉ chunks back
        if nearest // self.chunk < least:
            return True
        return most is not None and (farthest is None or -(-farthest // self.chunk) > most)

    def within(self, sliding_window: int | None, own_chunk: int | None = None) -> "BandMask":
        """Return the same keys, of which only those in a sliding window or chunk are visible."""
        limits = (self.beyond, sliding_window, own_chunk)
        beyond = min((limit for limit in limits if limit is not None), default=None)
        return replace(self, beyond=beyond, own_chunk=own_chunk)

    def interval(
        self, query: Int[Array, "*batch T"]
    ) -> tuple[Int[Array, "*batch T"], Int[Array, "*batch T"]]:
        """Return the first and the last document position that each query sees, of an interval.

        Where it sees none, the first comes after the last. query: document positions.
        """
        first, last = query * 0, query - max(self.nearest, 0)
        if self.beyond is not None:
            first = first.clip(query - self.beyond + 1)
        if self.first is not None:
            last = last.clip(max=self.first - 1)
        if self.chunk is not None:
            least, most = self.chunks_back
            chunk = query // self.chunk
            last = last.clip(max=(chunk - least + 1) * self.chunk - 1)
            if most is not None:
                first = first.clip((chunk - most) * self.chunk)
        if self.own_chunk is not None:
            first = first.clip(query // self.own_chunk * self.own_chunk)
        return first, last

    def by_distance(self, distance: Int[Array, "*shape"]) -> Bool[Array, "*shape"]:
        """Return which distances are visible."""
        visible = distance >= max(self.nearest, 0)
        return visible if self.beyond is None else visible & (distance < self.beyond)

    def by_document_position(
        self, query: Int[Array, "*batch T"], key: Int[Array, "*batch S"]
    ) -> Bool[Array, "*batch T #S"]:
        """Return which pairs of document positions are visible; the keys may be a single one."""
        first, last = self.interval(query[..., :, None])
        key = key[..., None, :]
        return (key >= first) & (key <= last)
