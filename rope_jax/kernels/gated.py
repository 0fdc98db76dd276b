"""The hidden layer of a gated feed-forward with SiLU, by kernels of ours on a CPU.

`rounded` is as in `projections.project`. The hidden layer and the gradients of its factors are only
factors of further products. So they are bfloat16 if those are rounded, which changes no result and
halves what is written and read; F is even then. Shapes: D model, F hidden layer.
"""

import functools

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from rope_jax.kernels.loading import call_kernel
from rope_jax.kernels.projections import plain_product

Hidden = Float[Array, "tokens F"]


def hidden_layer(
    x: Float[Array, "tokens D"],
    w_gate: Float[Array, "D F"],
    w_up: Float[Array, "D F"],
    *,
    rounded: bool,
) -> Hidden:
    """silu(x·w_gate) · (x·w_up). It has no derivative."""

    def plain(x: Array, w_gate: Array, w_up: Array) -> Hidden:
        return _plain(x, w_gate, w_up, rounded)[0]

    def ours(x: Array, w_gate: Array, w_up: Array) -> Hidden:
        return _ours(x, w_gate, w_up, rounded, kept=0)[0]

    return jax.lax.platform_dependent(x, w_gate, w_up, cpu=ours, default=plain)


def hidden_layer_and_factors(
    x: Float[Array, "tokens D"],
    w_gate: Float[Array, "D F"],
    w_up: Float[Array, "D F"],
    *,
    rounded: bool,
) -> tuple[Hidden, Hidden, Hidden]:
    """The same, and x·w_gate and x·w_up."""
    plain = functools.partial(_plain, rounded=rounded)
    ours = functools.partial(_ours, rounded=rounded, kept=x.shape[0])
    return jax.lax.platform_dependent(x, w_gate, w_up, cpu=ours, default=plain)


def _plain(x: Array, w_gate: Array, w_up: Array, rounded: bool) -> tuple[Hidden, Hidden, Hidden]:
    gate, up = plain_product(x, w_gate, rounded), plain_product(x, w_up, rounded)
    return (jax.nn.silu(gate) * up).astype(_dtype(rounded)), gate, up


def _dtype(rounded: bool) -> DTypeLike:
    """The dtype of what is only a factor of further products."""
    return jnp.bfloat16 if rounded else jnp.float32


def _ours(
    x: Array, w_gate: Array, w_up: Array, rounded: bool, kept: int
) -> tuple[Hidden, Hidden | Float[Array, "0 F"], Hidden | Float[Array, "0 F"]]:
    """The hidden layer, and its factors for the first `kept` tokens: all or none."""
    tokens, size = x.shape[0], w_gate.shape[1]
    factor = jax.ShapeDtypeStruct((kept, size), jnp.float32)
    results = [jax.ShapeDtypeStruct((tokens, size), _dtype(rounded)), factor, factor]
    hidden, gate, up = call_kernel("gated_forward", results, x, w_gate, w_up, rounded=rounded)
    return hidden, gate, up


def hidden_layer_and_gradients(
    dy: Float[Array, "tokens D"],
    w_down: Float[Array, "F D"],
    gate: Hidden,
    up: Hidden,
    *,
    rounded: bool,
) -> tuple[Hidden, Hidden, Hidden]:
    """Recompute the hidden layer h; gradients of y = h·w_down with respect to gate and up."""

    def plain(dy: Array, w_down: Array, gate: Hidden, up: Hidden) -> tuple[Hidden, Hidden, Hidden]:
        hidden, pull_back = jax.vjp(lambda gate, up: jax.nn.silu(gate) * up, gate, up)
        results = hidden, *pull_back(plain_product(dy, w_down.T, rounded))
        return jax.tree.map(lambda result: result.astype(_dtype(rounded)), results)

    def ours(dy: Array, w_down: Array, gate: Hidden, up: Hidden) -> tuple[Hidden, Hidden, Hidden]:
        results = (jax.ShapeDtypeStruct(gate.shape, _dtype(rounded)),) * 3
        given = dy, w_down, gate, up
        hidden, dgate, dup = call_kernel("gated_backward", results, *given, rounded=rounded)
        return hidden, dgate, dup

    return jax.lax.platform_dependent(dy, w_down, gate, up, cpu=ours, default=plain)
