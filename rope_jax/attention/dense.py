"""Attention with whole score matrices: the fastest at a few hundred tokens, and the reference.

Shapes: B batch, T query length, S key length, N heads, K key-value heads, G = N/K, H head dim of
queries and keys, V that of values, C keys that a chunk of queries can see, chunk: queries per
chunk. An axis marked # may have size 1.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, Int

from rope_jax.attention.base import Backend, Inputs, attended
from rope_jax.attention.blocks import (
    document_positions,
    masked_logits,
    sink_gradient,
    sinks_of,
    value_gradients,
    weighted_values,
)
from rope_jax.positions.interaction import Indices, Interaction
from rope_jax.positions.mask import BandMask

# The queries are cut into at most this many chunks. Each chunk reads only the keys up to its own
# end, which skips most of the work above the diagonal, nearly half of the total. More chunks would
# compile more slowly, and smaller ones would make products too small to be fast.
_MAX_CHUNKS = 8
_MIN_CHUNK = 128


class Xla(Backend):
    """Attention in about B·N·T·S floats, of which the backward pass keeps over half.

    Differentiable in reverse mode, with a hand-written derivative: automatic differentiation pads
    the gradient of every slice of keys and v to full length, which took XLA longer on a CPU than
    the products.
    """

    name: ClassVar[str] = "xla"
    summary: ClassVar[str] = "whole score matrices"
    quadratic_memory: ClassVar[bool] = True
    reads_caches: ClassVar[bool] = True

    def attend_bands(
        self, interaction: Interaction, inputs: Inputs, low_precision: bool = False
    ) -> Float[Array, "B T N V"]:
        return _attention(interaction, inputs)


class _Chunk(NamedTuple):
    """Queries that are computed together, and the keys that any of them may see.

    rows, span: the queries, among those of this device, and the keys.
    indices: theirs in the window.
    logits: function of params and, of each band, queries and keys.
    """

    rows: slice
    span: slice
    indices: Indices
    queries: list[Float[Array, "B K G chunk H"]]
    keys: list[Float[Array, "B K C H"]]
    values: Float[Array, "B K C V"]
    logits: Callable[..., Float[Array, "B K G chunk C"]]


class _Saved(NamedTuple):
    """probabilities, lse: of each chunk; lse = ln Σ_s exp(logit_s), only where there are sinks."""

    inputs: Inputs
    out: Float[Array, "B K G T V"]
    probabilities: list[Float[Array, "B K G chunk C"]]
    lse: list[Float32[Array, "B K G chunk 1"]]


def _chunks(interaction: Interaction, inputs: Inputs) -> Iterator[_Chunk]:
    """Cut q/√H, keys and values: heads come before time, which makes plain batched products."""
    masks, kv_heads = interaction.masks, inputs.v.shape[2]
    queries = [_split(q, kv_heads) for q in inputs.scaled_queries]
    keys, v = [k.swapaxes(1, 2) for k in inputs.keys], inputs.v.swapaxes(1, 2)
    for rows, first, span in _spans(queries[0].shape[3], v.shape[2], masks, inputs):
        queries_at = first + jnp.arange(rows.stop - rows.start)
        indices = Indices(queries_at, jnp.arange(span.start, span.stop))
        seen = [_seen(mask, first, *indices, inputs.segment_ids) for mask in masks]
        logits = functools.partial(masked_logits, interaction.scores, seen, indices)
        arrays = [q[:, :, :, rows] for q in queries], [k[:, :, span] for k in keys], v[:, :, span]
        yield _Chunk(rows, span, indices, *arrays, logits)


def _spans(
    queries: int, keys: int, masks: Sequence[BandMask], inputs: Inputs
) -> Iterator[tuple[slice, int | Int[Array, ""], slice]]:
    """Yield the queries of each chunk, the first one's index in the window, and the keys.

    The queries are the last ones of the window. If devices share it, they are two equal parts,
    whose place in it is traced, so both read all keys. So do those that read a cache.
    """
    if inputs.first is not None:
        for start in range(0, queries, _MIN_CHUNK):
            end = min(start + _MIN_CHUNK, queries)
            yield slice(start, end), inputs.first + start, slice(0, keys)
        return
    if inputs.part is not None:
        half, starts = queries // 2, inputs.part.starts(keys)
        yield slice(0, half), starts[0], slice(0, keys)
        yield slice(half, queries), starts[1], slice(0, keys)
        return
    window = max(keys if mask.beyond is None else mask.beyond for mask in masks)
    size, before = max(_MIN_CHUNK, -(-queries // _MAX_CHUNKS)), keys - queries
    for start in range(0, queries, size):
        end, first = min(start + size, queries), before + start
        yield slice(start, end), first, slice(max(0, first - window + 1), before + end)


def _seen(
    mask: BandMask,
    first: int | Int[Array, ""],
    query: Int[Array, " chunk"],
    key: Int[Array, " C"],
    segment_ids: Int[Array, "B S"] | None,
) -> Bool[Array, "#B 1 1 chunk C"]:
    """Return which of the keys each query of a chunk, from `first` on, sees in a band."""
    seen = mask.by_distance(query[:, None] - key[None])[None]
    if segment_ids is not None:
        of_queries = jax.lax.dynamic_slice_in_dim(segment_ids, first, query.size, axis=1)
        seen = seen & (of_queries[:, :, None] == segment_ids[:, key][:, None])
    if mask.needs_document_positions(0, None):
        positions = query[None], key[None]  # one document
        if segment_ids is not None:
            position = document_positions(segment_ids)
            positions = position[:, query], position[:, key]
        seen = seen & mask.by_document_position(*positions)
    return seen[:, None, None]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(interaction: Interaction, inputs: Inputs) -> Float[Array, "B T N V"]:
    return _forward(interaction, inputs)[0]


def _forward(interaction: Interaction, inputs: Inputs) -> tuple[Float[Array, "B T N V"], _Saved]:
    params, v = inputs.params, inputs.v
    outs, probabilities, lse = [], [], []
    for chunk in _chunks(interaction, inputs):
        logits = chunk.logits(params, chunk.queries, chunk.keys)
        # XLA fuses this chain. Every query sees itself, so the maximum is finite.
        row_max = logits.max(-1, keepdims=True)
        if interaction.sinks:
            sinks = sinks_of(params, v.shape[2])
            row_max = jnp.maximum(row_max, sinks)
        weights = jnp.exp(logits - row_max)
        row_sum = weights.sum(-1, keepdims=True)
        if interaction.sinks:
            row_sum = row_sum + jnp.exp(sinks - row_max)
            lse.append(row_max + jnp.log(row_sum))
        weights = weights / row_sum
        outs.append(weighted_values(interaction, params, weights, chunk.values, chunk.indices))
        probabilities.append(weights.astype(v.dtype))
    # Not the probabilities, which take most of the memory: a remat policy computes them again.
    out = attended(jnp.concatenate(outs, axis=3).astype(v.dtype))
    return _merged(out), _Saved(inputs, out, probabilities, lse)


def _backward(
    interaction: Interaction, saved: _Saved, dout: Float[Array, "B T N V"]
) -> tuple[Inputs]:
    """With probabilities P of each chunk: dV = Pᵀ·dO, dP = dO·Vᵀ, d(logits) = P ∘ (dP − delta),
    which the VJP of the scores carries to queries, keys and params. delta_r = Σ_s P_rs dP_rs =
    dO_r · O_r comes from the normalisation of row r.
    """
    inputs, out, probabilities, lse = saved
    params, v = inputs.params, inputs.v
    douts = _split(dout, v.shape[2])
    delta = (douts.astype(jnp.float32) * out.astype(jnp.float32)).sum(-1, keepdims=True)
    d_params, dqs, parts = jax.tree.map(jnp.zeros_like, params), [], []
    if interaction.sinks:
        d_params |= {"sinks": sink_gradient(params, jnp.concatenate(lse, axis=3), delta)}
    # The last chunk comes first. It reaches the last key; the others add to parts of its gradients.
    for chunk, p in reversed(list(zip(_chunks(interaction, inputs), probabilities, strict=True))):
        weights, dout_rows = p.astype(jnp.float32), douts[:, :, :, chunk.rows]
        d_weights, dv, d_params = value_gradients(
            interaction, params, weights, chunk.values, dout_rows, chunk.indices, d_params
        )
        _, pull_back = jax.vjp(chunk.logits, params, chunk.queries, chunk.keys)
        more, dq, dk = pull_back(weights * (d_weights - delta[:, :, :, chunk.rows]))
        d_params = jax.tree.map(jnp.add, d_params, more)
        dqs.append([x.astype(jnp.float32) for x in dq])
        gradients = [*(x.swapaxes(-1, -2).astype(jnp.float32) for x in dk), dv]
        parts.append((chunk.span, gradients))
    dq = [jnp.concatenate(chunks[::-1], axis=3) for chunks in zip(*dqs, strict=True)]
    scale = inputs.queries[0].shape[-1] ** -0.5
    dq = tuple(
        (_merged(x) * scale).astype(q.dtype) for x, q in zip(dq, inputs.queries, strict=True)
    )
    *dk, dv = (
        _sum_of_spans([(span, gradients[i]) for span, gradients in parts]).astype(x.dtype)
        for i, x in enumerate((*inputs.keys, v))
    )
    return (Inputs(dq, tuple(dk), dv, None, None, d_params),)


_attention.defvjp(_forward, _backward)


def _sum_of_spans(
    parts: Sequence[tuple[slice, Float[Array, "B K _ _"]]],
) -> Float[Array, "B S K _"]:
    """Add up gradients that each cover a span of the keys; the first reaches the last key."""
    (span, total), *others = parts
    total = jnp.pad(total, ((0, 0), (0, 0), (0, 0), (span.start, 0)))
    for span, part in others:
        total = total.at[..., span].add(part)
    return total.transpose(0, 3, 1, 2)


def _split(x: Float[Array, "B T N H"], kv_heads: int) -> Float[Array, "B K G T H"]:
    batch, length, heads, width = x.shape
    return x.reshape(batch, length, kv_heads, heads // kv_heads, width).transpose(0, 2, 3, 1, 4)


def _merged(x: Float[Array, "B K G T H"]) -> Float[Array, "B T N H"]:
    batch, kv_heads, groups, length, width = x.shape
    return x.transpose(0, 3, 1, 2, 4).reshape(batch, length, kv_heads * groups, width)
