"""Tables by distance, spread over a block of queries and keys, and the reverse.

Nothing here gathers one number per pair: a row of a block reads consecutive distances, so it is a
slice of the reversed table.

Shapes: B batch, T queries, S keys, N heads, K key-value heads, G = N/K, H head dim, C distances in
a table, whose last entry stands for all beyond. The indices of queries and of keys are
consecutive.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rope_jax.positions.interaction import dot_product


def add_by_distance(
    logits: Float[Array, "*batch T S"],
    table: Float[Array, "*#batch #T C"],
    query_index: Int[Array, " T"],
    key_index: Int[Array, " S"],
) -> Float[Array, "*batch T S"]:
    """Return logits[…, t, s] + table[…, t, min(i_t − j_s, C − 1)].

    Keys after the query, which are masked anyway, get table[…, 0]. Where all keys are at least C −
    1 tokens away, a single number per query is added.
    """
    last = table.shape[-1] - 1
    return jax.lax.cond(
        query_index[0] - key_index[-1] >= last,
        lambda logits, table: logits + table[..., last:],
        lambda logits, table: logits + _spread(table, query_index, key_index),
        logits,
        table,
    )


def _spread(
    table: Float[Array, "*batch #T C"], query_index: Int[Array, " T"], key_index: Int[Array, " S"]
) -> Float[Array, "*batch T S"]:
    """Return table[…, t, clip(i_t − j_s, 0, C − 1)]."""
    keys = key_index.shape[0]
    # A row that lies entirely outside the table is a slice of the padding on one of its sides.
    padding = [(0, 0)] * (table.ndim - 1) + [(keys, keys)]
    descending = jnp.pad(table, padding, mode="edge")[..., ::-1]
    places = descending.shape[-1] - 1 - keys - (query_index - key_index[0])
    starts = jnp.clip(places, 0, descending.shape[-1] - keys)
    if table.shape[-2] == 1:
        return _slices(descending[..., 0, :], starts, keys, axis=None)
    return _slices(descending, starts, keys, axis=-2)


def _slices(x: Array, starts: Int[Array, " T"], size: int, axis: int | None) -> Array:
    """Slices [..., T, size] of x from each start on: of its row t along `axis`, or all of one x."""

    def row(x: Array, start: Array) -> Array:
        return jax.lax.dynamic_slice_in_dim(x, start, size, axis=-1)

    return jax.vmap(row, in_axes=(axis, 0), out_axes=-2)(x, starts)


def sum_by_distance(
    weights: Float[Array, "*batch T S"],
    length: int,
    query_index: Int[Array, " T"],
    key_index: Int[Array, " S"],
) -> Float[Array, "*batch T {length}"]:
    """Return Σ_s weights[…, t, s] over the keys s with min(i_t − j_s, C − 1) = c, for c < C.

    C is `length`. Keys after the query are left out.
    """

    def all_far(weights: Array) -> Array:
        zeros = jnp.zeros((*weights.shape[:-1], length - 1), weights.dtype)
        return jnp.concatenate([zeros, weights.sum(-1, keepdims=True)], axis=-1)

    def some_near(weights: Array) -> Array:
        padding = [(0, 0)] * (weights.ndim - 1) + [(length - 1, length - 1)]
        padded = jnp.pad(weights, padding)
        # The key at distance C − 2 comes first. Rows without near keys are slices of the padding.
        starts = jnp.clip(query_index - key_index[0] + 1, 0, weights.shape[-1] + length - 1)
        near = _slices(padded, starts, length - 1, axis=-2)[..., ::-1]
        is_far = query_index[:, None] - key_index[None, :] >= length - 1
        is_far = is_far.reshape((1,) * (weights.ndim - 2) + is_far.shape)
        far = jnp.where(is_far, weights, jnp.zeros_like(weights)).sum(-1, keepdims=True)
        return jnp.concatenate([near, far], axis=-1)

    is_all_far = query_index[0] - key_index[-1] >= length - 1
    return jax.lax.cond(is_all_far, all_far, some_near, weights)


def plus_by_distance(
    params: Any,
    q: Float[Array, "B K G T H"],
    k: Float[Array, "B K S H"],
    query_index: Int[Array, " T"],
    key_index: Int[Array, " S"],
) -> Float[Array, "B K G T S"]:
    """Scores q·kᵀ + params["by_distance"][n, min(i − j, C − 1)], from a table [#B, N, C]."""
    logits = dot_product(params, q, k, query_index, key_index)
    table = params["by_distance"]
    table = table.reshape(-1, k.shape[1], q.shape[2], 1, table.shape[-1])
    return add_by_distance(logits, table, query_index, key_index)
