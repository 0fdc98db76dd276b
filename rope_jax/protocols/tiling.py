"""Protocols that cover documents from their start: they differ in how windows are cut."""

import numpy as np
from jaxtyping import Float64

from rope_jax.protocols.base import Tiles, TilingProtocol
from rope_jax.protocols.windows import Windows


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
