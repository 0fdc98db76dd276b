"""Attention in blocks with an online softmax: memory grows with the length, not with its square.

After Rabe & Staats, arXiv 2112.05682, and FlashAttention-2, arXiv 2307.08691. There are two loops:
over blocks of queries, and over the blocks of keys that they can see. The inner one's number of
steps follows from the outer one's counter alone. So blocks above the diagonal, and those before a
sliding window, are skipped under vmap too, and the program is as long for 64 tokens as for 65,536.

Shapes: B batch, T query length, S key length, N heads, K key-value heads, G = N/K, H head dim,
block: tokens per block; m: blocks of queries.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rope_jax.attention.blocks import Blocks, Scores, Settings, dot_product
from rope_jax.attention.rows import product, stacked, unstacked

# Longer blocks make larger products; shorter ones skip more of what lies above the diagonal.
BLOCK = 512


def blockwise_attention(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    v: Float[Array, "B S K H"],
    segment_ids: Int[Array, "B S"] | None = None,
    sliding_window: int | None = None,
    *,
    scores: Scores = dot_product,
    arguments: Any = (),
    block: int = BLOCK,
) -> Float[Array, "B T N H"]:
    """softmax(q·kᵀ/√H)·v as in `xla_attention`, in memory linear in S.

    scores: scores(arguments, q/√H, k, query_index, key_index) returns the logits of a block of
        queries and a block of keys, in place of q·kᵀ/√H. The indices are places in the window. A
        bias (slopes · distance) enters here, or a position map, which rotates queries and keys by
        what the distance of the two blocks asks for. The masks are applied afterwards. Indices
        below 0 are padding, and are masked too.
    arguments: a tree of arrays that `scores` needs; differentiable. Arrays that `scores` closes
        over instead would get no gradient.
    block: the most tokens per block. The window is cut into blocks of one size, as few as possible.

    Softmax is float32. The backward pass keeps q, k, v, the output and one number per query and
    head (lse), and recomputes the probabilities.
    """
    settings = Settings(sliding_window, scores, _even(k.shape[1], block))
    return _attention(settings, q, k, v, segment_ids, arguments)


def _even(length: int, block: int) -> int:
    """Return the smallest block size that needs no more blocks than `block` does."""
    return -(-length // -(-length // block))


class _Saved(NamedTuple):
    """What the forward pass keeps for the backward pass."""

    q: Float[Array, "B T N H"]
    k: Float[Array, "B S K H"]
    v: Float[Array, "B S K H"]
    segment_ids: Int[Array, "B S"] | None
    arguments: Any
    out: Float[Array, "B T N H"]
    lse: Float[Array, "m B K G block 1"]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(
    settings: Settings,
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    v: Float[Array, "B S K H"],
    segment_ids: Int[Array, "B S"] | None,
    arguments: Any,
) -> Float[Array, "B T N H"]:
    return _forward(settings, q, k, v, segment_ids, arguments)[0]


def _forward(
    settings: Settings,
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    v: Float[Array, "B S K H"],
    segment_ids: Int[Array, "B S"] | None,
    arguments: Any,
) -> tuple[Float[Array, "B T N H"], _Saved]:
    """Compute the output, and what the backward pass needs.

    While the key blocks go by, each query holds the maximum of its logits so far (row_max), the
    sum of their exponentials relative to it (row_sum), and the values weighted by those (out). In
    the end lse = ln Σ_s exp(logit_s) = row_max + ln row_sum.
    """
    blocks = Blocks(settings, q.shape[1], k.shape[1], segment_ids)
    queries = blocks.of_queries(_scaled(q), k.shape[2])
    keys, values = blocks.of_keys(k), blocks.of_keys(v)

    def query_block(_: None, i: Array) -> tuple[None, tuple[Array, Array]]:
        diagonal = blocks.diagonal(i)

        # The diagonal comes first: there every query sees itself, so no maximum is ever −∞.
        logits = blocks.logits(arguments, queries[i], keys[diagonal], i, diagonal, on_diagonal=True)
        row_max = logits.max(-1, keepdims=True)
        weights = jnp.exp(logits - row_max)
        row_sum = weights.sum(-1, keepdims=True)
        out = _weighted_sum(weights, values[diagonal])

        def add_key_block(
            j: Array, running: tuple[Array, Array, Array]
        ) -> tuple[Array, Array, Array]:
            old_max, row_sum, out = running
            logits = blocks.logits(arguments, queries[i], keys[j], i, j)
            row_max = jnp.maximum(old_max, logits.max(-1, keepdims=True))
            rescale, weights = jnp.exp(old_max - row_max), jnp.exp(logits - row_max)
            row_sum = rescale * row_sum + weights.sum(-1, keepdims=True)
            return row_max, row_sum, rescale * out + _weighted_sum(weights, values[j])

        row_max, row_sum, out = jax.lax.fori_loop(
            blocks.first_seen(diagonal), diagonal, add_key_block, (row_max, row_sum, out)
        )
        return None, ((out / row_sum).astype(v.dtype), row_max + jnp.log(row_sum))

    _, (outs, lse) = jax.lax.scan(query_block, None, jnp.arange(queries.shape[0]))
    out = blocks.merged(outs, q.shape[1])
    return out, _Saved(q, k, v, segment_ids, arguments, out, lse)


def _backward(
    settings: Settings, saved: _Saved, dout: Float[Array, "B T N H"]
) -> tuple[Float[Array, "B T N H"], Float[Array, "B S K H"], Float[Array, "B S K H"], None, Any]:
    """Compute the gradients dq, dk and dv, and that of `arguments`.

    For each pair of blocks, with P = exp(logits − lse): dV = Pᵀ·dO, dP = dO·Vᵀ, and
    d(logits) = P ∘ (dP − delta), which the derivative of `scores` takes back to queries, keys and
    arguments. delta_r = Σ_s P_rs dP_rs = dO_r · O_r is what normalisation takes from row r.
    """
    q, k, v, segment_ids, arguments, out, lse = saved
    blocks = Blocks(settings, q.shape[1], k.shape[1], segment_ids)
    queries = blocks.of_queries(_scaled(q), k.shape[2])
    keys, values = blocks.of_keys(k), blocks.of_keys(v)
    douts, outs = (blocks.of_queries(x, k.shape[2]) for x in (dout, out))

    def query_block(gradients: Any, i: Array) -> tuple[Any, Array]:
        query, dout_block = queries[i], douts[i]
        delta = dout_block.astype(jnp.float32) * outs[i].astype(jnp.float32)
        delta = delta.sum(-1, keepdims=True)

        def add_key_block(j: Array, gradients: Any, on_diagonal: bool = False) -> Any:
            dk, dv, d_arguments, dq = gradients

            def logits_of(arguments: Any, query: Array, key: Array) -> Array:
                return blocks.logits(arguments, query, key, i, j, on_diagonal=on_diagonal)

            logits, pull_back = jax.vjp(logits_of, arguments, query, keys[j])
            probabilities = jnp.exp(logits - lse[i])
            d_probabilities = unstacked(
                product(stacked(dout_block), values[j].swapaxes(-1, -2)), query.shape[2]
            )
            d_logits = probabilities * (d_probabilities - delta)
            more_d_arguments, more_dq, more_dk = pull_back(d_logits)
            rows = stacked(probabilities.astype(v.dtype))
            more_dv = product(rows.swapaxes(-1, -2), stacked(dout_block))
            return (
                dk.at[j].add(more_dk.astype(jnp.float32)),
                dv.at[j].add(more_dv),
                jax.tree.map(jnp.add, d_arguments, more_d_arguments),
                dq + more_dq.astype(jnp.float32),
            )

        diagonal = blocks.diagonal(i)
        gradients = *gradients, jnp.zeros(query.shape, jnp.float32)
        gradients = jax.lax.fori_loop(
            blocks.first_seen(diagonal), diagonal, add_key_block, gradients
        )
        *gradients, dq = add_key_block(diagonal, gradients, on_diagonal=True)
        return tuple(gradients), dq

    zeros = (
        jnp.zeros(keys.shape, jnp.float32),
        jnp.zeros(values.shape, jnp.float32),
        jax.tree.map(jnp.zeros_like, arguments),
    )
    (dks, dvs, d_arguments), dqs = jax.lax.scan(query_block, zeros, jnp.arange(queries.shape[0]))
    dq = blocks.merged(dqs, q.shape[1]) * q.shape[-1] ** -0.5
    dk, dv = (blocks.merged(x[:, :, :, None], k.shape[1]) for x in (dks, dvs))
    return dq.astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype), None, d_arguments


_attention.defvjp(_forward, _backward)


def _scaled(q: Float[Array, "B T N H"]) -> Float[Array, "B T N H"]:
    """q/√H."""
    return q * jnp.asarray(q.shape[-1] ** -0.5, q.dtype)


def _weighted_sum(
    weights: Float[Array, "B K G block block"], values: Float[Array, "B K block H"]
) -> Float[Array, "B K G block H"]:
    rows = stacked(weights.astype(values.dtype))
    return unstacked(product(rows, values), weights.shape[2])
