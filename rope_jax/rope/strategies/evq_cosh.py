"""`evq_cosh`: frequencies that are denser among the fast pairs, for training from scratch."""

import math
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from rope_jax.rope.geometry import RotaryGeometry
from rope_jax.rope.strategies.base import Scaling


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
