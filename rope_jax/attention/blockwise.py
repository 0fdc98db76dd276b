"""Attention in blocks with an online softmax: memory is linear in the length, not quadratic.

After Rabe & Staats, arXiv 2112.05682, and FlashAttention-2, arXiv 2307.08691. There are two loops:
over blocks of queries, and over the blocks of keys that they can see, band by band. The inner
loops' bounds depend only on the outer loop's counter. So blocks that a band does not need are
skipped under vmap too, and the program is the same size at 64 tokens and at 65,536.

Shapes: B batch, T query length, S key length, N heads, K key-value heads, G = N/K, H head dim of
queries and keys, V that of values, block: tokens per block; m: blocks of queries.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rope_jax.attention.blocks import Blocks, Mask, Settings
from rope_jax.positions.interaction import Interaction
from rope_jax.positions.scores import product, stacked, unstacked

# Longer blocks make larger products; shorter ones skip more of the work above the diagonal.
BLOCK = 512


def blockwise_attention(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    v: Float[Array, "B S K V"],
    segment_ids: Int[Array, "B S"] | None = None,
    sliding_window: int | None = None,
    *,
    block: int = BLOCK,
) -> Float[Array, "B T N V"]:
    """softmax(q·kᵀ/√H)·v as in `xla_attention`, in memory linear in S.

    block: the most tokens per block. The window is cut into as few equal blocks as possible.
    """
    interaction = Interaction().within(sliding_window)
    return banded_blockwise((q,), (k,), v, segment_ids, interaction, {}, block=block)


def banded_blockwise(
    queries: tuple[Float[Array, "B T N H"], ...],
    keys: tuple[Float[Array, "B S K H"], ...],
    v: Float[Array, "B S K V"],
    segment_ids: Int[Array, "B S"] | None,
    interaction: Interaction,
    numbers: Any,
    *,
    block: int = BLOCK,
) -> Float[Array, "B T N V"]:
    """softmax(scores)·v over the keys of all bands, in memory linear in S.

    queries, keys: turned, one array for each band. The queries are the last T of the S tokens.
    interaction: which keys each band holds, and how scores and values are computed; static.
    numbers: a tree of float arrays for the interaction's functions; differentiable.
    block: the most tokens per block.

    Every band is visited only where it has keys, so a key block costs once, or once per band at the
    border between two. Softmax is float32. The backward pass keeps queries, keys, v, the output and
    one number per query and head (lse), and recomputes the probabilities.
    """
    settings = Settings(interaction, _even(v.shape[1], block))
    return _attention(settings, queries, keys, v, segment_ids, numbers)


def _even(length: int, block: int) -> int:
    """Return the smallest block size that needs no more blocks than `block`."""
    return -(-length // -(-length // block))


class _Saved(NamedTuple):
    """Arrays that the forward pass keeps for the backward pass."""

    queries: tuple[Float[Array, "B T N H"], ...]
    keys: tuple[Float[Array, "B S K H"], ...]
    v: Float[Array, "B S K V"]
    segment_ids: Int[Array, "B S"] | None
    numbers: Any
    out: Float[Array, "B T N V"]
    lse: Float[Array, "m B K G block 1"]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(
    settings: Settings,
    queries: tuple[Float[Array, "B T N H"], ...],
    keys: tuple[Float[Array, "B S K H"], ...],
    v: Float[Array, "B S K V"],
    segment_ids: Int[Array, "B S"] | None,
    numbers: Any,
) -> Float[Array, "B T N V"]:
    return _forward(settings, queries, keys, v, segment_ids, numbers)[0]


def _forward(
    settings: Settings,
    queries: tuple[Float[Array, "B T N H"], ...],
    keys: tuple[Float[Array, "B S K H"], ...],
    v: Float[Array, "B S K V"],
    segment_ids: Int[Array, "B S"] | None,
    numbers: Any,
) -> tuple[Float[Array, "B T N V"], _Saved]:
    """Compute the output and the residuals of the backward pass.

    The loops over key blocks carry, for each query, the maximum of its logits so far (row_max),
    the sum of exp(logit − row_max) (row_sum), and the values weighted by those exponentials (out).
    At the end, lse = ln Σ_s exp(logit_s) = row_max + ln row_sum.
    """
    length, bands = queries[0].shape[1], settings.interaction.visible
    blocks = Blocks(settings, length, v.shape[1], segment_ids)
    query_blocks = [blocks.of_queries(_scaled(q), v.shape[2]) for q in queries]
    key_blocks, values = [blocks.of_keys(k) for k in keys], blocks.of_keys(v)

    def query_block(_: None, i: Array) -> tuple[None, tuple[Array, Array]]:
        diagonal = blocks.diagonal(i)

        def logits(band: int, j: Array, mask: Mask) -> Array:
            query, key = query_blocks[band][i], key_blocks[band][j]
            return blocks.logits(numbers, query, key, bands[band], mask, i, j)

        # The diagonal first: every query sees itself there, so row_max is finite from the start.
        first = logits(0, diagonal, blocks.on_diagonal(bands[0]))
        row_max = first.max(-1, keepdims=True)
        weights = jnp.exp(first - row_max)
        row_sum = weights.sum(-1, keepdims=True)
        running = row_max, row_sum, blocks.weighted_values(numbers, weights, values, i, diagonal)

        for band, visible in enumerate(bands):

            def see(
                j: Array, running: tuple[Array, Array, Array], mask: Mask, band: int = band
            ) -> tuple[Array, Array, Array]:
                old_max, row_sum, out = running
                more = logits(band, j, mask)
                row_max = jnp.maximum(old_max, more.max(-1, keepdims=True))
                rescale, weights = jnp.exp(old_max - row_max), jnp.exp(more - row_max)
                row_sum = rescale * row_sum + weights.sum(-1, keepdims=True)
                out = rescale * out + blocks.weighted_values(numbers, weights, values, i, j)
                return row_max, row_sum, out

            running = blocks.visit(visible, i, see, running, diagonal=band > 0)
        row_max, row_sum, out = running
        return None, ((out / row_sum).astype(v.dtype), row_max + jnp.log(row_sum))

    _, (outs, lse) = jax.lax.scan(query_block, None, jnp.arange(query_blocks[0].shape[0]))
    out = blocks.merged(outs, length)
    return out, _Saved(queries, keys, v, segment_ids, numbers, out, lse)


def _backward(
    settings: Settings, saved: _Saved, dout: Float[Array, "B T N V"]
) -> tuple[Any, Any, Float[Array, "B S K V"], None, Any]:
    """Compute the gradients of queries, keys, v and numbers.

    For each pair of blocks, with P = exp(logits − lse): dV = Pᵀ·dO, dP = dO·Vᵀ, and
    d(logits) = P ∘ (dP − delta), which the VJP of the scores carries to queries, keys and numbers.
    delta_r = Σ_s P_rs dP_rs = dO_r · O_r comes from the normalisation of row r.
    """
    queries, keys, v, segment_ids, numbers, out, lse = saved
    length, bands = queries[0].shape[1], settings.interaction.visible
    blocks = Blocks(settings, length, v.shape[1], segment_ids)
    query_blocks = [blocks.of_queries(_scaled(q), v.shape[2]) for q in queries]
    key_blocks, values = [blocks.of_keys(k) for k in keys], blocks.of_keys(v)
    douts = blocks.of_queries(dout, v.shape[2])
    outs = blocks.of_queries(out, v.shape[2])

    def query_block(gradients: Any, i: Array) -> tuple[Any, Any]:
        dout_block = douts[i]
        delta = dout_block.astype(jnp.float32) * outs[i].astype(jnp.float32)
        delta = delta.sum(-1, keepdims=True)
        dks, dv, d_numbers = gradients
        new_dks, dqs = [], []
        for band, visible in enumerate(bands):
            query = query_blocks[band][i]

            def see(
                j: Array, gradients: Any, mask: Mask, band: int = band, query: Array = query
            ) -> Any:
                dk, dv, d_numbers, dq = gradients

                def logits_of(numbers: Any, query: Array, key: Array) -> Array:
                    return blocks.logits(numbers, query, key, bands[band], mask, i, j)

                logits, pull_back = jax.vjp(logits_of, numbers, query, key_blocks[band][j])
                probabilities = jnp.exp(logits - lse[i])
                d_probabilities, more_dv, d_numbers = blocks.value_gradients(
                    numbers, probabilities, values, dout_block, i, j, d_numbers
                )
                more_d_numbers, more_dq, more_dk = pull_back(
                    probabilities * (d_probabilities - delta)
                )
                return (
                    dk.at[j].add(more_dk.astype(jnp.float32)),
                    dv.at[j].add(more_dv),
                    jax.tree.map(jnp.add, d_numbers, more_d_numbers),
                    dq + more_dq.astype(jnp.float32),
                )

            zero = jnp.zeros(query.shape, jnp.float32)
            dk, dv, d_numbers, dq = blocks.visit(
                visible, i, see, (dks[band], dv, d_numbers, zero)
            )
            new_dks.append(dk)
            dqs.append(dq)
        return (new_dks, dv, d_numbers), dqs

    zeros = (
        [jnp.zeros(blocks_of_band.shape, jnp.float32) for blocks_of_band in key_blocks],
        jnp.zeros(values.shape, jnp.float32),
        jax.tree.map(jnp.zeros_like, numbers),
    )
    (dks, dv, d_numbers), dqs = jax.lax.scan(
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
    return dq, dk, dv, None, d_numbers


_attention.defvjp(_forward, _backward)


def _scaled(q: Float[Array, "B T N H"]) -> Float[Array, "B T N H"]:
    """q/√H."""
    return q * jnp.asarray(q.shape[-1] ** -0.5, q.dtype)
