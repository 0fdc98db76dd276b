"""`none`, `pi`, `dynamic_pi`: the unscaled rotary embedding, and position interpolation."""

from types import ModuleType
from typing import ClassVar, Literal

import numpy as np

from rope_jax.rope.geometry import RotaryGeometry
from rope_jax.rope.strategies.base import (
    Lengths,
    Scaled,
    Scaling,
    WithFactor,
    align_pairs,
    dynamic_factor,
)


class NoScaling(Scaling):
    """No scaling: θ_i = b^(−2i/d)."""

    source: ClassVar[str] = "RoFormer, arXiv 2104.09864"
    type: Literal["none"] = "none"

    @property
    def replaces_frequencies(self) -> bool:
        return self.query_scale is None

    def scaled(self, geometry: RotaryGeometry) -> tuple[np.ndarray, float]:
        return geometry.inv_freq(), 1.0


class PIScaling(WithFactor):
    """Position interpolation: θ_i / s, which equals dividing positions by s."""

    source: ClassVar[str] = "Chen et al., arXiv 2306.15595; Hugging Face `linear`"
    type: Literal["pi"] = "pi"

    def scaled(self, geometry: RotaryGeometry) -> tuple[np.ndarray, float]:
        return geometry.inv_freq() / self.factor, 1.0


class DynamicPIScaling(Scaling):
    """Position interpolation with s = max(1, n/L), where n is the text's length."""

    source: ClassVar[str] = "YaRN, arXiv 2309.00071, §3.3"
    follows_length: ClassVar[str] = "yes"
    type: Literal["dynamic_pi"] = "dynamic_pi"

    def scaled_at(self, geometry: RotaryGeometry, length: Lengths, xp: ModuleType) -> Scaled:
        s = dynamic_factor(geometry, length, xp)
        return align_pairs(geometry.inv_freq(), s) / s[..., None], 1.0
