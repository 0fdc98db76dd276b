"""The arguments of a jitted model: frequencies, and positions, which are checked on the host.

Shapes: L layers, B batch, T length, N heads, C distances, d rotary dimension.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Float, Float64, Int64

# numpy on the host, jax inside jit
if TYPE_CHECKING:
    AnyArray = jax.Array | np.ndarray
else:  # numpy returns scalars for arrays without axes
    AnyArray = jax.Array | np.ndarray | np.generic


SeqLen = ArrayLike | Sequence[int] | None
"""Text lengths in tokens: whole numbers on the host, or traced."""


class Frequencies(NamedTuple):
    """The frequencies of one strategy. All strategies return this same tree of float32 arrays.

    inv_freq:           [..., d/2], radians per token. Leading axes: none, or the batch.
    inv_freq_remainder: [..., d/2], the rounding error of `inv_freq`: their sum is the float64
                        frequency to about 48 bits. It is 0 for frequencies computed on the device.
    attention_factor:   [...], m, which multiplies cos and sin, and so the logits by m².
    """

    inv_freq: AnyArray
    inv_freq_remainder: AnyArray
    attention_factor: AnyArray

    @classmethod
    def from_float64(
        cls, inv_freq: Float64[np.ndarray, "... pairs"], attention_factor: ArrayLike = 1.0
    ) -> "Frequencies":
        """Split host float64 frequencies, and m, one or [...], into float32 ones."""
        high = inv_freq.astype(np.float32)
        low = (inv_freq - high.astype(np.float64)).astype(np.float32)
        m = np.broadcast_to(np.asarray(attention_factor, np.float32), inv_freq.shape[:-1]).copy()
        return cls(high, low, m)

    @property
    def exact(self) -> Float64[np.ndarray, "... pairs"]:
        """The frequencies on the host as float64, to about 48 bits."""
        return np.asarray(self.inv_freq, np.float64) + np.asarray(self.inv_freq_remainder)

    def for_heads(self) -> "Frequencies":
        """Add an axis of heads, of size 1, to frequencies of layers and rows: [L, B, 1, …]."""
        return Frequencies(*(leaf[:, :, None] for leaf in self))

    def with_inv_freq(self, inv_freq: AnyArray) -> "Frequencies":
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
                 at C − 1 and more; or None.

    An axis of size 1 broadcasts and is never dropped: [L, d/2] against batched positions would
    broadcast wrongly, and silently so if L equals B.
    """

    frequencies: Frequencies
    query_scale: AnyArray
    bands: tuple[Any, ...] = ()
    bias: AnyArray | None = None

    @classmethod
    def unscaled_queries(cls, frequencies: Frequencies) -> "Rotary":
        """Combine frequencies with leading axes [L, B] with a query scale of 1."""
        return cls(frequencies, np.ones((1, 1, 1), np.float32))

    @classmethod
    def shared(cls, frequencies: Frequencies) -> "Rotary":
        """Use one strategy's frequencies in all layers and rows: add axes [1, 1] in front."""
        leaves = [leaf.reshape((1, 1, *leaf.shape)) for leaf in frequencies]
        return cls.unscaled_queries(Frequencies(*leaves))


def as_float(x: AnyArray, xp: ModuleType) -> Float[AnyArray, "..."]:
    """Return x as float64 on the host, where xp is numpy, and as float32 on a device."""
    return x.astype(np.float64 if xp is np else np.float32)


def is_on_host(*arrays: object) -> bool:
    """Return whether all are numpy's or Python's numbers, whose values can be checked."""
    return all(isinstance(x, np.ndarray | np.generic | list | tuple | int | float) for x in arrays)


def array_module(*arrays: object) -> ModuleType:
    """Return numpy if all arrays are on the host, to keep results there; otherwise jax.numpy."""
    return np if is_on_host(*arrays) else jnp


def host_positions(positions: object) -> Int64[np.ndarray, "*batch T"]:
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
