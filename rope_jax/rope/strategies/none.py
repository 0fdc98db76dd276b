"""`none`: the unscaled rotary embedding."""

from typing import ClassVar, Literal

import numpy as np

from rope_jax.rope.geometry import RotaryGeometry
from rope_jax.rope.strategies.base import Scaling


class NoScaling(Scaling):
    """No scaling: θ_i = b^(−2i/d)."""

    source: ClassVar[str] = "RoFormer, arXiv 2104.09864"
    type: Literal["none"] = "none"

    def scaled(self, geometry: RotaryGeometry) -> tuple[np.ndarray, float]:
        return geometry.inv_freq(), 1.0
