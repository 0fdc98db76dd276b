"""Functions of the encodings' parameters with derivatives of their own.

Shapes: B batch, T queries, S keys, N heads, W hidden units, a multiple of 4; # may have size 1.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

# The backward pass computes this many units at once: enough for matrix products, few enough for
# the processor's cache.
_UNITS = 4


@jax.custom_vjp
def mlp(
    x: Float[Array, "#B T S"],
    kernel: Float[Array, " W"],
    shift: Float[Array, " W"],
    outputs: Float[Array, "W N"],
) -> Float[Array, "#B N T S"]:
    """Return Σ_w outputs[w] · relu(kernel[w]·x + shift[w]).

    One unit after another is added, so there is no array [B, T, S, W]. The backward pass is written
    out as matrix products: on a CPU, automatic differentiation takes about 40 times as long.
    """

    def add(sum_so_far: Array, unit: tuple[Array, Array, Array]) -> tuple[Array, None]:
        kernel, shift, outputs = unit
        hidden = jax.nn.relu(kernel * x + shift)[:, None]
        return sum_so_far + outputs.reshape(1, -1, 1, 1) * hidden, None

    nothing = jnp.zeros((x.shape[0], outputs.shape[1], *x.shape[1:]), jnp.float32)
    return jax.lax.scan(add, nothing, (kernel, shift, outputs), unroll=8)[0]


def _forward(x: Array, kernel: Array, shift: Array, outputs: Array) -> tuple[Array, tuple]:
    return mlp(x, kernel, shift, outputs), (x, kernel, shift, outputs)


def _backward(saved: tuple, dout: Float[Array, "B N T S"]) -> tuple[Array, ...]:
    x, *weights = saved
    pairs = x.reshape(-1)
    dout = dout.swapaxes(0, 1).reshape(dout.shape[1], -1)

    def units(dx: Array, weights: tuple[Array, Array, Array]) -> tuple[Array, tuple[Array, ...]]:
        kernel, shift, outputs = weights
        before = kernel[:, None] * pairs[None] + shift[:, None]
        doutputs = jax.nn.relu(before) @ dout.T
        dbefore = jnp.where(before > 0, outputs @ dout, np.float32(0))
        ones = jnp.ones_like(pairs)  # a product with ones is faster than a sum
        return dx + kernel @ dbefore, (dbefore @ pairs, dbefore @ ones, doutputs)

    grouped = [x.reshape(-1, _UNITS, *x.shape[1:]) for x in weights]
    dx, dweights = jax.lax.scan(units, jnp.zeros_like(pairs), tuple(grouped))
    return dx.reshape(x.shape), *(dw.reshape(-1, *dw.shape[2:]) for dw in dweights)


mlp.defvjp(_forward, _backward)


def bounded(
    x: Float[Array, "*shape"], low: float, high: float | None = None
) -> Float[Array, "*shape"]:
    """Return min(max(x, low), high) with a derivative of 1, so that x can come back from beyond."""
    return x + jax.lax.stop_gradient(jnp.clip(x, low, high) - x)
