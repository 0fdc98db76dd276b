"""`mixed_base`: NTK with a separate base for every pair."""

import math
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from rope_jax.rope.geometry import RotaryGeometry
from rope_jax.rope.strategies.base import WithFactor


class MixedBaseScaling(WithFactor):
    """NTK-RoPE-mixed: θ_i · exp(−a·(i + 1)^e), a = ln s / (d/2)^e; the slowest pair gets θ/s."""

    source: ClassVar[str] = "Su, kexue.fm/archives/9706, bojone/rerope"
    type: Literal["mixed_base"] = "mixed_base"
    e: float = Field(
        0.75,
        gt=0,
        lt=1e3,
        description="how late along the pairs the slowing sets in; 0.75 in the author's code",
    )

    def scaled(self, geometry: RotaryGeometry) -> tuple[np.ndarray, float]:
        pairs = geometry.rotary_dim // 2
        # (i + 1)^e / (d/2)^e as a single power: with a large e either would overflow
        share = (np.arange(1, pairs + 1) / pairs) ** self.e
        return geometry.inv_freq() * np.exp(-math.log(self.factor) * share), 1.0
