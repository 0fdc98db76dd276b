"""The product of tokens and weights, with derivatives that are fast on a CPU.

Shapes: D inputs, F outputs.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rope_jax.kernels.loading import PROJECTION, WEIGHT_GRADIENT, load_kernels


# Fewer tokens do not pay for the copy of the weights that our kernel makes.
_FEWEST_TOKENS = 128


@jax.custom_vjp
def project(x: Float[Array, "tokens D"], kernel: Float[Array, "D F"]) -> Float[Array, "tokens F"]:
    """x·kernel. On a CPU, it and its gradients are computed by ours, where that was compiled.

    XLA's products take longer there, most of all the gradient by the kernel, which contracts the
    first axis of both factors.
    """
    return _product(x, kernel, transposed=False)


def _forward(
    x: Float[Array, "tokens D"], kernel: Float[Array, "D F"]
) -> tuple[Float[Array, "tokens F"], tuple[Array, Array]]:
    return _product(x, kernel, transposed=False), (x, kernel)


def _backward(
    saved: tuple[Array, Array], dy: Float[Array, "tokens F"]
) -> tuple[Float[Array, "tokens D"], Float[Array, "D F"]]:
    x, kernel = saved
    dx = _product(dy, kernel, transposed=True)
    if not _has_kernel(x):
        return dx, x.T @ dy
    dkernel = jax.lax.platform_dependent(x, dy, cpu=_weight_gradient, default=lambda x, y: x.T @ y)
    return dx, dkernel


project.defvjp(_forward, _backward)


def _has_kernel(x: Array) -> bool:
    return x.dtype == jnp.float32 and load_kernels() is not None


def _product(
    x: Float[Array, "tokens from"], kernel: Float[Array, "#from #to"], transposed: bool
) -> Float[Array, "tokens to"]:
    """x·kernel, or x·kernelᵀ."""

    def plain(x: Array, kernel: Array) -> Array:
        return x @ (kernel.T if transposed else kernel)

    def ours(x: Array, kernel: Array) -> Array:
        outputs = kernel.shape[0 if transposed else 1]
        result = jax.ShapeDtypeStruct((x.shape[0], outputs), jnp.float32)
        call = jax.ffi.ffi_call(PROJECTION, result, vmap_method="sequential")
        return call(x, kernel, transposed=transposed)

    if not _has_kernel(x) or x.shape[0] < _FEWEST_TOKENS:
        return plain(x, kernel)
    return jax.lax.platform_dependent(x, kernel, cpu=ours, default=plain)


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
