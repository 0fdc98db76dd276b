"""Products of rows, each of which belongs to a group with weights of its own.

Accelerators multiply with `jax.lax.ragged_dot`, which XLA expands on a CPU into a product of every
row with every group's matrix. There, our kernels multiply the rows of each group with its own.

Shapes: R rows, ordered by group; G groups; D inputs, F outputs; T tokens, C of the rows for each.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int

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


class Order(NamedTuple):
    """Rows ordered by group, C for each token."""

    choice: Int[Array, " R"]
    """Which of the tokens' choices a row is: choice // C is its token."""
    row: Int[Array, "T C"]
    """Where the choices of a token are."""


def order_by_group(groups: Int[Array, "T C"], count: int) -> tuple[Order, Int[Array, " G"]]:
    """Return the choices by group, of each group in order, and how many it has.

    groups: the group of each choice, from 0 to count − 1.
    """
    flat = groups.reshape(-1)
    index = jnp.arange(flat.size, dtype=jnp.uint32)
    # sorting one number for both takes a quarter of the time of argsort on a CPU
    both = jnp.sort(flat.astype(jnp.uint32) * np.uint32(flat.size) + index)
    choice = (both % np.uint32(flat.size)).astype(jnp.int32)
    row = jnp.zeros_like(choice).at[choice].set(index.astype(jnp.int32), unique_indices=True)
    return Order(choice, row.reshape(groups.shape)), jnp.bincount(flat, length=count)


@jax.custom_vjp
def gather_rows(x: Float[Array, "T D"], order: Order) -> Float[Array, "R D"]:
    """Return the token of each row; its derivative gathers, too, as scattering is slow."""
    return x[order.choice // order.row.shape[1]]


def _gather(x: Array, order: Order) -> tuple[Array, Order]:
    return gather_rows(x, order), order


def _sum_of_choices(order: Order, dy: Array) -> tuple[Array, None]:
    return sum_rows(dy, jnp.ones_like(order.row, dy.dtype), order).astype(dy.dtype), None


gather_rows.defvjp(_gather, _sum_of_choices)


@jax.custom_vjp
def sum_rows(
    rows: Float[Array, "R D"], weights: Float[Array, "T C"], order: Order
) -> Float32[Array, "T D"]:
    """Return the weighted sum of each token's rows."""
    # one gather for each choice: XLA adds them up in one pass, without an array of all
    choices = zip(order.row.T, weights.T, strict=True)
    parts = [rows[row].astype(jnp.float32) * weight[:, None] for row, weight in choices]
    return sum(parts[1:], parts[0])


def _sum(
    rows: Array, weights: Array, order: Order
) -> tuple[Float32[Array, "T D"], tuple[Array, Array, Order]]:
    return sum_rows(rows, weights, order), (rows, weights, order)


def _spread(
    saved: tuple[Array, Array, Order], dy: Float32[Array, "T D"]
) -> tuple[Float[Array, "R D"], Float[Array, "T C"], None]:
    rows, weights, order = saved
    drows = gather_rows(dy, order) * weights.reshape(-1)[order.choice][:, None]
    dweights = [(rows[row].astype(jnp.float32) * dy).sum(-1) for row in order.row.T]
    return drows.astype(rows.dtype), jnp.stack(dweights, -1).astype(weights.dtype), None


sum_rows.defvjp(_sum, _spread)
