"""Values that everything here is about: geometry, frequencies, and a jitted model's argument.

Shapes: L layers, B batch, T length, N heads, C distances, d rotary dimension.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

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

Layout = Literal["half", "interleaved"]
"""Which dimensions form a pair: i and i + d/2, or 2i and 2i + 1."""


@dataclass(frozen=True)
class RotaryGeometry:
    """The unscaled rotary embedding that a strategy starts from.

    rotary_dim:   d in the formulas: how many of a head's dimensions are rotated; even.
    base:         b in θ_i = b^(−2i/d); Hugging Face's `rope_theta`.
    train_length: L in the formulas, in tokens; Hugging Face's `original_max_position_embeddings`.
                  Not the length that a checkpoint was last trained at, which is its *window*: the
                  two differ in an extended model.
    trained:      θ_i [d/2] where they are not b^(−2i/d): of a model trained with a scaling.

    ValueError: a field has the wrong type or is out of range; the message begins with its name.
    """

    rotary_dim: int
    base: float | int = 10000.0
    train_length: int = 4096
    trained: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for field in ("rotary_dim", "train_length"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int | np.integer):
                raise ValueError(f"{field}: {value!r} is not a whole number")
        if isinstance(self.base, bool) or not isinstance(
            self.base, int | float | np.integer | np.floating
        ):
            raise ValueError(f"base: {self.base!r} is not a number")
        if self.rotary_dim < 2 or self.rotary_dim % 2:
            raise ValueError(f"rotary_dim: {self.rotary_dim} is not an even number of at least 2")
        if not (math.isfinite(self.base) and self.base >= 1):
            raise ValueError(f"base: {self.base} is not a finite number of at least 1")
        if self.train_length < 1:
            raise ValueError(f"train_length: {self.train_length} is not at least 1")

    def inv_freq(self, base: float | int | None = None) -> np.ndarray:
        """Return θ_i = b^(−2i/d) for i = 0 … d/2−1 in radians per token, float64 [d/2].

        RoFormer, arXiv 2104.09864, eq. 15. base: b' in place of b; `trained` frequencies become
        θ_i·(b'/b)^(−2i/d).
        """
        exponent = np.arange(0, self.rotary_dim, 2, dtype=np.float64) / self.rotary_dim
        if self.trained is None:
            return float(self.base if base is None else base) ** -exponent
        ratio = 1.0 if base is None else base / self.base
        return np.asarray(self.trained) * ratio**-exponent


class Frequencies(NamedTuple):
    """The frequencies of one strategy. All strategies return this same tree of float32 arrays.

    inv_freq:           [..., d/2], radians per token. Leading axes: none, the batch, or layers
                        and batch.
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
