"""`pi`: position interpolation."""

from typing import ClassVar, Literal

import numpy as np

from rope_jax.rope.geometry import RotaryGeometry
from rope_jax.rope.strategies.base import Factor, Scaling


class PIScaling(Scaling):
    """Position interpolation: θ_i / s, the same as positions / s."""

    source: ClassVar[str] = "Chen et al., arXiv 2306.15595; Hugging Face `linear`"
    type: Literal["pi"] = "pi"
    factor: Factor

    def scaled(self, geometry: RotaryGeometry) -> tuple[np.ndarray, float]:
        return geometry.inv_freq() / self.factor, 1.0
