"""Attention in blocks with an online softmax: memory is linear in the length, not quadratic.

After Rabe & Staats, arXiv 2112.05682, and FlashAttention-2, arXiv 2307.08691. There are two loops:
over blocks of queries, and over the blocks of keys that they can see. The inner loops' bounds
depend only on the outer loop's counter. So blocks that are not needed are skipped under vmap too,
and the program is the same size at 64 tokens and at 65,536.

Shapes: B batch, T query length, S key length, N heads, K key-value heads, G = N/K, H head dim of
queries and keys, V that of values, block: tokens per block; m: blocks of queries.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rope_jax.attention.backends.base import BLOCK
from rope_jax.attention.blocks import (
    Blocks,
    Visit,
    sink_gradient,
    sinks_of,
    value_gradients,
    weighted_values,
)
from rope_jax.attention.remat_names import attended
from rope_jax.positions.interaction import Interaction
from rope_jax.positions.zigzag import ZigZag

__all__ = ["banded_blockwise"]


def banded_blockwise(
    queries: tuple[Float[Array, "B T N H"], ...],
    keys: tuple[Float[Array, "B S K H"], ...],
    v: Float[Array, "B S K V"],
    segment_ids: Int[Array, "B S"] | None,
    interaction: Interaction,
    params: Any,
    part: ZigZag | None = None,
    *,
    block: int = BLOCK,
) -> Float[Array, "B T N V"]:
    """`Backend.attend_bands`, in memory linear in S.

    block: the most tokens per block: longer ones make larger products, shorter ones skip more of
        the work above the diagonal. The window, or each chunk of one that devices share, is cut
        into as few equal blocks as possible.

    A band's scores are computed only for the blocks in which it has keys. Softmax is float32. The
    backward pass keeps queries, keys, v, the output and one number per query and head (lse), and
    recomputes the probabilities.
    """
    length = v.shape[1]
    if part is None:
        size, diagonals = -(-length // -(-length // block)), None
    else:  # the block size has to divide the chunks
        chunk = queries[0].shape[1] // 2
        size = next(n for n in range(min(block, chunk), 0, -1) if chunk % n == 0)
        first = part.starts(length) // size
        diagonals = (first[:, None] + jnp.arange(chunk // size)[None]).reshape(-1)
    return _attention(interaction, size, queries, keys, v, segment_ids, diagonals, params)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attention(interaction: Interaction, size: int, *arrays: Any) -> Float[Array, "B T N V"]:
    return _forward(interaction, size, *arrays)[0]


def _cut(
    blocks: Blocks, queries: tuple[Array, ...], keys: tuple[Array, ...], v: Array
) -> tuple[list[Array], list[Array], Array]:
    """Cut the scaled queries q/√H of each band, its keys, and the values into blocks."""
    scaled = [q * jnp.asarray(q.shape[-1] ** -0.5, q.dtype) for q in queries]
    query_blocks = [blocks.of_queries(q, v.shape[2]) for q in scaled]
    return query_blocks, [blocks.of_keys(k) for k in keys], blocks.of_keys(v)


def _forward(
    interaction: Interaction,
    size: int,
    queries: tuple[Float[Array, "B T N H"], ...],
    keys: tuple[Float[Array, "B S K H"], ...],
    v: Float[Array, "B S K V"],
    segment_ids: Int[Array, "B S"] | None,
    diagonals: Int[Array, " m"] | None,
    params: Any,
) -> tuple[Float[Array, "B T N V"], tuple[Any, ...]]:
    """The loops over key blocks carry, for each query, the maximum of its logits so far (row_max),
    the sum of exp(logit − row_max) (row_sum), and the values weighted by those exponentials (out).
    At the end, lse = ln Σ_s exp(logit_s) = row_max + ln row_sum, of shape [m, B, K, G, block, 1].
    """
    length = queries[0].shape[1]
    blocks = Blocks(interaction, size, length, v.shape[1], segment_ids, diagonals)
    query_blocks, key_blocks, values = _cut(blocks, queries, keys, v)

    def query_block(_: None, i: Array) -> tuple[None, tuple[Array, Array]]:
        def see(
            running: tuple[Array, Any, Any] | None, j: Array, visit: Visit
        ) -> tuple[Array, Array, Array]:
            own_queries = [query_blocks[band][i] for band in visit.bands]
            own_keys = [key_blocks[band][j] for band in visit.bands]
            logits = blocks.logits(visit, i, j, params, own_queries, own_keys)
            row_max = logits.max(-1, keepdims=True)
            if running is not None:
                row_max = jnp.maximum(running[0], row_max)
            weights = jnp.exp(logits - row_max)
            row_sum = weights.sum(-1, keepdims=True)
            out = weighted_values(interaction, params, weights, values[j], blocks.indices(i, j))
            if running is not None:
                rescale = jnp.exp(running[0] - row_max)
                row_sum, out = rescale * running[1] + row_sum, rescale * running[2] + out
            return row_max, row_sum, out

        # The diagonal first: every query sees itself there, so row_max is finite from the start.
        before = (sinks_of(params, v.shape[2]), 1.0, 0.0) if interaction.sinks else None
        running = see(before, blocks.diagonal(i), blocks.nearest)
        row_max, row_sum, out = blocks.visit_others(see, running, i)
        return None, ((out / row_sum).astype(v.dtype), row_max + jnp.log(row_sum))

    _, (outs, lse) = jax.lax.scan(query_block, None, jnp.arange(query_blocks[0].shape[0]))
    out, lse = attended((blocks.merged(outs, length), lse))
    return out, (queries, keys, v, segment_ids, diagonals, params, out, lse)


def _backward(
    interaction: Interaction, size: int, saved: tuple[Any, ...], dout: Float[Array, "B T N V"]
) -> tuple[Any, Any, Float[Array, "B S K V"], None, None, Any]:
    """For each pair of blocks, with P = exp(logits − lse): dV = Pᵀ·dO, dP = dO·Vᵀ, and
    d(logits) = P ∘ (dP − delta), which the VJP of the scores carries to queries, keys and params.
    delta_r = Σ_s P_rs dP_rs = dO_r · O_r comes from the normalisation of row r.
    """
    queries, keys, v, segment_ids, diagonals, params, out, lse = saved
    length = queries[0].shape[1]
    blocks = Blocks(interaction, size, length, v.shape[1], segment_ids, diagonals)
    query_blocks, key_blocks, values = _cut(blocks, queries, keys, v)
    outs, douts = (blocks.of_queries(x, v.shape[2]) for x in (out, dout))

    def query_block(gradients: Any, i: Array) -> tuple[Any, Any]:
        own, dout_block = [q[i] for q in query_blocks], douts[i]
        delta = dout_block.astype(jnp.float32) * outs[i].astype(jnp.float32)
        delta = delta.sum(-1, keepdims=True)
        if interaction.sinks:
            *others, d_params = gradients
            d_sinks = d_params["sinks"] + sink_gradient(params, lse[i], delta)
            gradients = *others, d_params | {"sinks": d_sinks}

        def see(gradients: Any, j: Array, visit: Visit) -> Any:
            dks, dv, d_params, dqs = gradients
            logits, pull_back = jax.vjp(
                functools.partial(blocks.logits, visit, i, j),
                params,
                [own[band] for band in visit.bands],
                [key_blocks[band][j] for band in visit.bands],
            )
            probabilities = jnp.exp(logits - lse[i])
            d_probabilities, more_dv, d_params = value_gradients(
                interaction,
                params,
                probabilities,
                values[j],
                dout_block,
                blocks.indices(i, j),
                d_params,
            )
            more_d_params, more_dqs, more_dks = pull_back(probabilities * (d_probabilities - delta))
            dks, dqs = list(dks), list(dqs)
            for band, more_dq, more_dk in zip(visit.bands, more_dqs, more_dks, strict=True):
                dks[band] = dks[band].at[j].add(more_dk.astype(jnp.float32))
                dqs[band] = dqs[band] + more_dq.astype(jnp.float32)
            d_params = jax.tree.map(jnp.add, d_params, more_d_params)
            return dks, dv.at[j].add(more_dv.swapaxes(-1, -2)), d_params, dqs

        gradients = *gradients, [jnp.zeros(query.shape, jnp.float32) for query in own]
        gradients = blocks.visit_others(see, gradients, i)
        *gradients, dqs = see(gradients, blocks.diagonal(i), blocks.nearest)
        return tuple(gradients), dqs

    zeros = (
        [jnp.zeros(blocks_of_band.shape, jnp.float32) for blocks_of_band in key_blocks],
        jnp.zeros(values.shape, jnp.float32),
        jax.tree.map(jnp.zeros_like, params),
    )
    (dks, dv, d_params), dqs = jax.lax.scan(
        query_block, zeros, jnp.arange(query_blocks[0].shape[0])
    )
    scale = queries[0].shape[-1] ** -0.5
    dq = tuple(
        (blocks.merged(dq, length) * scale).astype(q.dtype)
        for dq, q in zip(dqs, queries, strict=True)
    )
    dk = tuple(
        blocks.merged(dk[:, :, :, None], k.shape[1]).astype(k.dtype)
        for dk, k in zip(dks, keys, strict=True)
    )
    dv = blocks.merged(dv[:, :, :, None], v.shape[1]).astype(v.dtype)
    return dq, dk, dv, None, None, d_params


_attention.defvjp(_forward, _backward)
