"""`ntk` and `dynamic_ntk`: NTK-aware scaling."""

from types import ModuleType
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from rope_jax.rope.geometry import RotaryGeometry
from rope_jax.rope.strategies.base import Scaling, WithFactor, beside, falling_power, growth


def _check_dimension(geometry: RotaryGeometry, name: str) -> None:
    if geometry.rotary_dim < 4:
        raise ValueError(
            f"rotary_dim: {name} needs at least 4, not {geometry.rotary_dim} "
            "(its exponent is d/(d−2))"
        )


class NTKScaling(WithFactor):
    """NTK-aware: the base grows to b·s^(d/(d−2)), so the slowest pair is PI's, the fastest as is.

    The exponent d/(d−2) makes the last of the d/2 pairs land on θ/s exactly; a base b·s does not.
    """

    source: ClassVar[str] = "bloc97, NTK-aware scaled RoPE, 2023; YaRN, arXiv 2309.00071, §3.1"
    type: Literal["ntk"] = "ntk"

    def scaled(self, geometry: RotaryGeometry) -> tuple[np.ndarray, float]:
        _check_dimension(geometry, self.type)
        d = geometry.rotary_dim
        return geometry.inv_freq(base=geometry.base * self.factor ** (d / (d - 2))), 1.0


class DynamicNTKScaling(Scaling):
    """NTK-aware with s = max(1, a·n/L − (a − 1)), n the text's length, the same for all its tokens.

    a is `factor`: 1 gives s = n/L; 4 gives s = 13 at n = 4L. It is not how many times longer the
    context becomes, and L is the length before any scaling (Hugging Face: the config's
    max_position_embeddings). Nothing is remembered: a long text leaves short ones as they are.
    """

    source: ClassVar[str] = "emozilla, dynamically scaled RoPE, 2023; Hugging Face `dynamic`"
    type: Literal["dynamic_ntk"] = "dynamic_ntk"
    factor: float = Field(1.0, ge=1, lt=1e6, description="a, how fast the base grows; 1: s = n/L")

    @property
    def length_dependent(self) -> bool:
        """yes"""
        return True

    def scaled_at(self, geometry: RotaryGeometry, length: Any, xp: ModuleType) -> tuple[Any, Any]:
        _check_dimension(geometry, self.type)
        d = geometry.rotary_dim
        s = growth(geometry, length, xp, self.factor)
        # b'^(−2i/d) = θ_i · s^(−2i/(d−2))
        exponents = np.arange(0, d, 2) / (d - 2)
        return beside(geometry.inv_freq(), s) * falling_power(s, exponents, xp), 1.0
