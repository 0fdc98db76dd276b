"""The rotary embedding before any scaling: dimension, base and training length."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

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

    ValueError: a field has the wrong type or is out of range; the message begins with its name.
    """

    rotary_dim: int
    base: float | int = 10000.0
    train_length: int = 4096

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

        RoFormer, arXiv 2104.09864, eq. 15. base: used instead of the geometry's, if given.
        """
        exponent = np.arange(0, self.rotary_dim, 2, dtype=np.float64) / self.rotary_dim
        return float(self.base if base is None else base) ** -exponent
