"""The product of tokens and weights, with derivatives that are fast on a CPU.

Shapes: D inputs, F outputs.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rope_jax.kernels.loading import PROJECTION, WEIGHT_GRADIENT, load_kernels

# Fewer tokens do not pay for the copy of the weights that our kernels make.
_FEWEST_TOKENS = 128


@jax.custom_vjp
def project(x: Float[Array, "tokens D"], kernel: Float[Array, "D F"]) -> Float[Array, "tokens F"]:
    """x·kernel. On a CPU, it and its gradients are computed by ours, where that was compiled.

    XLA's products take longer there, most of all the gradient by the kernel, which contracts the
    first axis of both factors.
    """
    return sum_of_products((x,), (kernel,))


def _forward(
    x: Float[Array, "tokens D"], kernel: Float[Array, "D F"]
) -> tuple[Float[Array, "tokens F"], tuple[Array, Array]]:
    return sum_of_products((x,), (kernel,)), (x, kernel)


def _backward(
    saved: tuple[Array, Array], dy: Float[Array, "tokens F"]
) -> tuple[Float[Array, "tokens D"], Float[Array, "D F"]]:
    x, kernel = saved
    return sum_of_products((dy,), (kernel,), transposed=True), weight_gradient(x, dy)


project.defvjp(_forward, _backward)


def has_kernels(x: Float[Array, "tokens D"]) -> bool:
    """Return whether our kernels multiply these tokens on a CPU."""
    enough = x.dtype == jnp.float32 and x.shape[0] >= _FEWEST_TOKENS
    return enough and load_kernels() is not None


def sum_of_products(
    xs: tuple[Float[Array, "tokens _"], ...],
    kernels: tuple[Float[Array, "_ _"], ...],
    *,
    transposed: bool = False,
) -> Float[Array, "tokens _"]:
    """Σ xᵢ·kernelᵢ of one or two products, or Σ xᵢ·kernelᵢᵀ. It has no derivative."""

    def plain(xs: tuple[Array, ...], kernels: tuple[Array, ...]) -> Array:
        factors = [kernel.T if transposed else kernel for kernel in kernels]
        first, *others = (x @ factor for x, factor in zip(xs, factors, strict=True))
        return sum(others, first)

    def ours(xs: tuple[Array, ...], kernels: tuple[Array, ...]) -> Array:
        outputs = kernels[0].shape[0 if transposed else 1]
        result = jax.ShapeDtypeStruct((xs[0].shape[0], outputs), jnp.float32)
        call = jax.ffi.ffi_call(PROJECTION, result, vmap_method="sequential")
        pairs = zip(xs, kernels, strict=True)
        return call(*(factor for pair in pairs for factor in pair), transposed=transposed)

    if not has_kernels(xs[0]):
        return plain(xs, kernels)
    return jax.lax.platform_dependent(xs, kernels, cpu=ours, default=plain)


def weight_gradient(
    x: Float[Array, "tokens D"], dy: Float[Array, "tokens F"]
) -> Float[Array, "D F"]:
    """xᵀ·dy. It has no derivative."""

    def plain(x: Array, dy: Array) -> Array:
        return x.T @ dy

    def ours(x: Array, dy: Array) -> Array:
        result = jax.ShapeDtypeStruct((x.shape[1], dy.shape[1]), jnp.float32)
        return jax.ffi.ffi_call(WEIGHT_GRADIENT, result, vmap_method="sequential")(x, dy)

    if not has_kernels(x):
        return plain(x, dy)
    return jax.lax.platform_dependent(x, dy, cpu=ours, default=plain)


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
