"""`per_position`: the loss against the position in a window of the longest length."""

import numpy as np

from rope_jax.protocols.base import Tiles, TilingProtocol


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
