"""The product of tokens and weights, with derivatives that are fast on a CPU.

Tokens may have weights by group, as in a mixture of experts: `sizes` says how many consecutive
tokens each group has. Without groups, all tokens have the same weights.

Shapes: D inputs, F outputs, G groups; *G is no axis where there are none.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from rope_jax.kernels.loading import call_kernel, floats, has_amx, load_kernels, with_kernel

# Below this many tokens, packing the weights costs more than it saves.
_FEWEST_TOKENS = 128
PROJECTED = "projected"
NO_GROUPS = np.zeros(0, np.int32)
Sizes = Int[Array, " G"] | np.ndarray
Weights = Float[Array, "*G D F"]


def projected(x: Array) -> Array:
    """Mark the result of a product with a weight matrix, for a remat policy to keep it."""
    return checkpoint_name(x, PROJECTED)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def project(
    x: Float[Array, "tokens D"],
    kernel: Weights,
    low_precision: bool = False,
    sizes: Sizes = NO_GROUPS,
) -> Float[Array, "tokens F"]:
    """x·kernel. On a CPU, it and its gradients are computed by our kernels if they were compiled.

    XLA's products take longer there, most of all the gradient with respect to the weights, which
    contracts the first axis of both factors; and those of groups, each of every token.

    low_precision: round both factors of each of these products to bfloat16. The sums are float32,
    and the result has the dtype of x.
    """
    y = sum_of_products((x,), (kernel,), sizes, low_precision=low_precision)
    return y.astype(x.dtype)


def _forward(
    x: Array, kernel: Array, low_precision: bool, sizes: Sizes
) -> tuple[Float[Array, "tokens F"], tuple[Array, Array, Sizes]]:
    return project(x, kernel, low_precision, sizes), (x, kernel, sizes)


def _backward(
    low_precision: bool, saved: tuple[Array, Array, Sizes], dy: Float[Array, "tokens F"]
) -> tuple[Float[Array, "tokens D"], Weights, None]:
    x, kernel, sizes = saved
    dx = sum_of_products((dy,), (kernel,), sizes, transposed=True, low_precision=low_precision)
    dkernel = weight_gradient(x, dy, sizes, low_precision=low_precision)
    return dx.astype(x.dtype), dkernel.astype(kernel.dtype), None


project.defvjp(_forward, _backward)


def has_kernels(
    x: Float[Array, "tokens _"],
    other: Float[Array, "... _"],
    sizes: Sizes = NO_GROUPS,
    *,
    low_precision: bool,
) -> bool:
    """Return whether our kernels multiply these factors on a CPU.

    One of the two may be bfloat16 if products are of low precision and its rows have an even
    length. Products of low precision are XLA's on a CPU with AMX, which ours do not use. Those of
    groups are never XLA's, so their factors are made float32.
    """
    if load_kernels() is None:
        return False
    if sizes.size:
        return True
    if x.shape[0] < _FEWEST_TOKENS or (low_precision and has_amx()):
        return False
    narrow = [factor for factor in (x, other) if factor.dtype != jnp.float32]
    return not narrow or (len(narrow) == 1 and _is_factor(narrow[0], low_precision))


def _is_factor(x: Float[Array, "tokens _"], low_precision: bool) -> bool:
    """Whether kernels read it as it is."""
    is_rounded = low_precision and x.dtype == jnp.bfloat16 and x.shape[1] % 2 == 0
    return x.dtype == jnp.float32 or is_rounded


def _as_factor(x: Float[Array, "tokens _"], low_precision: bool) -> Float[Array, "tokens _"]:
    return x if _is_factor(x, low_precision) else x.astype(jnp.float32)


def sum_of_products(
    xs: tuple[Float[Array, "tokens _"], ...],
    kernels: tuple[Weights, ...],
    sizes: Sizes = NO_GROUPS,
    *,
    transposed: bool = False,
    low_precision: bool = False,
) -> Float[Array, "tokens _"]:
    """Σ xᵢ·kernelᵢ of one or two products, or Σ xᵢ·kernelᵢᵀ. It has no derivative."""

    factors = [factor for pair in zip(xs, kernels, strict=True) for factor in pair]

    def plain(sizes: Array, *factors: Array) -> Array:
        pairs = zip(factors[::2], factors[1::2], strict=True)
        first, *others = (
            plain_product(x, kernel.mT if transposed else kernel, low_precision, sizes)
            for x, kernel in pairs
        )
        return sum(others, first)

    def by_kernel(sizes: Array, *factors: Array) -> Array:
        result = floats(xs[0].shape[0], kernels[0].shape[-2 if transposed else -1])
        given = [*factors]
        given[::2] = (_as_factor(x, low_precision) for x in factors[::2])
        given[1::2] = (kernel.astype(jnp.float32) for kernel in factors[1::2])
        attributes = {"transposed": transposed, "rounded": low_precision}
        return call_kernel("projection", result, sizes, *given, **attributes)

    is_wide = kernels[0].dtype == jnp.float32 or sizes.size > 0
    usable = is_wide and has_kernels(xs[0], kernels[0], sizes, low_precision=low_precision)
    return with_kernel(by_kernel, plain, jnp.asarray(sizes), *factors, usable=usable)


_OVER_TOKENS = jax.lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((0,), (0,)), ((), ())),
    lhs_ragged_dimensions=[0],
    rhs_group_dimensions=[],
)


def weight_gradient(
    x: Float[Array, "tokens D"],
    dy: Float[Array, "tokens F"],
    sizes: Sizes = NO_GROUPS,
    *,
    low_precision: bool = False,
) -> Weights:
    """xᵀ·dy, of the tokens of each group. It has no derivative."""

    def plain(x: Array, dy: Array, sizes: Array) -> Array:
        if not sizes.size:
            return plain_product(x.T, dy, low_precision)
        ragged = functools.partial(
            jax.lax.ragged_dot_general,
            ragged_dot_dimension_numbers=_OVER_TOKENS,
            preferred_element_type=jnp.float32,
        )
        factors = *_rounded(low_precision, x, dy), sizes
        return jax.lax.platform_dependent(*factors, cpu=_gradient_of_each_group, default=ragged)

    def by_kernel(x: Array, dy: Array, sizes: Array) -> Array:
        groups = sizes.shape if sizes.size else ()
        result = floats(*groups, x.shape[1], dy.shape[1])
        factors = (_as_factor(factor, low_precision) for factor in (x, dy))
        return call_kernel("weight_gradient", result, *factors, sizes, rounded=low_precision)

    usable = has_kernels(x, dy, sizes, low_precision=low_precision)
    return with_kernel(by_kernel, plain, x, dy, jnp.asarray(sizes), usable=usable)


def plain_product(
    a: Float[Array, "rows depth"],
    b: Float[Array, "*G depth columns"],
    low_precision: bool,
    sizes: Sizes = NO_GROUPS,
) -> Float[Array, "rows columns"]:
    """a·b by XLA; of low precision, of factors rounded to bfloat16, with float32 sums."""
    if sizes.size:
        ragged = functools.partial(jax.lax.ragged_dot, preferred_element_type=jnp.float32)
        factors = *_rounded(low_precision, a, b), jnp.asarray(sizes)
        return jax.lax.platform_dependent(*factors, cpu=_by_each_group, default=ragged)
    if not low_precision:
        return a @ b
    # XLA's fast products on a CPU contract the last axis of a with the first of b. Without the
    # barrier, it would make another product of one whose factor was transposed, which is slow.
    factors = jax.lax.optimization_barrier(_rounded(low_precision, a, b))
    dtype = a.dtype if a.dtype == b.dtype else jnp.float32  # one may be rounded already
    return jnp.matmul(*factors, preferred_element_type=jnp.float32).astype(dtype)


def _rounded(low_precision: bool, a: Array, b: Array) -> tuple[Array, Array]:
    dtype = jnp.bfloat16 if low_precision else a.dtype
    return a.astype(dtype), b.astype(dtype)


# A CPU without our kernels multiplies every token with each group's weights, one group at a time;
# of ragged_dot, XLA would make an array for every group.


def _by_each_group(x: Array, kernel: Array, sizes: Array) -> Float[Array, "rows columns"]:
    group = jnp.repeat(jnp.arange(sizes.size), sizes, total_repeat_length=x.shape[0])

    def add(y: Array, number: Array) -> tuple[Array, None]:
        product = jnp.matmul(x, kernel[number], preferred_element_type=jnp.float32)
        return jnp.where((group == number)[:, None], product, y), None

    y = jnp.zeros((x.shape[0], kernel.shape[-1]), jnp.float32)
    return jax.lax.scan(add, y, jnp.arange(sizes.size))[0]


def _gradient_of_each_group(x: Array, dy: Array, sizes: Array) -> Float[Array, "G D F"]:
    group = jnp.repeat(jnp.arange(sizes.size), sizes, total_repeat_length=x.shape[0])

    def gradient(number: Array) -> Array:
        own = jnp.where((group == number)[:, None], x, jnp.zeros((), x.dtype))
        return jnp.matmul(own.T, dy, preferred_element_type=jnp.float32)

    return jax.lax.map(gradient, jnp.arange(sizes.size))
