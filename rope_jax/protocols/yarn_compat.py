"""`yarn_compat`: the mean over windows of each window's mean, as published with YaRN."""

import numpy as np
from jaxtyping import Float64

from rope_jax.protocols.sliding import Sliding
from rope_jax.protocols.windows import Windows


class YarnCompat(Sliding):
    """The windows of `sliding`; a first window counts as much as one that adds a single stride."""

    name = "yarn_compat"
    title = "sliding windows, mean of window means"
    caption = "length of windows that start {stride} tokens apart, mean of their means"
    scored = ""

    def divisor(self, windows: Windows, length: int) -> Float64[np.ndarray, " W"]:
        return windows.scored_tokens(length).astype(np.float64)
