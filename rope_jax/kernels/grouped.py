"""Products of rows, each of which belongs to a group with weights of its own.

Accelerators multiply with `jax.lax.ragged_dot`, which XLA expands on a CPU into a product of every
row with every group's matrix. There, our kernels multiply the rows of each group with its own.

Shapes: R rows, ordered by group; G groups; D inputs, F outputs; T tokens, C of the rows for each.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rope_jax.kernels.loading import call_kernel, floats, with_kernel


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def project_by_group(
    x: Float[Array, "R D"],
    kernel: Float[Array, "G D F"],
    sizes: Int[Array, " G"],
    low_precision: bool = False,
) -> Float[Array, "R F"]:
    """Return x·kernel[g] for the rows of each group g.

    sizes: how many rows each group has; their sum is R. low_precision: see `project`.
    """
    return _products(x, kernel, sizes, low_precision).astype(x.dtype)


_Saved = tuple[Array, Array, Array]


def _forward(
    x: Array, kernel: Array, sizes: Array, low_precision: bool
) -> tuple[Float[Array, "R F"], _Saved]:
    return project_by_group(x, kernel, sizes, low_precision), (x, kernel, sizes)


def _backward(
    low_precision: bool, saved: _Saved, dy: Float[Array, "R F"]
) -> tuple[Float[Array, "R D"], Float[Array, "G D F"], None]:
    x, kernel, sizes = saved
    dx = _products(dy, kernel, sizes, low_precision, transposed=True)
    dkernel = _weight_gradient(x, dy, sizes, low_precision)
    return dx.astype(x.dtype), dkernel.astype(kernel.dtype), None


project_by_group.defvjp(_forward, _backward)

_OVER_ROWS = jax.lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((0,), (0,)), ((), ())),
    lhs_ragged_dimensions=[0],
    rhs_group_dimensions=[],
)


def _products(
    x: Array, kernel: Array, sizes: Array, low_precision: bool, *, transposed: bool = False
) -> Float[Array, "R _"]:
    def by_kernel(x: Array, kernel: Array, sizes: Array) -> Array:
        result = floats(x.shape[0], kernel.shape[1 if transposed else 2])
        attributes = {"transposed": transposed, "rounded": low_precision}
        factors = x.astype(jnp.float32), kernel.astype(jnp.float32)
        return call_kernel("grouped_projection", result, *factors, sizes, **attributes)

    def plain(x: Array, kernel: Array, sizes: Array) -> Array:
        factors = _factors(low_precision, x, kernel.swapaxes(1, 2) if transposed else kernel)
        return jax.lax.ragged_dot(*factors, sizes, preferred_element_type=jnp.float32)

    return with_kernel(by_kernel, plain, x, kernel, sizes)


def _weight_gradient(
    x: Float[Array, "R D"], dy: Float[Array, "R F"], sizes: Array, low_precision: bool
) -> Float[Array, "G D F"]:
    def by_kernel(x: Array, dy: Array, sizes: Array) -> Array:
        result, name = floats(sizes.size, x.shape[1], dy.shape[1]), "grouped_weight_gradient"
        factors = x.astype(jnp.float32), dy.astype(jnp.float32)
        return call_kernel(name, result, *factors, sizes, rounded=low_precision)

    def plain(x: Array, dy: Array, sizes: Array) -> Array:
        factors = _factors(low_precision, x, dy)
        return jax.lax.ragged_dot_general(
            *factors, sizes, _OVER_ROWS, preferred_element_type=jnp.float32
        )

    return with_kernel(by_kernel, plain, x, dy, sizes)


def _factors(low_precision: bool, a: Array, b: Array) -> tuple[Array, Array]:
    dtype = jnp.bfloat16 if low_precision else a.dtype
    return a.astype(dtype), b.astype(dtype)


@jax.custom_vjp
def gather_rows(
    x: Float[Array, "T D"], index: Int[Array, " R"], inverse: Int[Array, " R"]
) -> Float[Array, "R D"]:
    """Return x[index], of which the rows inverse[C·t : C·(t + 1)] are those of x[t].

    With these, its derivative is a gather; XLA's scatter adds one row at a time on a CPU.
    """
    return x[index]


def _take(x: Array, index: Array, inverse: Array) -> tuple[Array, tuple[Array, int]]:
    return x[index], (inverse, x.shape[0])


def _put_back(saved: tuple[Array, int], dy: Array) -> tuple[Array, None, None]:
    inverse, count = saved
    return dy[inverse].reshape(count, -1, dy.shape[1]).sum(axis=1), None, None


gather_rows.defvjp(_take, _put_back)
