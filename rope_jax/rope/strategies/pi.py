"""`pi` and `dynamic_pi`: position interpolation."""

from types import ModuleType
from typing import Any, ClassVar, Literal

import numpy as np

from rope_jax.rope.geometry import RotaryGeometry
from rope_jax.rope.strategies.base import Scaling, WithFactor, beside, growth


class PIScaling(WithFactor):
    """Position interpolation: θ_i / s, the same as positions / s."""

    source: ClassVar[str] = "Chen et al., arXiv 2306.15595; Hugging Face `linear`"
    type: Literal["pi"] = "pi"

    def scaled(self, geometry: RotaryGeometry) -> tuple[np.ndarray, float]:
        return geometry.inv_freq() / self.factor, 1.0


class DynamicPIScaling(Scaling):
    """Position interpolation with s = max(1, n/L), n the text's length."""

    source: ClassVar[str] = "YaRN, arXiv 2309.00071, §3.3"
    type: Literal["dynamic_pi"] = "dynamic_pi"

    @property
    def length_dependent(self) -> bool:
        """yes"""
        return True

    def scaled_at(self, geometry: RotaryGeometry, length: Any, xp: ModuleType) -> tuple[Any, Any]:
        s = growth(geometry, length, xp)
        return beside(geometry.inv_freq(), s) / s[..., None], 1.0
