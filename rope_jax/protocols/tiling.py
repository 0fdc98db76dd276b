"""Protocols that cover documents from their start: they differ in how windows are cut."""

from abc import abstractmethod

import numpy as np
from jaxtyping import Float64, Int64

from rope_jax.protocols.base import Protocol, Windows

Tiles = tuple[Int64[np.ndarray, " W"], Int64[np.ndarray, " W"]]
"""By window: the index of its first input, and the position of the first target that it scores."""


class TilingProtocol(Protocol):
    """A protocol whose windows cover a document from its start.

    Covered are the first `blocks` × longest targets of a document or, if it is shorter, the largest
    multiple of longest that fits. Where blocks are the units, they are `blocks` parts of longest
    targets instead, each a unit, with as much text between them.
    """

    @abstractmethod
    def tile(self, length: int, covered: int) -> Tiles:
        """Cut the first `covered` targets of a text into windows of `length`.

        Positions are from 1 to `length`. The targets behind the first scored one are scored too.
        """

    def windows(self, length: int) -> Windows:
        parts: list[Windows] = []
        for index, stream in enumerate(self.streams.tokens):
            for begin, covered in self._parts(len(stream)):
                starts, firsts = self.tile(length, covered)
                lead = len(self.streams.bos_ids)  # start tokens are no targets
                is_led = (begin + starts == 0) | (self.streams.bos == "every_window")
                firsts = np.where(is_led, np.maximum(firsts, lead), firsts)
                document, unit = (np.full(len(starts), i, np.int64) for i in (index, len(parts)))
                parts.append(Windows(document, begin + starts, firsts, unit))
        columns = zip(*(part[:4] for part in parts), strict=True)  # all but `answers`
        return Windows(*map(np.concatenate, columns))

    def _parts(self, size: int) -> list[tuple[int, int]]:
        """(first input, number of targets) of the parts of a stream that are covered."""
        if self.streams.units == "documents":
            return [(0, min(self.blocks, (size - 1) // self.longest) * self.longest)]
        count = min(self.blocks, 1 + (size - 1 - self.longest) // (2 * self.longest))
        return [(2 * self.longest * part, self.longest) for part in range(count)]


class WholeWindow(TilingProtocol):
    """Adjacent windows: the quickest way, with the early-token effect in every window."""

    name = "whole_window"
    title = "every token of the window"
    caption = "length of adjacent windows"
    scored = "on every token"

    def tile(self, length: int, covered: int) -> Tiles:
        starts = np.arange(covered // length) * length
        return starts, np.ones_like(starts)

    def stride_at(self, length: int) -> int:
        return length


class Sliding(TilingProtocol):
    """Windows that advance by `stride` (Press et al., arXiv 2012.15832).

    All targets of the first are scored; in the others, those past the end of the window before.
    The last one ends where the covered text ends.
    """

    name = "sliding"
    title = "sliding windows, new tokens only"
    caption = "length of windows that start {stride} tokens apart"
    scored = "on the tokens new to each"
    uses_stride = True

    def tile(self, length: int, covered: int) -> Tiles:
        ends = np.append(np.arange(length, covered, self.stride), covered)
        starts = ends - length
        return starts, np.append(0, ends[:-1]) - starts + 1

    def stride_at(self, length: int) -> int:
        return self.stride


class YarnCompat(Sliding):
    """The mean over the windows of `sliding` of each window's mean, as published with YaRN.

    A first window counts as much as one that adds a single stride.
    """

    name = "yarn_compat"
    title = "sliding windows, mean of window means"
    caption = "length of windows that start {stride} tokens apart, mean of their means"
    scored = ""

    def divisor(self, windows: Windows, length: int) -> Float64[np.ndarray, " W"]:
        return windows.scored_tokens(length).astype(np.float64)


class PerPosition(TilingProtocol):
    """Windows that start every `longest` targets; those past the previous length are scored."""

    name = "per_position"
    title = "by position in the window"
    caption = "position in the window"
    axis_label = "position in the window"
    by_position = True

    def tile(self, length: int, covered: int) -> Tiles:
        starts = np.arange(covered // self.longest) * self.longest
        previous = max((n for n in self.lengths if n < length), default=0)
        return starts, np.full_like(starts, previous + 1)

    def stride_at(self, length: int) -> int:
        return self.longest
