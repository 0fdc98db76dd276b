"""`abf`: an adjusted base frequency."""

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from rope_jax.rope.geometry import RotaryGeometry
from rope_jax.rope.strategies.base import Scaling


class ABFScaling(Scaling):
    """Adjusted base frequency: θ_i = b'^(−2i/d) with a new, usually larger base b'."""

    source: ClassVar[str] = "Xiong et al., arXiv 2309.16039"
    type: Literal["abf"] = "abf"
    base: float = Field(
        500000.0, ge=1, allow_inf_nan=False, description="b', which replaces rope.base"
    )

    def scaled(self, geometry: RotaryGeometry) -> tuple[np.ndarray, float]:
        return geometry.inv_freq(base=self.base), 1.0
