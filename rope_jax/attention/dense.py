"""Attention with whole score matrices: the fastest at a few hundred tokens, and the reference.

`dense_attention` is for plain dot products, with a derivative written by hand; `banded_dense` is
for every position method, with JAX's.

Shapes: B batch, T query length, S key length, N heads, K key-value heads, G = N/K, H head dim of
queries and keys, V that of values, C keys that a chunk of queries can see, chunk: queries per
chunk; rows: G·chunk, the queries of one key-value head. An axis marked # may have size 1.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rope_jax.attention.blocks import document_positions
from rope_jax.attention.remat_names import attended
from rope_jax.positions.interaction import Interaction, product, stacked, unstacked
from rope_jax.positions.mask import BandMask
from rope_jax.positions.zigzag import ZigZag

# The queries are cut into at most this many chunks. Each chunk reads only the keys up to its own
# end, which skips most of the work above the diagonal, nearly half of the total. More chunks would
# compile more slowly, and smaller ones would make products too small to be fast.
_MAX_CHUNKS = 8
_MIN_CHUNK = 128


def dense_attention(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    v: Float[Array, "B S K V"],
    segment_ids: Int[Array, "B S"] | None = None,
    sliding_window: int | None = None,
    part: ZigZag | None = None,
) -> Float[Array, "B T N V"]:
    """`Backend.attend`, in about B·N·T·S floats, of which the backward pass keeps more than half.

    Differentiable in reverse mode, with a hand-written derivative: automatic differentiation pads
    the gradient of every slice of k and v to full length, which took XLA longer on a CPU than the
    products.
    """
    starts = None if part is None else part.starts(k.shape[1])
    return _attention(q, k, v, segment_ids, starts, sliding_window)


class Chunk(NamedTuple):
    """Queries that are computed together, and the keys that any of them may see.

    rows:  the queries, among those of this device.
    first: the index in the window of the first of them.
    end:   the index after the last key.
    """

    rows: slice
    first: int | Int[Array, ""]
    end: int

    @property
    def query_index(self) -> Int[Array, " chunk"]:
        """The index in the window of every query."""
        return self.first + jnp.arange(self.rows.stop - self.rows.start)


def query_chunks(queries: int, keys: int, starts: Int[Array, " 2"] | None) -> Iterator[Chunk]:
    """Yield the chunks of the queries: the last ones of the window, or two equal parts of it.

    starts: the index in the window of each part's first query. It is traced, so each of these two
        chunks reads all keys.
    """
    if starts is not None:
        half = queries // 2
        for number in (0, 1):
            yield Chunk(slice(number * half, (number + 1) * half), starts[number], keys)
        return
    size, before = max(_MIN_CHUNK, -(-queries // _MAX_CHUNKS)), keys - queries
    for start in range(0, queries, size):
        end = min(start + size, queries)
        yield Chunk(slice(start, end), before + start, before + end)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _attention(
    q: Any, k: Any, v: Any, segment_ids: Any, starts: Any, window: int | None
) -> Float[Array, "B T N V"]:
    return _forward(q, k, v, segment_ids, starts, window)[0]


def _forward(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    v: Float[Array, "B S K V"],
    segment_ids: Int[Array, "B S"] | None,
    starts: Int[Array, " 2"] | None,
    window: int | None,
) -> tuple[Float[Array, "B T N V"], tuple[Any, ...]]:
    queries, keys, values = _queries(q, k), _width_first(k), _width_first(v)
    outs, probabilities = [], []  # the latter [B, K, rows, C], one array per chunk
    groups = q.shape[2] // k.shape[2]
    for chunk in query_chunks(q.shape[1], k.shape[1], starts):
        seen = _key_span(chunk, window)
        logits = product(stacked(queries[:, :, :, chunk.rows]), keys[..., seen])
        visible = _visible(BandMask(beyond=window), chunk, seen, segment_ids)
        mask = jnp.where(visible, 0.0, -jnp.inf).astype(jnp.float32)
        logits = logits + jnp.tile(mask, (1, groups, 1))[:, None]
        # XLA fuses this chain. Every query sees itself, so the maximum is finite.
        weights = jnp.exp(logits - logits.max(-1, keepdims=True))
        normalised = weights / weights.sum(-1, keepdims=True)
        probabilities.append(normalised.astype(v.dtype))
        out = product(probabilities[-1], values[..., seen].swapaxes(-1, -2))
        outs.append(unstacked(out, groups))
    # Not the probabilities, which take most of the memory: a remat policy computes them again.
    out = attended(jnp.concatenate(outs, axis=3).astype(v.dtype))
    return _merged(out), (q, k, v, starts, out, probabilities)


def _backward(
    window: int | None, saved: tuple[Any, ...], dout: Float[Array, "B T N V"]
) -> tuple[Float[Array, "B T N H"], Float[Array, "B S K H"], Float[Array, "B S K V"], None, None]:
    """With probabilities P of each chunk: dV = Pᵀ·dO, dP = dO·Vᵀ, d(logits) = P ∘ (dP − delta),
    dQ = d(logits)·K/√H, dK = d(logits)ᵀ·Q/√H. delta_r = Σ_s P_rs dP_rs = dO_r · O_r comes
    from the normalisation of row r.
    """
    q, k, v, starts, out, probabilities = saved
    queries, keys, values = _queries(q, k), _width_first(k), _width_first(v)
    douts = _split(dout, k.shape[2])
    delta = (douts.astype(jnp.float32) * out.astype(jnp.float32)).sum(-1, keepdims=True)
    groups = q.shape[2] // k.shape[2]
    dqs, dks, dvs, spans = [], [], [], []
    # Start with the last chunk, which reaches the last key; the others add to parts of its dk, dv.
    chunks = query_chunks(q.shape[1], k.shape[1], starts)
    for chunk, p in reversed(list(zip(chunks, probabilities, strict=True))):
        rows, seen = chunk.rows, _key_span(chunk, window)
        dout_rows = stacked(douts[:, :, :, rows])
        dp = product(dout_rows, values[..., seen])
        d_logits = p.astype(jnp.float32) * (dp - stacked(delta[:, :, :, rows]))
        d_logits = d_logits.astype(q.dtype)
        dq = product(d_logits, keys[..., seen].swapaxes(-1, -2))
        dqs.append(unstacked(dq, groups))
        # Width before time: these two products are twice as fast that way.
        dks.append(product(stacked(queries[:, :, :, rows]).swapaxes(-1, -2), d_logits))
        dvs.append(product(dout_rows.swapaxes(-1, -2), p))
        spans.append(seen)
    dq = _merged(jnp.concatenate(dqs[::-1], axis=3) * q.shape[-1] ** -0.5)
    dk, dv = (_sum_of_spans(parts, spans).transpose(0, 3, 1, 2) for parts in (dks, dvs))
    return dq.astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype), None, None


_attention.defvjp(_forward, _backward)


def _key_span(chunk: Chunk, window: int | None) -> slice:
    """Return the span of keys that any query of a chunk may see."""
    if window is None or not isinstance(chunk.first, int):
        return slice(0, chunk.end)
    return slice(max(0, chunk.first - window + 1), chunk.end)


def _sum_of_spans(
    parts: Sequence[Float[Array, "B K H _"]], spans: Sequence[slice]
) -> Float[Array, "B K H S"]:
    """Add up gradients that each cover a span of the keys; the first reaches the last key."""
    total = jnp.pad(parts[0], ((0, 0), (0, 0), (0, 0), (spans[0].start, 0)))
    for part, span in zip(parts[1:], spans[1:], strict=True):
        total = total.at[..., span].add(part)
    return total


def _queries(q: Float[Array, "B T N H"], k: Float[Array, "B S K H"]) -> Float[Array, "B K G T H"]:
    """q/√H, with the heads grouped by key-value head."""
    return _split(q * jnp.asarray(q.shape[-1] ** -0.5, q.dtype), k.shape[2])


def _split(x: Float[Array, "B T N H"], kv_heads: int) -> Float[Array, "B K G T H"]:
    """Put heads before time: plain batched products, 3 times faster on CPU than the reverse."""
    batch, length, heads, width = x.shape
    return x.reshape(batch, length, kv_heads, heads // kv_heads, width).transpose(0, 2, 3, 1, 4)


def _merged(x: Float[Array, "B K G T H"]) -> Float[Array, "B T N H"]:
    batch, kv_heads, groups, length, width = x.shape
    return x.transpose(0, 3, 1, 2, 4).reshape(batch, length, kv_heads * groups, width)


def _width_first(x: Float[Array, "B S K H"]) -> Float[Array, "B K H S"]:
    return x.transpose(0, 2, 3, 1)


def banded_dense(
    queries: tuple[Float[Array, "B T N H"], ...],
    keys: tuple[Float[Array, "B S K H"], ...],
    v: Float[Array, "B S K V"],
    segment_ids: Int[Array, "B S"] | None,
    interaction: Interaction,
    params: Any,
    part: ZigZag | None = None,
) -> Float[Array, "B T N V"]:
    """`Backend.attend_bands`, in quadratic memory.

    Every band's scores are computed for all keys up to a chunk of queries, or for all keys where
    the window is shared. Differentiable.
    """
    length, size = queries[0].shape[1], v.shape[1]
    starts = None if part is None else part.starts(size)
    groups = queries[0].shape[2] // v.shape[2]
    queries = tuple(_queries(q, k) for q, k in zip(queries, keys, strict=True))
    keys, v = tuple(k.swapaxes(1, 2) for k in keys), v.swapaxes(1, 2)
    outs = []
    for chunk in query_chunks(length, size, starts):
        query_index, key_index = chunk.query_index, jnp.arange(chunk.end)
        logits = jnp.asarray(-jnp.inf, jnp.float32)
        for mask, q, k in zip(interaction.masks, queries, keys, strict=True):
            block = q[:, :, :, chunk.rows], k[:, :, : key_index.size]
            scores = interaction.scores(params, *block, query_index, key_index)
            seen = _visible(mask, chunk, slice(0, chunk.end), segment_ids)[:, None, None]
            logits = jnp.where(seen, scores, jnp.broadcast_to(logits, scores.shape))
        weights = jax.nn.softmax(logits, axis=-1)
        out = product(stacked(weights.astype(v.dtype)), v[:, :, : key_index.size])
        out = unstacked(out, groups)
        if interaction.values is not None:
            out = out + interaction.values(params, weights, query_index, key_index)
        outs.append(out.astype(v.dtype))
    return attended(_merged(jnp.concatenate(outs, axis=3)))


def _visible(
    mask: BandMask, chunk: Chunk, keys: slice, segment_ids: Int[Array, "B S"] | None
) -> Bool[Array, "#B chunk C"]:
    """Return which of the keys each query of a chunk sees in a band."""
    query, key = chunk.query_index, jnp.arange(keys.start, keys.stop)
    visible = mask.by_distance(query[:, None] - key[None])[None]
    position = jnp.arange(keys.stop)[None]  # one document
    if segment_ids is not None:
        own = jax.lax.dynamic_slice_in_dim(segment_ids, chunk.first, query.size, axis=1)
        visible = visible & (own[:, :, None] == segment_ids[:, None, keys])
        position = document_positions(segment_ids)
    if mask.needs_document_positions(0, None):
        visible = visible & mask.by_document_position(position[:, query], position[:, keys])
    return visible
