"""`ntk`, `dynamic_ntk`, `mixed_base`, `abf`, `evq_cosh`: another base, or one for every pair."""

import math
from types import ModuleType
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from rope_jax.rope.geometry import RotaryGeometry
from rope_jax.rope.strategies.base import (
    Lengths,
    Scaled,
    Scaling,
    WithFactor,
    align_pairs,
    dynamic_factor,
    falling_power,
)


def _check_dimension(geometry: RotaryGeometry, name: str) -> None:
    if geometry.rotary_dim < 4:
        raise ValueError(
            f"rotary_dim: {name} needs at least 4, not {geometry.rotary_dim} "
            "(its exponent is d/(d−2))"
        )


class NTKScaling(WithFactor):
    """NTK-aware: base b·s^(d/(d−2)), so that the fastest pair keeps θ and the slowest gets θ/s.

    The exponent d/(d−2) makes the last of the d/2 pairs exactly θ/s; a base of b·s would not.
    """

    source: ClassVar[str] = "bloc97, NTK-aware scaled RoPE, 2023; YaRN, arXiv 2309.00071, §3.1"
    type: Literal["ntk"] = "ntk"

    def scaled(self, geometry: RotaryGeometry) -> tuple[np.ndarray, float]:
        _check_dimension(geometry, self.type)
        d = geometry.rotary_dim
        return geometry.inv_freq(base=geometry.base * self.factor ** (d / (d - 2))), 1.0


class DynamicNTKScaling(Scaling):
    """NTK-aware with s = max(1, a·n/L − (a − 1)), where n is the length of the whole text.

    a is `factor`: 1 gives s = n/L; 4 gives s = 13 at n = 4L. It does not say how many times longer
    the context becomes. L is the length before any scaling (Hugging Face: the config's
    max_position_embeddings). No state is kept: a long text does not affect later short ones.
    """

    source: ClassVar[str] = "emozilla, dynamically scaled RoPE, 2023; Hugging Face `dynamic`"
    follows_length: ClassVar[str] = "yes"
    factor_extends: ClassVar[bool] = False
    type: Literal["dynamic_ntk"] = "dynamic_ntk"
    factor: float = Field(1.0, ge=1, lt=1e6, description="a, how fast s grows; 1: s = n/L")

    def scaled_at(self, geometry: RotaryGeometry, length: Lengths, xp: ModuleType) -> Scaled:
        _check_dimension(geometry, self.type)
        d = geometry.rotary_dim
        s = dynamic_factor(geometry, length, xp, self.factor)
        # b'^(−2i/d) = θ_i · s^(−2i/(d−2))
        exponents = np.arange(0, d, 2) / (d - 2)
        return align_pairs(geometry.inv_freq(), s) * falling_power(s, exponents, xp), 1.0


class MixedBaseScaling(WithFactor):
    """NTK-RoPE-mixed: θ_i · exp(−a·(i + 1)^e), a = ln s / (d/2)^e; the slowest pair gets θ/s."""

    source: ClassVar[str] = "Su, kexue.fm/archives/9706, bojone/rerope"
    type: Literal["mixed_base"] = "mixed_base"
    e: float = Field(
        0.75,
        gt=0,
        lt=1e3,
        description="exponent: larger ones spare more fast pairs; 0.75 in the author's code",
    )

    def scaled(self, geometry: RotaryGeometry) -> tuple[np.ndarray, float]:
        pairs = geometry.rotary_dim // 2
        # (i + 1)^e / (d/2)^e as a single power: with a large e both would overflow
        share = (np.arange(1, pairs + 1) / pairs) ** self.e
        return geometry.inv_freq() * np.exp(-math.log(self.factor) * share), 1.0


class ABFScaling(Scaling):
    """Adjusted base frequency: θ_i = b'^(−2i/d) with a new, usually larger base b'."""

    source: ClassVar[str] = "Xiong et al., arXiv 2309.16039"
    type: Literal["abf"] = "abf"
    base: float = Field(
        500000.0, ge=1, allow_inf_nan=False, description="b', which replaces rope.base"
    )

    def scaled(self, geometry: RotaryGeometry) -> tuple[np.ndarray, float]:
        return geometry.inv_freq(base=self.base), 1.0


class EVQCoshScaling(Scaling):
    """EVQ-cosh: θ_i = b^(−φ_i), φ_i = 1 − asinh((1 − u_i)·sinh τ)/τ, u_i = (2i + 1)/d; τ = d/√L.

    φ_i are the quantiles u_i, the midpoints of d/2 equal steps, of the density
    τ·cosh(τ(1 − φ))/sinh τ on [0, 1]. A larger τ moves all pairs towards the fast end; τ = 0, the
    limit, is the geometric grid φ_i = u_i. (The draft's equations have the endpoints u_i = 2i/d.)

    L is train_length, and d is the rotary dimension even where the head is wider (the draft then
    takes the head's width; give tau). It extends no context: it is for training from scratch.
    """

    source: ClassVar[str] = "draft of EVQ-Cosh, 2026, misaya-yang/hybrid-rope"
    type: Literal["evq_cosh"] = "evq_cosh"
    tau: float | None = Field(
        None, ge=0, lt=1e6, description="τ; null: d/√L; 0: the geometric grid of midpoints"
    )

    @property
    def replaces_frequencies(self) -> bool:
        return True

    def scaled(self, geometry: RotaryGeometry) -> tuple[np.ndarray, float]:
        d, tau = geometry.rotary_dim, self.tau
        if tau is None:
            tau = d / math.sqrt(geometry.train_length)
        rest = 1 - np.arange(1, d, 2) / d  # 1 − u_i
        if tau < 1e-8:  # asinh(x·sinh τ)/τ is x to within x·τ²/6, and 0/0 at τ = 0
            phi = 1 - rest
        elif tau < 1:
            phi = 1 - np.arcsinh(rest * math.sinh(tau)) / tau
        else:
            # sinh τ overflows from τ = 711 on. With h = (1 − u)·sinh τ / e^τ, the logarithm in
            # asinh is τ + ln(h + √(h² + e^(−2τ))). Below τ = 1 it would cancel.
            h = -0.5 * rest * math.expm1(-2 * tau)
            phi = -np.log(h + np.sqrt(h**2 + math.exp(-2 * tau))) / tau
        return geometry.base**-phi, 1.0
