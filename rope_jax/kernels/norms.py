"""RMSNorm over the last axis, by a kernel of ours on a CPU.

Shapes: W numbers to normalize.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from rope_jax.kernels.loading import call_kernel, load_kernels

_BLOCK = 128  # NORM_BLOCK in kernels.h


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def rms_norm(
    x: Float[Array, "tokens W"], scale: Float[Array, " W"], epsilon: float
) -> Float[Array, "tokens W"]:
    """x / √(mean x² + ε) · scale, in float32.

    On a CPU it is computed by our kernel, where that was compiled: XLA would first write out the
    scale for all tokens.
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
    plain = functools.partial(_plain, epsilon=epsilon)
    if load_kernels() is None:
        return plain(x, scale), (x, scale)

    def ours(x: Float[Array, "tokens W"], scale: Float[Array, " W"]) -> Float[Array, "tokens W"]:
        result = jax.ShapeDtypeStruct(x.shape, jnp.float32)
        return call_kernel("norm_forward", result, x, scale, epsilon=np.float32(epsilon))

    return jax.lax.platform_dependent(x, scale, cpu=ours, default=plain), (x, scale)


def _backward(
    epsilon: float, saved: tuple[Array, Array], dy: Float[Array, "tokens W"]
) -> tuple[Float[Array, "tokens W"], Float[Array, " W"]]:
    def plain(x: Array, scale: Array, dy: Array) -> tuple[Array, Array]:
        dx, dscale = jax.vjp(functools.partial(_plain, epsilon=epsilon), x, scale)[1](dy)
        return dx, dscale

    if load_kernels() is None:
        return plain(*saved, dy)

    def ours(x: Array, scale: Array, dy: Array) -> tuple[Array, Array]:
        tokens, width = x.shape
        blocks = jax.ShapeDtypeStruct((-(-tokens // _BLOCK), width), jnp.float32)
        results = jax.ShapeDtypeStruct(x.shape, jnp.float32), blocks
        dx, dscale = call_kernel(
            "norm_backward", results, x, scale, dy, epsilon=np.float32(epsilon)
        )
        return dx, dscale.sum(0)

    return jax.lax.platform_dependent(*saved, dy, cpu=ours, default=plain)


rms_norm.defvjp(_forward, _backward)
