"""The feed-forward of a Llama, by kernels of ours on a CPU.

Shapes: D model, F hidden layer.
"""

import jax
from jaxtyping import Array, Float

from rope_jax.kernels.gated import (
    hidden_layer,
    hidden_layer_and_factors,
    hidden_layer_and_gradients,
)
from rope_jax.kernels.projections import sum_of_products, weight_gradient
from rope_jax.model.remat import projected

_Saved = tuple[Array, Array, Array, tuple[Array, Array, Array]]


@jax.custom_vjp
def gated_feed_forward(
    x: Float[Array, "tokens D"],
    w_gate: Float[Array, "D F"],
    w_up: Float[Array, "D F"],
    w_down: Float[Array, "F D"],
) -> Float[Array, "tokens D"]:
    """(silu(x·w_gate) · (x·w_up))·w_down, float32.

    The backward pass keeps both factors of the hidden layer, and computes their product again:
    reading it back would take longer.
    """
    return sum_of_products((hidden_layer(x, w_gate, w_up),), (w_down,))


def _forward(x: Array, w_gate: Array, w_up: Array, w_down: Array) -> tuple[Array, _Saved]:
    hidden, gate, up = hidden_layer_and_factors(x, w_gate, w_up)
    saved = x, projected(gate), projected(up), (w_gate, w_up, w_down)
    return sum_of_products((hidden,), (w_down,)), saved


def _backward(saved: _Saved, dy: Array) -> tuple[Array, Array, Array, Array]:
    x, gate, up, (w_gate, w_up, w_down) = saved
    hidden, dgate, dup = hidden_layer_and_gradients(dy, w_down, gate, up)
    dx = sum_of_products((dgate, dup), (w_gate, w_up), transposed=True)
    return dx, weight_gradient(x, dgate), weight_gradient(x, dup), weight_gradient(hidden, dy)


gated_feed_forward.defvjp(_forward, _backward)
