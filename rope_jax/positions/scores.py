"""Scores of queries and keys, and the parts that the encodings' own scores are made of.

Shapes: B batch, T queries, S keys, N heads, K key-value heads, G = N/K query heads per key-value
head, H head dim; rows: G·T, all queries of a key-value head.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

__all__ = [
    "AddedValues",
    "Scores",
    "capped",
    "dot_product",
]

# scores(numbers, queries/√H, keys, query_index, key_index): the logits of a block of queries and a
# block of keys, up to a constant per query, which must be the same for all its keys. numbers: the
# layer's arrays, as `Encoding.numbers` makes them. The indices are consecutive places in the
# window; below 0 is padding, which is masked afterwards, as is whatever a query must not see.
Scores = Callable[
    [
        Any,
        Float[Array, "B K G T H"],
        Float[Array, "B K S H"],
        Int[Array, " T"],
        Int[Array, " S"],
    ],
    Float[Array, "B K G T S"],
]
# values(numbers, weights, query_index, key_index): what is added to weights · values.
AddedValues = Callable[
    [Any, Float[Array, "B K G T S"], Int[Array, " T"], Int[Array, " S"]],
    Float[Array, "B K G T V"],
]


def product(a: Float[Array, "B K X Y"], b: Float[Array, "B K Y Z"]) -> Float[Array, "B K X Z"]:
    """a·b, accumulated and returned in float32."""
    return jnp.matmul(a, b, preferred_element_type=jnp.float32)


def stacked(x: Float[Array, "B K G T X"]) -> Float[Array, "B K rows X"]:
    """Stack all queries of each key-value head as the rows of one matrix."""
    return x.reshape(*x.shape[:2], -1, x.shape[-1])


def unstacked(x: Float[Array, "B K rows X"], groups: int) -> Float[Array, "B K G T X"]:
    """Undo `stacked`."""
    return x.reshape(*x.shape[:2], groups, -1, x.shape[-1])


def dot_product(
    numbers: Any,
    q: Float[Array, "B K G T H"],
    k: Float[Array, "B K S H"],
    query_index: Int[Array, " T"],
    key_index: Int[Array, " S"],
) -> Float[Array, "B K G T S"]:
    """q·kᵀ in float32: the scores of every encoding that adds nothing to them."""
    return unstacked(product(stacked(q), k.swapaxes(-1, -2)), q.shape[2])


@functools.cache  # the same object at every call, because it is compiled into the program
def capped(scores: Scores) -> Scores:
    """Return the scores c·tanh(s/c), where s are those of `scores` and c = numbers["softcap"].

    As in Gemma 2, arXiv 2408.00118, §2. They must not be known only up to a constant per query.
    """

    def capped_scores(
        numbers: Any,
        q: Float[Array, "B K G T H"],
        k: Float[Array, "B K S H"],
        query_index: Int[Array, " T"],
        key_index: Int[Array, " S"],
    ) -> Float[Array, "B K G T S"]:
        softcap = numbers["softcap"].reshape((1,) * 5)
        logits = scores(numbers, q, k, query_index, key_index)
        return softcap * jnp.tanh(logits / softcap)

    return capped_scores
