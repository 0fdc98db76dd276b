"""A window cut into blocks of queries and of keys, and the logits of one block of each.

Shapes: B batch, T query length, S key length, N heads, K key-value heads, G = N/K, H head dim,
block: tokens per block; m blocks of queries, n blocks of keys.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from rope_jax.attention.rows import product, stacked, unstacked

Scores = Callable[
    [
        Any,
        Float[Array, "B K G block H"],
        Float[Array, "B K block H"],
        Int[Array, " block"],
        Int[Array, " block"],
    ],
    Float[Array, "B K G block block"],
]


def dot_product(
    arguments: Any,
    q: Float[Array, "B K G block H"],
    k: Float[Array, "B K block H"],
    query_index: Int[Array, " block"],
    key_index: Int[Array, " block"],
) -> Float[Array, "B K G block block"]:
    """q·kᵀ in float32, the plain scores. They need neither arguments nor indices."""
    return unstacked(product(stacked(q), k.swapaxes(-1, -2)), q.shape[2])


class Settings(NamedTuple):
    """What is static, and so part of the compiled program; see `blockwise_attention`.

    block: tokens per block, exactly.
    """

    sliding_window: int | None
    scores: Scores
    block: int


class Blocks:
    """How one window is cut into blocks, and which blocks of queries and keys see each other.

    The queries are the last T of the S tokens. Both are padded at the front to whole blocks, so
    their ends stay aligned and query block i lies on the diagonal of key block `diagonal(i)`.

    query_padding: how many tokens of padding stand before the queries.
    key_padding:   the same for the keys.
    blocks_before: how many key blocks stand before the diagonal of query block 0.
    segment_ids:   [n, B, block], or None.
    """

    def __init__(
        self, settings: Settings, queries: int, keys: int, segment_ids: Int[Array, "B S"] | None
    ) -> None:
        self.settings, block = settings, settings.block
        self.query_padding, self.key_padding = -queries % block, -keys % block
        self.blocks_before = (keys + self.key_padding - queries - self.query_padding) // block
        self.segment_ids = None
        if segment_ids is not None:
            padded = jnp.pad(segment_ids, ((0, 0), (self.key_padding, 0)), mode="edge")
            self.segment_ids = padded.reshape(padded.shape[0], -1, block).swapaxes(0, 1)

    def diagonal(self, i: Int[Array, ""]) -> Int[Array, ""]:
        """Return the key block of query block i's own tokens, the last one that it sees."""
        return i + self.blocks_before

    def first_seen(self, diagonal: Int[Array, ""]) -> Int[Array, ""]:
        """Return the first key block that some query of the block `diagonal` sees."""
        window = self.settings.sliding_window
        if window is None:
            return jnp.zeros_like(diagonal)
        return jnp.maximum(0, (diagonal * self.settings.block - window + 1) // self.settings.block)

    def logits(
        self,
        arguments: Any,
        query: Float[Array, "B K G block H"],
        key: Float[Array, "B K block H"],
        i: Int[Array, ""],
        j: Int[Array, ""],
        *,
        on_diagonal: bool = False,
    ) -> Float[Array, "B K G block block"]:
        """Return the logits of query block i and key block j, −∞ where a key is not seen.

        on_diagonal: whether j is known to be `diagonal(i)`. The causal mask is then a constant:
            computed from i in the loop, it would cost as much as all the rest.
        """
        block, window = self.settings.block, self.settings.sliding_window
        query_index = self.diagonal(i) * block - self.key_padding + jnp.arange(block)
        key_index = j * block - self.key_padding + jnp.arange(block)
        logits = self.settings.scores(arguments, query, key, query_index, key_index)
        within = np.subtract.outer(np.arange(block), np.arange(block))
        if on_diagonal:
            seen = (within >= 0) & (within < (window or block))
            logits = logits + np.where(seen, 0, -np.inf).astype(np.float32)[None, None, None]
        elif window is not None:
            distance = (self.diagonal(i) - j) * block + within.astype(np.int32)
            logits = logits + _hiding(distance >= window)[None, None, None]
        if self.key_padding:
            # Not −∞: a query that is padding sees nothing else, and its row_sum must not be 0.
            padding = jnp.where(key_index < 0, np.float32(-1e30), np.float32(0))
            logits = logits + padding[None, None, None, None]
        if self.segment_ids is not None:
            own, others = self.segment_ids[self.diagonal(i)], self.segment_ids[j]
            logits = logits + _hiding(own[:, :, None] != others[:, None, :])[:, None, None]
        return logits

    def of_queries(
        self, x: Float[Array, "B T N H"], kv_heads: int
    ) -> Float[Array, "m B K G block H"]:
        """Cut queries, or what has their shape, into blocks."""
        x = jnp.pad(x, ((0, 0), (self.query_padding, 0), (0, 0), (0, 0)))
        batch, _, heads, width = x.shape
        x = x.reshape(batch, -1, self.settings.block, kv_heads, heads // kv_heads, width)
        return x.transpose(1, 0, 3, 4, 2, 5)

    def of_keys(self, x: Float[Array, "B S K H"]) -> Float[Array, "n B K block H"]:
        """Cut keys or values into blocks."""
        x = jnp.pad(x, ((0, 0), (self.key_padding, 0), (0, 0), (0, 0)))
        x = x.reshape(x.shape[0], -1, self.settings.block, *x.shape[2:])
        return x.transpose(1, 0, 3, 2, 4)

    def merged(self, x: Float[Array, "m B K G block H"], length: int) -> Float[Array, "B T N H"]:
        """Put blocks and heads back together, and return the last `length` tokens."""
        padded = x.shape[0] * self.settings.block
        x = x.transpose(1, 0, 4, 2, 3, 5).reshape(x.shape[1], padded, -1, x.shape[-1])
        return x[:, padded - length :]


def _hiding(hidden: Bool[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return what to add to logits: −∞ where a key is hidden, else 0."""
    return jnp.where(hidden, -jnp.inf, 0.0).astype(jnp.float32)
