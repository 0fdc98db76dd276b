"""The numbers that a scaling strategy changes, as arrays that a jitted model takes as an argument.

Shapes: L layers, B batch, T length, d rotary dimension.
"""

from typing import Any, NamedTuple

import numpy as np

# numpy on the host, jax inside jit: both are leaves of the same tree.
Array = Any


class Frequencies(NamedTuple):
    """One strategy's frequencies. Every strategy returns this same tree of float32 arrays.

    inv_freq:           [..., d/2], radians a token. Leading axes: none, or the batch.
    inv_freq_remainder: [..., d/2], what float32 rounding took off `inv_freq`: their sum is the
                        float64 frequency to about 48 bits. Without it cos is off by 0.35 at
                        position 10^7. 0 where a frequency was computed on the device.
    attention_factor:   [...], m, which multiplies cos and sin; logits scale by m².
    """

    inv_freq: Array
    inv_freq_remainder: Array
    attention_factor: Array

    @classmethod
    def from_float64(cls, inv_freq: np.ndarray, attention_factor: Any = 1.0) -> "Frequencies":
        """Split host float64 frequencies [..., d/2] into a float32 and its remainder.

        attention_factor: a number for all, or [...].
        """
        high = inv_freq.astype(np.float32)
        low = (inv_freq - high.astype(np.float64)).astype(np.float32)
        m = np.broadcast_to(np.float32(attention_factor), inv_freq.shape[:-1]).copy()
        return cls(high, low, m)

    def with_inv_freq(self, inv_freq: Array) -> "Frequencies":
        """Other frequencies in their place, as they are: the remainder was that of the old ones."""
        remainder = np.zeros(np.shape(inv_freq), np.float32)
        return self._replace(inv_freq=inv_freq, inv_freq_remainder=remainder)


class Rotary(NamedTuple):
    """What the model takes: frequencies for every layer and row, and a scale on queries.

    frequencies: leaves with leading axes [L|1, B|1].
    query_scale: float32 [L|1, B|1, T|1], multiplies the whole query, rotated or not.

    An axis of size 1 broadcasts and is never dropped: [L, d/2] against batched positions would
    broadcast wrongly, and silently where L equals B.
    """

    frequencies: Frequencies
    query_scale: Array

    @classmethod
    def of(cls, frequencies: Frequencies) -> "Rotary":
        """With a query scale of 1: of leaves that have the axes [L|1, B|1] already."""
        return cls(frequencies, np.ones((1, 1, 1), np.float32))

    @classmethod
    def shared(cls, frequencies: Frequencies) -> "Rotary":
        """One strategy for all layers and rows: leaves [d/2] and [] get axes [1, 1] in front."""
        leaves = [leaf.reshape((1, 1, *leaf.shape)) for leaf in frequencies]
        return cls.of(Frequencies(*leaves))
