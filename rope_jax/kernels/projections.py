"""The product of tokens and weights, with derivatives that are fast on a CPU.

Shapes: D inputs, F outputs.
"""

import functools

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from rope_jax.kernels.loading import call_kernel, floats, has_amx, load_kernels, with_kernel

# Below this many tokens, packing the weights costs more than it saves.
_FEWEST_TOKENS = 128
PROJECTED = "projected"


def projected(x: Array) -> Array:
    """Mark the result of a product with a weight matrix, for a remat policy to keep it."""
    return checkpoint_name(x, PROJECTED)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def project(
    x: Float[Array, "tokens D"], kernel: Float[Array, "D F"], low_precision: bool = False
) -> Float[Array, "tokens F"]:
    """x·kernel. On a CPU, it and its gradients are computed by our kernels if they were compiled.

    XLA's products take longer there, most of all the gradient with respect to the weights, which
    contracts the first axis of both factors.

    low_precision: round both factors of each of these products to bfloat16. The sums are float32,
    and the result has the dtype of x.
    """
    return sum_of_products((x,), (kernel,), low_precision=low_precision).astype(x.dtype)


def _forward(
    x: Float[Array, "tokens D"], kernel: Float[Array, "D F"], low_precision: bool
) -> tuple[Float[Array, "tokens F"], tuple[Array, Array]]:
    return project(x, kernel, low_precision), (x, kernel)


def _backward(
    low_precision: bool, saved: tuple[Array, Array], dy: Float[Array, "tokens F"]
) -> tuple[Float[Array, "tokens D"], Float[Array, "D F"]]:
    x, kernel = saved
    dx = sum_of_products((dy,), (kernel,), transposed=True, low_precision=low_precision)
    dkernel = weight_gradient(x, dy, low_precision=low_precision)
    return dx.astype(x.dtype), dkernel.astype(kernel.dtype)


project.defvjp(_forward, _backward)


def has_kernels(
    x: Float[Array, "tokens _"], other: Float[Array, "_ _"], *, low_precision: bool
) -> bool:
    """Return whether our kernels multiply these factors on a CPU.

    One of the two may be bfloat16 if products are of low precision and its rows have an even
    length. Products of low precision are XLA's on a CPU with AMX, which ours do not use.
    """
    if x.shape[0] < _FEWEST_TOKENS or load_kernels() is None or (low_precision and has_amx()):
        return False
    narrow = [factor for factor in (x, other) if factor.dtype != jnp.float32]
    if not narrow:
        return True
    is_even_bfloat16 = narrow[0].dtype == jnp.bfloat16 and narrow[0].shape[1] % 2 == 0
    return low_precision and len(narrow) == 1 and is_even_bfloat16


def sum_of_products(
    xs: tuple[Float[Array, "tokens _"], ...],
    kernels: tuple[Float[Array, "_ _"], ...],
    *,
    transposed: bool = False,
    low_precision: bool = False,
) -> Float[Array, "tokens _"]:
    """Σ xᵢ·kernelᵢ of one or two products, or Σ xᵢ·kernelᵢᵀ. It has no derivative."""

    factors = [factor for pair in zip(xs, kernels, strict=True) for factor in pair]

    def plain(*factors: Array) -> Array:
        pairs = zip(factors[::2], factors[1::2], strict=True)
        first, *others = (
            plain_product(x, kernel.T if transposed else kernel, low_precision)
            for x, kernel in pairs
        )
        return sum(others, first)

    result = floats(xs[0].shape[0], kernels[0].shape[0 if transposed else 1])
    attributes = {"transposed": transposed, "rounded": low_precision}
    kernel = functools.partial(call_kernel, "projection", result, **attributes)
    is_wide = kernels[0].dtype == jnp.float32
    usable = is_wide and has_kernels(xs[0], kernels[0], low_precision=low_precision)
    return with_kernel(kernel, plain, *factors, usable=usable)


def weight_gradient(
    x: Float[Array, "tokens D"], dy: Float[Array, "tokens F"], *, low_precision: bool = False
) -> Float[Array, "D F"]:
    """xᵀ·dy. It has no derivative."""

    def plain(x: Array, dy: Array) -> Array:
        return plain_product(x.T, dy, low_precision)

    result = floats(x.shape[1], dy.shape[1])
    kernel = functools.partial(call_kernel, "weight_gradient", result, rounded=low_precision)
    usable = has_kernels(x, dy, low_precision=low_precision)
    return with_kernel(kernel, plain, x, dy, usable=usable)


def plain_product(
    a: Float[Array, "rows depth"], b: Float[Array, "depth columns"], low_precision: bool
) -> Float[Array, "rows columns"]:
    """a·b by XLA; of low precision, of factors rounded to bfloat16, with float32 sums."""
    if not low_precision:
        return a @ b
    # XLA's fast products on a CPU contract the last axis of a with the first of b. Without the
    # barrier, it would make another product of one whose factor was transposed, which is slow.
    factors = jax.lax.optimization_barrier((a.astype(jnp.bfloat16), b.astype(jnp.bfloat16)))
    dtype = a.dtype if a.dtype == b.dtype else jnp.float32  # one may be rounded already
    return jnp.matmul(*factors, preferred_element_type=jnp.float32).astype(dtype)
