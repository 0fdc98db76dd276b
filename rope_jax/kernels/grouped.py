"""A function of rows, each of which belongs to a group with weights of its own.

Accelerators multiply with `jax.lax.ragged_dot`. On a CPU, XLA expands that into a product of every
row with every group's matrix; here, blocks of rows are multiplied by the matrix of one group.

Shapes: R rows, ordered by group; G groups; D inputs, F outputs; T tokens, C of the rows for each.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rope_jax.kernels.projections import project

_BLOCK = 128
"""The most rows of a block: fewer waste time on calls, more on rows of other groups."""

Weights = dict[str, dict[str, Array]]
"""By name, a kernel [G, D, F], and possibly a bias [G, F]."""
Product = Callable[[Array, str], Array]
"""(rows [R, D], name of weights) -> rows·kernel + bias of each row's group [R, F]."""
Function = Callable[[Product, Array], Array]
_Saved = tuple[Weights, Array, Array]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def apply_per_group(
    function: Function,
    low_precision: bool,
    weights: Weights,
    x: Float[Array, "R D"],
    sizes: Int[Array, " G"],
) -> Float[Array, "R D"]:
    """Return function(product, x), with the weights of each row's group.

    function: of each row by itself. sizes: how many rows each group has; their sum is R.
    low_precision: see `project`.

    The backward pass computes the function again, of one block at a time on a CPU.
    """
    of_blocks = functools.partial(_in_blocks, function, low_precision)
    of_all = functools.partial(_all_at_once, function, low_precision)
    return jax.lax.platform_dependent(weights, x, sizes, cpu=of_blocks, default=of_all)


def _forward(
    function: Function, low_precision: bool, weights: Weights, x: Array, sizes: Array
) -> tuple[Array, _Saved]:
    return apply_per_group(function, low_precision, weights, x, sizes), (weights, x, sizes)


def _backward(
    function: Function, low_precision: bool, saved: _Saved, dy: Float[Array, "R D"]
) -> tuple[Weights, Float[Array, "R D"], None]:
    def of_all(weights: Weights, x: Array, sizes: Array, dy: Array) -> tuple[Weights, Array]:
        run = functools.partial(_all_at_once, function, low_precision, sizes=sizes)
        d_weights, dx = jax.vjp(run, weights, x)[1](dy)
        return d_weights, dx

    of_blocks = functools.partial(_gradient_in_blocks, function, low_precision)
    return *jax.lax.platform_dependent(*saved, dy, cpu=of_blocks, default=of_all), None


apply_per_group.defvjp(_forward, _backward)


def _all_at_once(
    function: Function, low_precision: bool, weights: Weights, x: Array, sizes: Array
) -> Array:
    groups = jnp.repeat(jnp.arange(sizes.size), sizes, total_repeat_length=x.shape[0])

    def product(x: Array, name: str) -> Array:
        weight, dtype = weights[name], jnp.bfloat16 if low_precision else x.dtype
        factors = x.astype(dtype), weight["kernel"].astype(dtype)
        y = jax.lax.ragged_dot(*factors, sizes, preferred_element_type=jnp.float32).astype(x.dtype)
        return y + weight["bias"][groups] if "bias" in weight else y

    return function(product, x)


def _of_one(
    function: Function, low_precision: bool, weights: Weights, x: Float[Array, "block D"]
) -> Float[Array, "block D"]:
    """Return the function of rows of one group, whose weights have no axis of groups."""

    def product(x: Array, name: str) -> Array:
        y = project(x, weights[name]["kernel"], low_precision)
        return y + weights[name]["bias"][None] if "bias" in weights[name] else y

    return function(product, x)


def _in_blocks(
    function: Function, low_precision: bool, weights: Weights, x: Array, sizes: Array
) -> Array:
    size, ends = _block(x, sizes), jnp.cumsum(sizes)
    padded = jnp.pad(x, ((0, size), (0, 0)))

    def of_group(y: Array, group: tuple[Weights, Array, Array]) -> tuple[Array, None]:
        group_weights, first, last = group

        def step(block: Array, y: Array) -> Array:
            at = first + block * size
            rows = jax.lax.dynamic_slice_in_dim(padded, at, size)
            # What it writes past the group's last row, the next groups replace.
            new = _of_one(function, low_precision, group_weights, rows)
            return jax.lax.dynamic_update_slice_in_dim(y, new, at, 0)

        return jax.lax.fori_loop(0, -((first - last) // size), step, y), None

    y, _ = jax.lax.scan(of_group, jnp.zeros_like(padded), (weights, ends - sizes, ends))
    return y[: x.shape[0]]


def _gradient_in_blocks(
    function: Function, low_precision: bool, weights: Weights, x: Array, sizes: Array, dy: Array
) -> tuple[Weights, Array]:
    size, ends = _block(x, sizes), jnp.cumsum(sizes)
    padded, d_padded = (jnp.pad(rows, ((0, size), (0, 0))) for rows in (x, dy))
    run = functools.partial(_of_one, function, low_precision)

    def of_group(dx: Array, group: tuple[Weights, Array, Array]) -> tuple[Array, Weights]:
        group_weights, first, last = group

        def step(block: Array, sums: tuple[Array, Weights]) -> tuple[Array, Weights]:
            dx, d_group = sums
            at = first + block * size
            rows, d_rows = (jax.lax.dynamic_slice_in_dim(y, at, size) for y in (padded, d_padded))
            is_of_group = (at + jnp.arange(size) < last)[:, None]
            more, new = jax.vjp(run, group_weights, rows)[1](jnp.where(is_of_group, d_rows, 0))
            d_group = jax.tree.map(lambda a, b: a + b.astype(jnp.float32), d_group, more)
            return jax.lax.dynamic_update_slice_in_dim(dx, new, at, 0), d_group

        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), group_weights)
        dx, d_group = jax.lax.fori_loop(0, -((first - last) // size), step, (dx, zeros))
        return dx, jax.tree.map(lambda d, leaf: d.astype(leaf.dtype), d_group, group_weights)

    groups = weights, ends - sizes, ends
    dx, d_weights = jax.lax.scan(of_group, jnp.zeros_like(padded), groups)
    return d_weights, dx[: x.shape[0]]


def _block(x: Array, sizes: Array) -> int:
    """Return how many rows a block has: at most about those of a group."""
    return min(_BLOCK, max(8, 1 << (x.shape[0] // sizes.size).bit_length()))


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
