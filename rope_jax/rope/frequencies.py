"""The arguments of a jitted model: frequencies, and positions, which are checked on the host.

Shapes: L layers, B batch, T length, N heads, C distances, d rotary dimension.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# numpy on the host, jax inside jit
Array = Any


class Frequencies(NamedTuple):
    """The frequencies of one strategy. All strategies return this same tree of float32 arrays.

    inv_freq:           [..., d/2], radians per token. Leading axes: none, or the batch.
    inv_freq_remainder: [..., d/2], the rounding error of `inv_freq`: their sum is the float64
                        frequency to about 48 bits. It is 0 for frequencies computed on the device.
    attention_factor:   [...], m, which multiplies cos and sin, and so the logits by m².
    """

    inv_freq: Array
    inv_freq_remainder: Array
    attention_factor: Array

    @classmethod
    def from_float64(cls, inv_freq: np.ndarray, attention_factor: Any = 1.0) -> "Frequencies":
        """Split host float64 frequencies [..., d/2], and m, one or [...], into float32 ones."""
        high = inv_freq.astype(np.float32)
        low = (inv_freq - high.astype(np.float64)).astype(np.float32)
        m = np.broadcast_to(np.float32(attention_factor), inv_freq.shape[:-1]).copy()
        return cls(high, low, m)

    @property
    def exact(self) -> np.ndarray:
        """The frequencies on the host as float64, to about 48 bits."""
        return self.inv_freq.astype(np.float64) + self.inv_freq_remainder

    def for_heads(self) -> "Frequencies":
        """Add an axis of heads, of size 1, to frequencies of layers and rows: [L, B, 1, …]."""
        return Frequencies(*(leaf[:, :, None] for leaf in self))

    def with_inv_freq(self, inv_freq: Array) -> "Frequencies":
        """Replace the frequencies, and set the remainder, which belonged to the old ones, to 0."""
        remainder = np.zeros(np.shape(inv_freq), np.float32)
        return self._replace(inv_freq=inv_freq, inv_freq_remainder=remainder)


class Rotary(NamedTuple):
    """The model's argument: frequencies for every layer and row, and a scale on queries.

    frequencies: leaves with leading axes [L, B], each of which may be 1.
    query_scale: float32 [L, B, T], each of which may be 1; multiplies whole queries.
    bands:       of a position map (`rope_jax.positions.bands`), which see some keys with other
                 frequencies or at other positions; empty: no map.
    bias:        float32 [L, B, N, C], added to the logits of head n at distance c, and the last one
                 at C − 1 and more; None: nothing is added.

    An axis of size 1 broadcasts and is never dropped: [L, d/2] against batched positions would
    broadcast wrongly, and silently so if L equals B.
    """

    frequencies: Frequencies
    query_scale: Array
    bands: tuple[Any, ...] = ()
    bias: Array | None = None

    @classmethod
    def unscaled_queries(cls, frequencies: Frequencies) -> "Rotary":
        """Combine frequencies with leading axes [L, B] with a query scale of 1."""
        return cls(frequencies, np.ones((1, 1, 1), np.float32))

    @classmethod
    def shared(cls, frequencies: Frequencies) -> "Rotary":
        """Use one strategy's frequencies in all layers and rows: add axes [1, 1] in front."""
        leaves = [leaf.reshape((1, 1, *leaf.shape)) for leaf in frequencies]
        return cls.unscaled_queries(Frequencies(*leaves))


def as_float(x: Any, xp: Any) -> Any:
    """Return x as float64 on the host, where xp is numpy, and as float32 on a device."""
    return x.astype(np.float64 if xp is np else np.float32)


def is_on_host(positions: Any) -> bool:
    """Return whether positions are numpy or Python numbers, so that their values can be checked."""
    return isinstance(positions, np.ndarray | np.generic | list | tuple | int | float)


def host_positions(positions: Any) -> NDArray[np.int64]:
    """Return host positions [..., T] as int64; ValueError unless they are integers of 32 bits."""
    array = np.asarray(positions)
    if array.size:
        check_integers(array.dtype)
    for furthest in (array.min(initial=0), array.max(initial=0)):
        if not -(2**31) <= furthest < 2**31:
            raise ValueError(f"positions: reach {furthest}; the limit is 2^31 − 1")
    return array.astype(np.int64)


def check_integers(dtype: np.dtype) -> None:
    """ValueError unless this dtype, of positions, is one of integers."""
    if dtype.kind not in "iu":
        raise ValueError(f"positions: are {dtype}, not integers; to divide them, divide inv_freq")
