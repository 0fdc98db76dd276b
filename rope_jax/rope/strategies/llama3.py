"""`llama3`: Llama 3.1's scaling."""

import math
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from rope_jax.rope.geometry import RotaryGeometry
from rope_jax.rope.numbers import Factor, Positive
from rope_jax.rope.strategies.base import Scaling


class Llama3Scaling(Scaling):
    """Llama 3.1: θ for pairs with many turns in L, θ/s for those with few, a ramp between.

    With r_i = L·θ_i/(2π) turns in L (L over the wavelength),

        g_i  = clip((r_i − low_freq_factor)/(high_freq_factor − low_freq_factor), 0, 1)
        θ'_i = (1 − g_i)·θ_i/s + g_i·θ_i

    This is NTK by parts with the paper's ramp, from low_freq_factor to high_freq_factor turns. If
    the two are equal (Llama 4 Scout) there is no ramp: pairs with at least that many turns keep θ.
    """

    source: ClassVar[str] = "Llama 3.1, arXiv 2407.21783; Hugging Face `llama3`"
    type: Literal["llama3"] = "llama3"
    factor: Factor = 8.0
    low_freq_factor: Positive = Field(
        1.0, description="a pair with at most this many turns in L gets θ/s"
    )
    high_freq_factor: Positive = Field(
        4.0, description="a pair with at least this many turns in L keeps θ"
    )

    @model_validator(mode="after")
    def _in_order(self) -> "Llama3Scaling":
        if self.high_freq_factor < self.low_freq_factor:
            raise ValueError(
                f"high_freq_factor ({self.high_freq_factor:g}) must not be below "
                f"low_freq_factor ({self.low_freq_factor:g})"
            )
        return self

    def scaled(self, geometry: RotaryGeometry) -> tuple[np.ndarray, float]:
        theta = geometry.inv_freq()
        turns = geometry.train_length * theta / (2 * math.pi)
        low, high = self.low_freq_factor, self.high_freq_factor
        if low == high:
            kept = (turns >= low).astype(np.float64)
        else:
            kept = np.clip((turns - low) / (high - low), 0, 1)
        return (1 - kept) * theta / self.factor + kept * theta, 1.0
