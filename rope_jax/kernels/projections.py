"""The product of tokens and weights, with derivatives that are fast on a CPU.

Shapes: D inputs, F outputs.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rope_jax.kernels.loading import call_kernel, has_amx, load_kernels

# Below this many tokens, packing the weights costs more than it saves.
_FEWEST_TOKENS = 128


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def project(
    x: Float[Array, "tokens D"], kernel: Float[Array, "D F"], rounded: bool = False
) -> Float[Array, "tokens F"]:
    """x·kernel. On a CPU, it and its gradients are computed by ours, where that was compiled.

    XLA's products take longer there, most of all the gradient by the kernel, which contracts the
    first axis of both factors.

    rounded: round both factors of each of these products to bfloat16. The sums are float32, and the
    result has the dtype of x.
    """
    return sum_of_products((x,), (kernel,), rounded=rounded).astype(x.dtype)


def _forward(
    x: Float[Array, "tokens D"], kernel: Float[Array, "D F"], rounded: bool
) -> tuple[Float[Array, "tokens F"], tuple[Array, Array]]:
    return project(x, kernel, rounded), (x, kernel)


def _backward(
    rounded: bool, saved: tuple[Array, Array], dy: Float[Array, "tokens F"]
) -> tuple[Float[Array, "tokens D"], Float[Array, "D F"]]:
    x, kernel = saved
    dx = sum_of_products((dy,), (kernel,), transposed=True, rounded=rounded)
    dkernel = weight_gradient(x, dy, rounded=rounded)
    return dx.astype(x.dtype), dkernel.astype(kernel.dtype)


project.defvjp(_forward, _backward)


def has_kernels(
    x: Float[Array, "tokens D"], other: Float[Array, "_ _"] | None = None, *, rounded: bool
) -> bool:
    """Return whether our kernels multiply these tokens on a CPU, with `other` if it is given.

    One of the two may be bfloat16 if products are rounded and its rows have an even length.
    Products of rounded factors are XLA's on a CPU with AMX, which ours do not use.
    """
    factors = (x,) if other is None else (x, other)
    narrow = [factor for factor in factors if factor.dtype != jnp.float32]
    known = not narrow or (
        len(narrow) < len(factors)
        and narrow[0].dtype == jnp.bfloat16
        and rounded
        and narrow[0].shape[1] % 2 == 0
    )
    enough = known and x.shape[0] >= _FEWEST_TOKENS
    return enough and load_kernels() is not None and not (rounded and has_amx())


def sum_of_products(
    xs: tuple[Float[Array, "tokens _"], ...],
    kernels: tuple[Float[Array, "_ _"], ...],
    *,
    transposed: bool = False,
    rounded: bool = False,
) -> Float[Array, "tokens _"]:
    """Σ xᵢ·kernelᵢ of one or two products, or Σ xᵢ·kernelᵢᵀ. It has no derivative.

    rounded: as in `project`.
    """

    def plain(xs: tuple[Array, ...], kernels: tuple[Array, ...]) -> Array:
        factors = [kernel.T if transposed else kernel for kernel in kernels]
        pairs = zip(xs, factors, strict=True)
        first, *others = (plain_product(x, factor, rounded) for x, factor in pairs)
        return sum(others, first)

    def ours(xs: tuple[Array, ...], kernels: tuple[Array, ...]) -> Array:
        outputs = kernels[0].shape[0 if transposed else 1]
        result = jax.ShapeDtypeStruct((xs[0].shape[0], outputs), jnp.float32)
        pairs = [factor for pair in zip(xs, kernels, strict=True) for factor in pair]
        return call_kernel("projection", result, *pairs, transposed=transposed, rounded=rounded)

    wide = kernels[0].dtype == jnp.float32
    if not (wide and has_kernels(xs[0], kernels[0], rounded=rounded)):
        return plain(xs, kernels)
    return jax.lax.platform_dependent(xs, kernels, cpu=ours, default=plain)


def weight_gradient(
    x: Float[Array, "tokens D"], dy: Float[Array, "tokens F"], *, rounded: bool = False
) -> Float[Array, "D F"]:
    """xᵀ·dy. It has no derivative.

    rounded: as in `project`.
    """

    def plain(x: Array, dy: Array) -> Array:
        return plain_product(x.T, dy, rounded)

    def ours(x: Array, dy: Array) -> Array:
        result = jax.ShapeDtypeStruct((x.shape[1], dy.shape[1]), jnp.float32)
        return call_kernel("weight_gradient", result, x, dy, rounded=rounded)

    if not has_kernels(x, dy, rounded=rounded):
        return plain(x, dy)
    return jax.lax.platform_dependent(x, dy, cpu=ours, default=plain)


def plain_product(
    a: Float[Array, "rows depth"], b: Float[Array, "depth columns"], rounded: bool
) -> Float[Array, "rows columns"]:
    """a·b by XLA; if rounded, of factors rounded to bfloat16, with float32 sums."""
    if not rounded:
        return a @ b
    # XLA's fast products on a CPU contract the last axis of a with the first of b. Without the
    # barrier, it would make another product of one whose factor was transposed, which is slow.
    factors = jax.lax.optimization_barrier((a.astype(jnp.bfloat16), b.astype(jnp.bfloat16)))
    dtype = a.dtype if a.dtype == b.dtype else jnp.float32  # one may be rounded already
    return jnp.matmul(*factors, preferred_element_type=jnp.float32).astype(dtype)
