"""The feed-forward of a Llama, by kernels of ours on a CPU.

Shapes: D model, F hidden layer.
"""

import functools

import jax
from jaxtyping import Array, Float

from rope_jax.attention.remat_names import projected
from rope_jax.kernels.gated import (
    hidden_layer,
    hidden_layer_and_factors,
    hidden_layer_and_gradients,
)
from rope_jax.kernels.projections import sum_of_products, weight_gradient

_Saved = tuple[Array, Array, Array, tuple[Array, Array, Array]]


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def gated_feed_forward(
    x: Float[Array, "tokens D"],
    w_gate: Float[Array, "D F"],
    w_up: Float[Array, "D F"],
    w_down: Float[Array, "F D"],
    rounded: bool = False,
) -> Float[Array, "tokens D"]:
    """(silu(x·w_gate) · (x·w_up))·w_down, float32.

    The backward pass keeps both factors of the hidden layer, and computes their product again:
    reading it back would take longer.

    rounded: round both factors of every product with weights to bfloat16, as `project` does.
    """
    hidden = hidden_layer(x, w_gate, w_up, rounded=rounded)
    return sum_of_products((hidden,), (w_down,), rounded=rounded)


def _forward(
    x: Array, w_gate: Array, w_up: Array, w_down: Array, rounded: bool
) -> tuple[Array, _Saved]:
    hidden, gate, up = hidden_layer_and_factors(x, w_gate, w_up, rounded=rounded)
    saved = x, projected(gate), projected(up), (w_gate, w_up, w_down)
    return sum_of_products((hidden,), (w_down,), rounded=rounded), saved


def _backward(rounded: bool, saved: _Saved, dy: Array) -> tuple[Array, Array, Array, Array]:
    x, gate, up, (w_gate, w_up, w_down) = saved
    hidden, dgate, dup = hidden_layer_and_gradients(dy, w_down, gate, up, rounded=rounded)
    by_weights = functools.partial(weight_gradient, rounded=rounded)
    dx = sum_of_products((dgate, dup), (w_gate, w_up), transposed=True, rounded=rounded)
    return dx, by_weights(x, dgate), by_weights(x, dup), by_weights(hidden, dy)


gated_feed_forward.defvjp(_forward, _backward)
