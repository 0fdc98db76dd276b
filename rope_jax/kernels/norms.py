"""RMSNorm over the last axis, by our kernel on a CPU. Shapes: W numbers to normalize."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from rope_jax.kernels.loading import call_kernel, with_kernel

_BLOCK = 128  # NORM_BLOCK in kernels.h


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def rms_norm(
    x: Float[Array, "tokens W"], scale: Float[Array, " W"], epsilon: float
) -> Float[Array, "tokens W"]:
    """x / √(mean x² + ε) · scale, in float32.

    On a CPU it is computed by our kernel if that was compiled: XLA would first write out the scale
    for all tokens.
    """
    return _forward(x, scale, epsilon)[0]


def _plain(
    x: Float[Array, "tokens W"], scale: Float[Array, " W"], epsilon: float
) -> Float[Array, "tokens W"]:
    r = jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + epsilon)
    return x * (r * scale[None])


def _forward(
    x: Float[Array, "tokens W"], scale: Float[Array, " W"], epsilon: float
) -> tuple[Float[Array, "tokens W"], tuple[Array, Array]]:
    def kernel(x: Array, scale: Array) -> Array:
        result = jax.ShapeDtypeStruct(x.shape, jnp.float32)
        return call_kernel("norm_forward", result, x, scale, epsilon=np.float32(epsilon))

    plain = functools.partial(_plain, epsilon=epsilon)
    return with_kernel(kernel, plain, x, scale), (x, scale)


def _backward(
    epsilon: float, saved: tuple[Array, Array], dy: Float[Array, "tokens W"]
) -> tuple[Float[Array, "tokens W"], Float[Array, " W"]]:
    def plain(x: Array, scale: Array, dy: Array) -> tuple[Array, Array]:
        dx, dscale = jax.vjp(functools.partial(_plain, epsilon=epsilon), x, scale)[1](dy)
        return dx, dscale

    def kernel(x: Array, scale: Array, dy: Array) -> tuple[Array, Array]:
        blocks = jax.ShapeDtypeStruct((-(-x.shape[0] // _BLOCK), x.shape[1]), jnp.float32)
        results = jax.ShapeDtypeStruct(x.shape, jnp.float32), blocks
        given = x, scale, dy
        dx, dscale = call_kernel("norm_backward", results, *given, epsilon=np.float32(epsilon))
        return dx, dscale.sum(0)

    dx, dscale = with_kernel(kernel, plain, *saved, dy)
    return dx, dscale


rms_norm.defvjp(_forward, _backward)
