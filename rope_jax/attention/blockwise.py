"""Attention in blocks with an online softmax: memory is linear in the length, not quadratic.

After Rabe & Staats, arXiv 2112.05682, and FlashAttention-2, arXiv 2307.08691. There are two loops:
over blocks of queries, and over the blocks of keys that they can see. The inner loops' bounds
depend only on the outer loop's counter. So blocks that are not needed are skipped under vmap too,
and the program is the same size at 64 tokens and at 65,536.

Shapes: B batch, T query length, S key length, N heads, K key-value heads, G = N/K, H head dim of
queries and keys, V that of values, block: tokens per block; m: blocks of queries, n: of keys.
"""

import functools
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Int

from rope_jax.attention.base import Backend, Inputs, attended
from rope_jax.attention.blocks import (
    Blocks,
    Visit,
    sink_gradient,
    sinks_of,
    value_gradients,
    weighted_values,
)
from rope_jax.positions.interaction import Interaction, Params

__all__ = ["Blockwise", "Saved", "backward", "forward"]

BLOCK = 512  # tokens


class Blockwise(Backend):
    """Attention in memory linear in S, on every platform.

    block: the most tokens per block: longer ones make larger products, shorter ones skip more of
        the work above the diagonal. The window, or each chunk of one that devices share, is cut
        into as few equal blocks as possible.

    A band's scores are computed only for the blocks in which it has keys. Softmax is float32. The
    backward pass keeps queries, keys, v, the output and one number per query and head (lse), and
    recomputes the probabilities.
    """

    name: ClassVar[str] = "blockwise"
    summary: ClassVar[str] = "memory linear in the length"

    def __init__(self, block: int = BLOCK) -> None:
        self.block = block

    def attend_bands(
        self, interaction: Interaction, inputs: Inputs, low_precision: bool = False
    ) -> Float[Array, "B T N V"]:
        length, block = inputs.v.shape[1], self.block
        size = -(-length // -(-length // block))
        if inputs.part is not None:  # the block size has to divide the chunks
            chunk = inputs.queries[0].shape[1] // 2
            size = next(n for n in range(min(block, chunk), 0, -1) if chunk % n == 0)
        return _attention(interaction, size, inputs)


class PlainKernel(Backend):
    """A kernel that computes one band of dot products.

    All else is left to `Blockwise`: maps, encodings' own scores, soft caps, sinks.
    """

    def attend_plain(self, inputs: Inputs, sliding_window: int | None) -> Float[Array, "B T N V"]:
        """Return softmax(q·kᵀ/√H)·v of the single band, as `attend` describes it.

        In a model with latent attention, V may be more or less than H.
        """
        raise NotImplementedError

    def block(self, rows: int) -> int:
        """Return the most tokens per block of what is left to `Blockwise`; rows: B·N."""
        return BLOCK

    def attend_bands(
        self, interaction: Interaction, inputs: Inputs, low_precision: bool = False
    ) -> Float[Array, "B T N V"]:
        if interaction.is_plain:
            return self.attend_plain(inputs, interaction.masks[0].beyond)
        rows = inputs.v.shape[0] * inputs.queries[0].shape[2]
        return Blockwise(self.block(rows)).attend_bands(interaction, inputs)


class _Running(NamedTuple):
    """Of each query of a block, over the keys so far: the maximum of the logits, the sum of
    exp(logit − row_max), and the values weighted by those exponentials."""

    row_max: Float32[Array, "B K G block 1"]
    row_sum: Float32[Array, "B K G block 1"]
    out: Float32[Array, "B K G block V"]


class _Gradients(NamedTuple):
    """Sums so far: of all key blocks, of the params, and of the queries of one block."""

    dks: list[Float32[Array, "n B K block H"]]
    dv: Float32[Array, "n B K block V"]
    params: Params
    dqs: list[Float32[Array, "B K G block H"]]


class Saved(NamedTuple):
    """What the backward pass reads. Where the softmax is over more keys, out and lse are of all."""

    inputs: Inputs
    out: Float[Array, "B T N V"]
    lse: Float32[Array, "m B K G block 1"]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attention(interaction: Interaction, size: int, inputs: Inputs) -> Float[Array, "B T N V"]:
    return forward(interaction, size, inputs)[0]


def _cut(
    blocks: Blocks, inputs: Inputs
) -> tuple[
    list[Float[Array, "m B K G block H"]],
    list[Float[Array, "n B K block H"]],
    Float[Array, "n B K block V"],
]:
    """Cut the scaled queries of each band, its keys, and the values into blocks."""
    queries = [blocks.of_queries(q, inputs.v.shape[2]) for q in inputs.scaled_queries]
    return queries, [blocks.of_keys(k) for k in inputs.keys], blocks.of_keys(inputs.v)


def forward(
    interaction: Interaction, size: int, inputs: Inputs
) -> tuple[Float[Array, "B T N V"], Saved]:
    """After the loops over key blocks, lse = ln Σ_s exp(logit_s) = row_max + ln row_sum."""
    blocks = Blocks(interaction, size, inputs)
    queries, keys, values = _cut(blocks, inputs)
    params, v = inputs.params, inputs.v

    def query_block(_: None, i: Int[Array, ""]) -> tuple[None, tuple[Array, Array]]:
        def see(running: _Running | None, j: Int[Array, ""], visit: Visit) -> _Running:
            of_queries = [queries[band][i] for band in visit.bands]
            of_keys = [keys[band][j] for band in visit.bands]
            logits = blocks.logits(visit, i, j, params, of_queries, of_keys)
            row_max = logits.max(-1, keepdims=True)
            if running is not None:
                row_max = jnp.maximum(running.row_max, row_max)
            weights = jnp.exp(logits - row_max)
            row_sum = weights.sum(-1, keepdims=True)
            out = weighted_values(interaction, params, weights, values[j], blocks.indices(i, j))
            if running is not None:
                rescale = jnp.exp(running.row_max - row_max)
                row_sum, out = rescale * running.row_sum + row_sum, rescale * running.out + out
            return _Running(row_max, row_sum, out)

        # The diagonal first: every query sees itself there, so row_max is finite from the start.
        before = None
        if interaction.sinks:  # one key more, without a value
            before = _Running(sinks_of(params, v.shape[2]), jnp.float32(1), jnp.float32(0))
        running = see(before, blocks.diagonal(i), blocks.nearest)
        row_max, row_sum, out = blocks.visit_others(see, running, i)
        return None, ((out / row_sum).astype(v.dtype), row_max + jnp.log(row_sum))

    _, (outs, lse) = jax.lax.scan(query_block, None, jnp.arange(queries[0].shape[0]))
    out, lse = attended((blocks.merged(outs, inputs.queries[0].shape[1]), lse))
    return out, Saved(inputs, out, lse)


def backward(
    interaction: Interaction, size: int, saved: Saved, dout: Float[Array, "B T N V"]
) -> tuple[Inputs]:
    """For each pair of blocks, with P = exp(logits − lse): dV = Pᵀ·dO, dP = dO·Vᵀ, and
    d(logits) = P ∘ (dP − delta), which the VJP of the scores carries to queries, keys and params.
    delta_r = Σ_s P_rs dP_rs = dO_r · O_r comes from the normalisation of row r.
    """
    inputs, out, lse = saved
    params, v, length = inputs.params, inputs.v, dout.shape[1]
    blocks = Blocks(interaction, size, inputs)
    queries, keys, values = _cut(blocks, inputs)
    outs, douts = (blocks.of_queries(x, v.shape[2]) for x in (out, dout))

    def query_block(
        sums: tuple[list[Array], Array, Params], i: Int[Array, ""]
    ) -> tuple[tuple[list[Array], Array, Params], list[Array]]:
        dks, dv, d_params = sums
        of_queries, dout_block = [q[i] for q in queries], douts[i]
        delta = dout_block.astype(jnp.float32) * outs[i].astype(jnp.float32)
        delta = delta.sum(-1, keepdims=True)
        if interaction.sinks:
            d_sinks = d_params["sinks"] + sink_gradient(params, lse[i], delta)
            d_params = {**d_params, "sinks": d_sinks}

        def see(gradients: _Gradients, j: Int[Array, ""], visit: Visit) -> _Gradients:
            dks, dv, d_params, dqs = gradients
            logits, pull_back = jax.vjp(
                functools.partial(blocks.logits, visit, i, j),
                params,
                [of_queries[band] for band in visit.bands],
                [keys[band][j] for band in visit.bands],
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
            return _Gradients(dks, dv.at[j].add(more_dv.swapaxes(-1, -2)), d_params, dqs)

        dqs = [jnp.zeros(q.shape, jnp.float32) for q in of_queries]
        gradients = blocks.visit_others(see, _Gradients(dks, dv, d_params, dqs), i)
        dks, dv, d_params, dqs = see(gradients, blocks.diagonal(i), blocks.nearest)
        return (dks, dv, d_params), dqs

    zeros = (
        [jnp.zeros(k.shape, jnp.float32) for k in keys],
        jnp.zeros(values.shape, jnp.float32),
        jax.tree.map(jnp.zeros_like, params),
    )
    (dks, dv, d_params), dqs = jax.lax.scan(query_block, zeros, jnp.arange(queries[0].shape[0]))
    scale = inputs.queries[0].shape[-1] ** -0.5
    dq = tuple(
        (blocks.merged(dq, length) * scale).astype(q.dtype)
        for dq, q in zip(dqs, inputs.queries, strict=True)
    )
    *dk, dv = (
        blocks.merged(x[:, :, :, None], v.shape[1]).astype(y.dtype)
        for x, y in zip((*dks, dv), (*inputs.keys, v), strict=True)
    )
    return (Inputs(dq, tuple(dk), dv, None, None, d_params),)


_attention.defvjp(forward, backward)
