"""`whole_window`: adjacent windows, as many as fit; every target is scored."""

import numpy as np

from rope_jax.protocols.base import Tiles, TilingProtocol


class WholeWindow(TilingProtocol):
    """The quickest way to read a text once, with the early-token effect in every window."""

    name = "whole_window"
    title = "every token of the window"
    caption = "length of adjacent windows"
    scored = "on every token"

    def tile(self, length: int, covered: int) -> Tiles:
        starts = np.arange(covered // length) * length
        return starts, np.ones_like(starts)

    def stride_at(self, length: int) -> int:
        return length
