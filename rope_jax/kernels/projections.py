"""The product of tokens and weights, with derivatives that are fast on a CPU.

Shapes: D inputs, F outputs.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rope_jax.kernels.loading import WEIGHT_GRADIENT, load_kernels


@jax.custom_vjp
def project(x: Float[Array, "tokens D"], kernel: Float[Array, "D F"]) -> Float[Array, "tokens F"]:
    """x·kernel. On a CPU, the gradient by the kernel is computed by ours, where it was compiled.

    That is XLA's slowest product there: it contracts the first axis of both factors.
    """
    return x @ kernel


def _forward(
    x: Float[Array, "tokens D"], kernel: Float[Array, "D F"]
) -> tuple[Float[Array, "tokens F"], tuple[Array, Array]]:
    return x @ kernel, (x, kernel)


def _backward(
    saved: tuple[Array, Array], dy: Float[Array, "tokens F"]
) -> tuple[Float[Array, "tokens D"], Float[Array, "D F"]]:
    x, kernel = saved
    if x.dtype != jnp.float32 or load_kernels() is None:
        return dy @ kernel.T, x.T @ dy
    dkernel = jax.lax.platform_dependent(x, dy, cpu=_weight_gradient, default=lambda x, y: x.T @ y)
    return dy @ kernel.T, dkernel


project.defvjp(_forward, _backward)


def _weight_gradient(
    x: Float[Array, "tokens D"], dy: Float[Array, "tokens F"]
) -> Float[Array, "D F"]:
    result = jax.ShapeDtypeStruct((x.shape[1], dy.shape[1]), jnp.float32)
    return jax.ffi.ffi_call(WEIGHT_GRADIENT, result, vmap_method="sequential")(x, dy)


@jax.custom_vjp
def project_rounded(
    x: Float[Array, "tokens D"], kernel: Float[Array, "D F"]
) -> Float[Array, "tokens F"]:
    """x·kernel with both factors rounded to bfloat16; its sums are float32, as are its gradients'.

    The result has the dtype of x. Processors with AMX multiply bfloat16 several times as fast.
    """
    return _rounded_product(x, kernel).astype(x.dtype)


def _rounded_forward(
    x: Float[Array, "tokens D"], kernel: Float[Array, "D F"]
) -> tuple[Float[Array, "tokens F"], tuple[Array, Array]]:
    return _rounded_product(x, kernel).astype(x.dtype), (x, kernel)


def _rounded_backward(
    saved: tuple[Array, Array], dy: Float[Array, "tokens F"]
) -> tuple[Float[Array, "tokens D"], Float[Array, "D F"]]:
    x, kernel = saved
    dx = _rounded_product(dy, kernel.T).astype(x.dtype)
    return dx, _rounded_product(x.T, dy).astype(kernel.dtype)


project_rounded.defvjp(_rounded_forward, _rounded_backward)


def _rounded_product(
    a: Float[Array, "rows depth"], b: Float[Array, "depth columns"]
) -> Float[Array, "rows columns"]:
    """a·b of factors rounded to bfloat16, in float32."""
    # XLA's fast products on a CPU contract the last axis of a with the first of b. Without the
    # barrier, it would make another product of one whose factor was transposed, which is slow.
    rounded = jax.lax.optimization_barrier((a.astype(jnp.bfloat16), b.astype(jnp.bfloat16)))
    return jnp.matmul(*rounded, preferred_element_type=jnp.float32)
