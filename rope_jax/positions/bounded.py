"""Bounds on parameters."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def bounded(
    x: Float[Array, "*shape"], low: float, high: float | None = None
) -> Float[Array, "*shape"]:
    """Return min(max(x, low), high) with a derivative of 1 everywhere.

    A parameter that an optimizer has pushed past a bound can come back: with the derivative of
    `clip`, which is 0 there, it would stay.
    """
    return x + jax.lax.stop_gradient(jnp.clip(x, low, high) - x)
