"""`sliding`: overlapping windows, of which only the tokens new to each are scored."""

import numpy as np

from rope_jax.protocols.base import Tiles, TilingProtocol


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
