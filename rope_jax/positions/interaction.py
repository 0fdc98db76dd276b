"""The static half of a position method: which keys are seen, and how queries meet them.

Shapes: B batch, T queries, S keys, N heads, K key-value heads, G = N/K query heads per key-value
head, H head dim; rows: G·T, all queries of a key-value head; C distances in a table, whose last
entry stands for all beyond.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rope_jax.positions.mask import BandMask

__all__ = [
    *("AddedValues", "Block", "Indices", "Interaction", "Logits", "Params", "ScoreFunction"),
    *("capped", "decayed", "decaying_product", "dot_product", "plus_by_distance"),
    *("plus_key_by_distance", "value_by_distance"),
]

Params = dict[str, Any]
"""Float32 arrays by name."""
Logits = Float[Array, "B K G T S"]


class Indices(NamedTuple):
    """Consecutive indices in the window of some queries and some keys.

    Those below 0 are padding, which is masked afterwards.
    """

    query: Int[Array, " T"]
    key: Int[Array, " S"]


class Block(NamedTuple):
    """Some queries, divided by √H, some keys, and where they are in the window."""

    q: Float[Array, "B K G T H"]
    k: Float[Array, "B K S H"]
    at: Indices


ScoreFunction = Callable[[Params, Block], Logits]
"""scores(params, block): the logits, up to a constant per query, which must be the same for all its
keys. params: the layer's arrays, as `Encoding.layer_params` makes them. What a query must not see
is masked later."""
AddedValues = Callable[[Params, Logits, Indices], Float[Array, "B K G T V"]]
"""values(params, weights, index): what is added to weights · values."""


def product(a: Float[Array, "B K X Y"], b: Float[Array, "B K Y Z"]) -> Float[Array, "B K X Z"]:
    """a·b, accumulated and returned in float32."""
    return jnp.matmul(a, b, preferred_element_type=jnp.float32)


def stacked(x: Float[Array, "B K G T X"]) -> Float[Array, "B K rows X"]:
    """Stack all queries of each key-value head as the rows of one matrix."""
    return x.reshape(*x.shape[:2], -1, x.shape[-1])


def unstacked(x: Float[Array, "B K rows X"], groups: int) -> Float[Array, "B K G T X"]:
    """Undo `stacked`."""
    return x.reshape(*x.shape[:2], groups, -1, x.shape[-1])


def dot_product(params: Params, block: Block) -> Logits:
    """q·kᵀ in float32: the scores of every encoding that adds nothing to them."""
    logits = product(stacked(block.q), block.k.swapaxes(-1, -2))
    return unstacked(logits, block.q.shape[2])


def plus_by_distance(params: Params, block: Block) -> Logits:
    """Scores q·kᵀ + params["by_distance"][n, min(i − j, C − 1)], from a table [#B, N, C]."""
    table = params["by_distance"]
    table = table.reshape(-1, block.k.shape[1], block.q.shape[2], 1, table.shape[-1])
    return add_by_distance(dot_product(params, block), table, block.at)


def plus_key_by_distance(params: Params, block: Block) -> Logits:
    """Scores q·(k + params["keys"][min(i − j, C − 1)]), from a table [C, H].

    Its products come before the distances: no array has axes T, S and H.
    """
    table = params["keys"].astype(block.q.dtype)
    by_distance = jnp.einsum("bkgth,ch->bkgtc", block.q, table, preferred_element_type=jnp.float32)
    return add_by_distance(dot_product(params, block), by_distance, block.at)


def value_by_distance(params: Params, weights: Logits, index: Indices) -> Float[Array, "B K G T V"]:
    """Σ_j weight_ij · params["values"][min(i − j, C − 1)], from a table [C, V]."""
    table = params["values"].astype(weights.dtype)
    by_distance = sum_by_distance(weights, table.shape[0], index)
    return jnp.einsum("bkgtc,cv->bkgtv", by_distance, table, preferred_element_type=jnp.float32)


def decaying_product(params: Params, block: Block) -> Logits:
    """q·k, in which the share of pair p, dimensions p and p + d/2, is times exp(−decay_p·(i − j)).

    The decay is a factor exp(−decay·(i − r)) of the query times exp(−decay·(r − j)) of the key.
    For keys before all queries, r is the last key: neither factor is above 1, and those of far
    keys rightly underflow to 0. If the blocks overlap, r is the middle of the overlap, and the
    factors of xPos in blocks of n tokens stay below 3.5^(n/2/scale_base): nothing overflows up to
    60·scale_base.
    """
    q, k, index = block
    last = index.key[-1]
    middle = last - jnp.maximum(last - index.query[0], 0) // 2
    q = decayed(q, params["decay"], index.query - middle, axis=3)
    k = decayed(k, params["decay"], middle - index.key, axis=2)
    return dot_product(params, Block(q, k, index))


def decayed(
    x: Float[Array, "*axes H"], decay: Float[Array, " pairs"], distance: Int[Array, " T"], axis: int
) -> Float[Array, "*axes H"]:
    """Return x with each pair times exp(−decay·distance); the distances are those along `axis`."""
    factor = jnp.exp(-decay[None] * distance.astype(jnp.float32)[:, None])
    rest = jnp.ones((distance.shape[0], x.shape[-1] - 2 * factor.shape[-1]), jnp.float32)
    factor = jnp.concatenate([factor, factor, rest], axis=-1)
    shape = [1] * x.ndim
    shape[axis], shape[-1] = factor.shape
    return (x.astype(jnp.float32) * factor.reshape(shape)).astype(x.dtype)


@functools.cache  # the same object at every call, because it is compiled into the program
def capped(scores: ScoreFunction) -> ScoreFunction:
    """Return the scores c·tanh(s/c), where s are those of `scores` and c = params["softcap"].

    Gemma 2, arXiv 2408.00118, §2. The scores must be known exactly, not up to a constant per query.
    """

    def capped_scores(params: Params, block: Block) -> Logits:
        softcap = params["softcap"].reshape((1,) * 5)
        return softcap * jnp.tanh(scores(params, block) / softcap)

    return capped_scores


class Interaction(NamedTuple):
    """How queries and keys meet. The default is causal attention with plain dot products.

    masks:  the keys of each band. Every key that a query sees belongs to exactly one, its own key
            to the first.
    scores: the logits of a block of queries and a block of keys.
    values: what is added to the weighted values, if anything (Shaw).
    sinks:  whether params["sinks"] [N] is one more logit of each query's softmax, which takes a
            share of its weights but has no value (gpt-oss).
    """

    masks: tuple[BandMask, ...] = (BandMask(),)
    scores: ScoreFunction = dot_product
    values: AddedValues | None = None
    sinks: bool = False

    def within(self, sliding_window: int | None, own_chunk: int | None = None) -> "Interaction":
        """Return it with only the keys in a sliding window or chunk visible."""
        masks = tuple(band.within(sliding_window, own_chunk) for band in self.masks)
        return self._replace(masks=masks)

    @property
    def is_dot_product(self) -> bool:
        """Whether scores are plain dot products, without sinks or added values."""
        return self.scores is dot_product and self.values is None and not self.sinks

    @property
    def is_plain(self) -> bool:
        """Whether every attention kernel can do it, up to a sliding window."""
        return (
            self.is_dot_product
            and len(self.masks) == 1
            and self.masks[0] == BandMask(beyond=self.masks[0].beyond)
        )


# Tables by distance, spread over a block of queries and keys, and the reverse. Nothing gathers one
# number per pair: a row of a block reads consecutive distances, so it is a slice of the reversed
# table. The indices of queries and of keys are consecutive.


def add_by_distance(
    logits: Float[Array, "*batch T S"], table: Float[Array, "*#batch #T C"], index: Indices
) -> Float[Array, "*batch T S"]:
    """Return logits[…, t, s] + table[…, t, min(i_t − j_s, C − 1)].

    Keys after the query, which are masked anyway, get table[…, 0]. Where all keys are C − 1 tokens
    away or more, a single number per query is added.
    """
    last = table.shape[-1] - 1
    return jax.lax.cond(
        index.query[0] - index.key[-1] >= last,
        lambda logits, table: logits + table[..., last:],
        lambda logits, table: logits + _spread(table, index),
        logits,
        table,
    )


def _spread(table: Float[Array, "*batch #T C"], index: Indices) -> Float[Array, "*batch T S"]:
    """Return table[…, t, clip(i_t − j_s, 0, C − 1)]."""
    keys = index.key.shape[0]
    # A row that lies entirely outside the table is a slice of the padding on one of its sides.
    padding = [(0, 0)] * (table.ndim - 1) + [(keys, keys)]
    descending = jnp.pad(table, padding, mode="edge")[..., ::-1]
    starts = descending.shape[-1] - 1 - keys - (index.query - index.key[0])
    starts = jnp.clip(starts, 0, descending.shape[-1] - keys)
    if table.shape[-2] == 1:
        return _slices(descending[..., 0, :], starts, keys, axis=None)
    return _slices(descending, starts, keys, axis=-2)


def _slices(x: Array, starts: Int[Array, " T"], size: int, axis: int | None) -> Array:
    """Slices [..., T, size] of x from each start on: of its row t along `axis`, or all of one x."""

    def row(x: Array, start: Array) -> Array:
        return jax.lax.dynamic_slice_in_dim(x, start, size, axis=-1)

    return jax.vmap(row, in_axes=(axis, 0), out_axes=-2)(x, starts)


def sum_by_distance(
    weights: Float[Array, "*batch T S"], length: int, index: Indices
) -> Float[Array, "*batch T {length}"]:
    """Return Σ_s weights[…, t, s] over the keys with min(i_t − j_s, C − 1) = c; C is `length`."""

    def of_near(weights: Array) -> Array:
        padding = [(0, 0)] * (weights.ndim - 1) + [(length - 1, length - 1)]
        padded = jnp.pad(weights, padding)
        # The key at distance C − 2 comes first. Rows without near keys are slices of the padding.
        starts = jnp.clip(index.query - index.key[0] + 1, 0, weights.shape[-1] + length - 1)
        return _slices(padded, starts, length - 1, axis=-2)[..., ::-1]

    def zeros(weights: Array) -> Array:
        return jnp.zeros((*weights.shape[:-1], length - 1), weights.dtype)

    is_far = index.query[0] - index.key[-1] >= length - 1
    near = jax.lax.cond(is_far, zeros, of_near, weights)
    # Keys after the query, which are hidden, have no weight.
    far = weights.sum(-1, keepdims=True) - near.sum(-1, keepdims=True)
    return jnp.concatenate([near, far], axis=-1)
