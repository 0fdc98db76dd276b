"""The static half of a position method: which keys are seen, and how queries meet them.

Shapes: B batch, T queries, S keys, N heads, K key-value heads, G = N/K query heads per key-value
head, H head dim; rows: G·T, all queries of a key-value head.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rope_jax.positions.mask import BandMask

__all__ = ["AddedValues", "Interaction", "Scores", "capped", "dot_product"]

# scores(params, queries/√H, keys, query_index, key_index): the logits of a block of queries and a
# block of keys, up to a constant per query, which must be the same for all its keys. params: the
# layer's arrays, as `Encoding.layer_params` makes them. The indices are consecutive places in the
# window; below 0 is padding, which is masked afterwards, as is whatever a query must not see.
Scores = Callable[
    [Any, Float[Array, "B K G T H"], Float[Array, "B K S H"], Int[Array, " T"], Int[Array, " S"]],
    Float[Array, "B K G T S"],
]
# values(params, weights, query_index, key_index): what is added to weights · values.
AddedValues = Callable[
    [Any, Float[Array, "B K G T S"], Int[Array, " T"], Int[Array, " S"]], Float[Array, "B K G T V"]
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
    params: Any,
    q: Float[Array, "B K G T H"],
    k: Float[Array, "B K S H"],
    query_index: Int[Array, " T"],
    key_index: Int[Array, " S"],
) -> Float[Array, "B K G T S"]:
    """q·kᵀ in float32: the scores of every encoding that adds nothing to them."""
    return unstacked(product(stacked(q), k.swapaxes(-1, -2)), q.shape[2])


@functools.cache  # the same object at every call, because it is compiled into the program
def capped(scores: Scores) -> Scores:
    """Return the scores c·tanh(s/c), where s are those of `scores` and c = params["softcap"].

    Gemma 2, arXiv 2408.00118, §2. The scores must be known exactly, not up to a constant per query.
    """

    def capped_scores(
        params: Any,
        q: Float[Array, "B K G T H"],
        k: Float[Array, "B K S H"],
        query_index: Int[Array, " T"],
        key_index: Int[Array, " S"],
    ) -> Float[Array, "B K G T S"]:
        softcap = params["softcap"].reshape((1,) * 5)
        logits = scores(params, q, k, query_index, key_index)
        return softcap * jnp.tanh(logits / softcap)

    return capped_scores


class Interaction(NamedTuple):
    """How queries and keys meet. The default is causal attention with plain dot products.

    masks:  the keys of each band. Every key that a query sees belongs to exactly one, its own key
            to the first.
    scores: the logits of a block of queries and a block of keys.
    values: what is added to the weighted values (Shaw); None: nothing.
    """

    masks: tuple[BandMask, ...] = (BandMask(),)
    scores: Scores = dot_product
    values: AddedValues | None = None

    def within(self, sliding_window: int | None) -> "Interaction":
        """Return it with only the keys in a sliding window visible."""
        return self._replace(masks=tuple(band.within(sliding_window) for band in self.masks))

    @property
    def is_dot_product(self) -> bool:
        """Whether scores are plain dot products, and nothing is added to the values."""
        return self.scores is dot_product and self.values is None

    @property
    def is_plain(self) -> bool:
        """Whether every attention kernel can do it, up to a sliding window."""
        return (
            self.is_dot_product
            and len(self.masks) == 1
            and self.masks[0].within(1) == BandMask(beyond=1)
        )
