"""The feed-forward of a Llama, by our kernels on a CPU.

The hidden layer and the gradients of its factors are only factors of further products. So they are
bfloat16 if products are of low precision, which changes no result and halves what is written and
read; F is even then. Shapes: D model, F hidden layer.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rope_jax.kernels.loading import call_kernel, floats, with_kernel
from rope_jax.kernels.projections import (
    NO_GROUPS,
    Sizes,
    Weights,
    plain_product,
    projected,
    sum_of_products,
    weight_gradient,
)

Hidden = Float[Array, "tokens F"]
_Saved = tuple[Array, Array, Array, tuple[Array, Array, Array], Sizes]


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def gated_feed_forward(
    x: Float[Array, "tokens D"],
    w_gate: Weights,
    w_up: Weights,
    w_down: Float[Array, "*G F D"],
    low_precision: bool = False,
    sizes: Sizes = NO_GROUPS,
) -> Float[Array, "tokens D"]:
    """(silu(x·w_gate) · (x·w_up))·w_down, float32. low_precision, sizes: as in `project`.

    The backward pass keeps both factors of the hidden layer, and computes their product again:
    reading it back would take longer.
    """
    hidden, *_ = _hidden_layer(x, w_gate, w_up, sizes, low_precision, keep_factors=False)
    return sum_of_products((hidden,), (w_down,), sizes, low_precision=low_precision)


def _forward(
    x: Array, w_gate: Array, w_up: Array, w_down: Array, low_precision: bool, sizes: Sizes
) -> tuple[Array, _Saved]:
    hidden, gate, up = _hidden_layer(x, w_gate, w_up, sizes, low_precision, keep_factors=True)
    saved = x, projected(gate), projected(up), (w_gate, w_up, w_down), sizes
    return sum_of_products((hidden,), (w_down,), sizes, low_precision=low_precision), saved


def _backward(
    low_precision: bool, saved: _Saved, dy: Array
) -> tuple[Array, Array, Array, Array, None]:
    x, gate, up, (w_gate, w_up, w_down), sizes = saved
    hidden, dgate, dup = _hidden_layer_and_gradients(dy, w_down, gate, up, sizes, low_precision)
    gradient = functools.partial(weight_gradient, sizes=sizes, low_precision=low_precision)
    dx = sum_of_products(
        (dgate, dup), (w_gate, w_up), sizes, transposed=True, low_precision=low_precision
    )
    return dx, gradient(x, dgate), gradient(x, dup), gradient(hidden, dy), None


gated_feed_forward.defvjp(_forward, _backward)


def _hidden_layer(
    x: Float[Array, "tokens D"],
    w_gate: Weights,
    w_up: Weights,
    sizes: Sizes,
    low_precision: bool,
    *,
    keep_factors: bool,
) -> tuple[Hidden, Float[Array, "_ F"], Float[Array, "_ F"]]:
    """silu(x·w_gate) · (x·w_up), and both factors, which are empty unless they are kept."""
    kept, dtype = x.shape[0] if keep_factors else 0, jnp.bfloat16 if low_precision else jnp.float32

    def plain(x: Array, w_gate: Array, w_up: Array, sizes: Array) -> tuple[Array, ...]:
        gate, up = (plain_product(x, w, low_precision, sizes) for w in (w_gate, w_up))
        return (jax.nn.silu(gate) * up).astype(dtype), gate[:kept], up[:kept]

    width = w_gate.shape[-1]
    hidden, factor = jax.ShapeDtypeStruct((x.shape[0], width), dtype), floats(kept, width)
    results = hidden, factor, factor
    kernel = functools.partial(call_kernel, "gated_forward", results, rounded=low_precision)
    return tuple(with_kernel(kernel, plain, x, w_gate, w_up, jnp.asarray(sizes)))


def _hidden_layer_and_gradients(
    dy: Float[Array, "tokens D"],
    w_down: Float[Array, "*G F D"],
    gate: Hidden,
    up: Hidden,
    sizes: Sizes,
    low_precision: bool,
) -> tuple[Hidden, Hidden, Hidden]:
    """Recompute the hidden layer h; gradients of y = h·w_down with respect to gate and up."""
    dtype = jnp.bfloat16 if low_precision else jnp.float32

    def plain(
        dy: Array, w_down: Array, gate: Hidden, up: Hidden, sizes: Array
    ) -> tuple[Hidden, ...]:
        hidden, pull_back = jax.vjp(lambda gate, up: jax.nn.silu(gate) * up, gate, up)
        results = hidden, *pull_back(plain_product(dy, w_down.mT, low_precision, sizes))
        return tuple(result.astype(dtype) for result in results)

    results = (jax.ShapeDtypeStruct(gate.shape, dtype),) * 3
    kernel = functools.partial(call_kernel, "gated_backward", results, rounded=low_precision)
    return tuple(with_kernel(kernel, plain, dy, w_down, gate, up, jnp.asarray(sizes)))
