"""Whole score matrices for any position method: the fastest at a few hundred tokens.

`xla_attention` does the same for plain dot products, with a derivative of its own.

Shapes: B batch, T query length, S key length, N heads, K key-value heads, G = N/K, H head dim of
queries and keys, V that of values, chunk: queries per chunk, C keys up to the end of the chunk.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rope_jax.attention.blocks import places_in_document
from rope_jax.attention.kept import attended
from rope_jax.attention.xla import query_chunks
from rope_jax.positions.interaction import Interaction
from rope_jax.positions.scores import product, stacked, unstacked
from rope_jax.positions.visible import Visible
from rope_jax.positions.zigzag import ZigZag


def whole_attention(
    queries: tuple[Float[Array, "B T N H"], ...],
    keys: tuple[Float[Array, "B S K H"], ...],
    v: Float[Array, "B S K V"],
    segment_ids: Int[Array, "B S"] | None,
    interaction: Interaction,
    numbers: Any,
    part: ZigZag | None = None,
) -> Float[Array, "B T N V"]:
    """softmax(scores)·v over the keys of all bands, as `banded_blockwise`, with quadratic memory.

    part: which of the S tokens the queries are; None: the last T.

    Every band's scores are computed for all keys up to a chunk of queries, or for all keys where
    the window is shared. Differentiable.
    """
    length, size = queries[0].shape[1], v.shape[1]
    starts = None if part is None else part.starts(size)
    groups = queries[0].shape[2] // v.shape[2]
    queries = tuple(_split(q * jnp.asarray(q.shape[-1] ** -0.5, q.dtype), groups) for q in queries)
    keys, v = tuple(k.swapaxes(1, 2) for k in keys), v.swapaxes(1, 2)
    outs = []
    for chunk in query_chunks(length, size, starts):
        query_index, key_index = chunk.query_index, jnp.arange(chunk.end)
        logits = jnp.asarray(-jnp.inf, jnp.float32)
        for visible, q, k in zip(interaction.visible, queries, keys, strict=True):
            block = q[:, :, :, chunk.rows], k[:, :, : key_index.size]
            scores = interaction.scores(numbers, *block, query_index, key_index)
            seen = _seen(visible, query_index, key_index, segment_ids)[:, None, None]
            logits = jnp.where(seen, scores, jnp.broadcast_to(logits, scores.shape))
        weights = jax.nn.softmax(logits, axis=-1)
        out = product(stacked(weights.astype(v.dtype)), v[:, :, : key_index.size])
        out = unstacked(out, groups)
        if interaction.values is not None:
            out = out + interaction.values(numbers, weights, query_index, key_index)
        outs.append(out.astype(v.dtype))
    out = jnp.concatenate(outs, axis=3).transpose(0, 3, 1, 2, 4)
    return attended(out.reshape(*out.shape[:2], -1, out.shape[-1]))


def _seen(
    visible: Visible,
    query_index: Int[Array, " chunk"],
    key_index: Int[Array, " C"],
    segment_ids: Int[Array, "B S"] | None,
) -> Bool[Array, "#B chunk C"]:
    """Return which keys a chunk of queries sees in a band."""
    seen = visible.by_distance(query_index[:, None] - key_index[None])[None]
    if segment_ids is not None:
        own, others = segment_ids[:, query_index], segment_ids[:, key_index]
        seen = seen & (own[:, :, None] == others[:, None])
    if visible.goes_by_place(0, None):
        places = key_index[None]  # one document
        if segment_ids is not None:
            places = places_in_document(segment_ids)
        seen = seen & visible.by_place(places[:, query_index], places[:, key_index])
    return seen


def _split(x: Float[Array, "B T N H"], groups: int) -> Float[Array, "B K G T H"]:
    """Put heads before time, grouped by key-value head."""
    batch, length, heads, width = x.shape
    return x.reshape(batch, length, heads // groups, groups, width).transpose(0, 2, 3, 1, 4)
