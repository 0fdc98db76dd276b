"""RMSNorm over the last axis, by our kernel on a CPU. Shapes: W numbers to normalize."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from rope_jax.kernels.loading import call_kernel, floats, with_kernel

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
    attributes = {"epsilon": np.float32(epsilon)}
    kernel = functools.partial(call_kernel, "norm_forward", floats(*x.shape), **attributes)
    return with_kernel(kernel, functools.partial(_plain, epsilon=epsilon), x, scale), (x, scale)


def _backward(
    epsilon: float, saved: tuple[Array, Array], dy: Float[Array, "tokens W"]
) -> tuple[Float[Array, "tokens W"], Float[Array, " W"]]:
    rows, width = dy.shape

    def plain(x: Array, scale: Array, dy: Array) -> tuple[Array, Array]:
        dx, dscale = jax.vjp(functools.partial(_plain, epsilon=epsilon), x, scale)[1](dy)
        return dx, dscale

    def kernel(*arrays: Array) -> tuple[Array, Array]:
        results = floats(rows, width), floats(-(-rows // _BLOCK), width)
        dx, dscale = call_kernel("norm_backward", results, *arrays, epsilon=np.float32(epsilon))
        return dx, dscale.sum(0)

    dx, dscale = with_kernel(kernel, plain, *saved, dy)
    return dx, dscale


rms_norm.defvjp(_forward, _backward)
