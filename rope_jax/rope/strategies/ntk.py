"""`ntk`: NTK-aware scaling."""

from typing import ClassVar, Literal

import numpy as np

from rope_jax.rope.geometry import RotaryGeometry
from rope_jax.rope.strategies.base import Factor, Scaling


class NTKScaling(Scaling):
    """NTK-aware: the base grows to b·s^(d/(d−2)), so the slowest pair is PI's, the fastest as is.

    The exponent d/(d−2) makes the last of the d/2 pairs land on θ/s exactly; a base b·s does not.
    """

    source: ClassVar[str] = "bloc97, NTK-aware scaled RoPE, 2023; YaRN, arXiv 2309.00071, §3.1"
    type: Literal["ntk"] = "ntk"
    factor: Factor

    def scaled(self, geometry: RotaryGeometry) -> tuple[np.ndarray, float]:
        d = geometry.rotary_dim
        if d < 4:
            raise ValueError(f"rotary_dim: ntk needs at least 4, not {d} (its exponent is d/(d−2))")
        return geometry.inv_freq(base=geometry.base * self.factor ** (d / (d - 2))), 1.0
