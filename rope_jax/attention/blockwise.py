"""Attention in blocks with an online softmax: memory grows with the length, not with its square.

After Rabe & Staats, arXiv 2112.05682, and FlashAttention-2, arXiv 2307.08691. Two loops, over
blocks of queries and over the blocks of keys that they can see. How often the inner one turns
follows from the outer one's counter alone: so blocks above the diagonal, and those before a sliding
window, are skipped under vmap too, and the program is as long for 64 tokens as for 65,536.

Shapes: B batch, T query length, S key length, N heads, K key-value heads, G = N/K, H head dim,
b tokens a block, m and n blocks of queries and of keys.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

Scores = Callable[
    [
        Any,
        Float[Array, "B K G b H"],
        Float[Array, "B K b H"],
        Int[Array, " b"],
        Int[Array, " b"],
    ],
    Float[Array, "B K G b b"],
]

# Longer blocks have larger products, shorter ones leave out more above the diagonal.
BLOCK = 512


def dot_product(
    arguments: Any,
    q: Float[Array, "B K G b H"],
    k: Float[Array, "B K b H"],
    query_index: Int[Array, " b"],
    key_index: Int[Array, " b"],
) -> Float[Array, "B K G b b"]:
    """q·kᵀ, float32: the plain scores."""
    return _unstacked(_product(_stacked(q), k.swapaxes(-1, -2)), q.shape[2])


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
    """softmax(q·kᵀ/√H)·v as `xla_attention`, in memory linear in S.

    scores(arguments, q/√H, k, query_index, key_index): the logits of a block of queries and a
        block of keys, whose indices in the window it is told; what no query may see is masked
        afterwards. Here a bias comes in (slopes · distance), or a position map (queries and keys
        rotated by what the distance of the two blocks asks for). Keys before the window's start
        have negative indices, and count for nothing.
    arguments: what `scores` needs: a tree of arrays, differentiable. Closed over instead, arrays
        would get no gradient.
    block: tokens a block at most; all are equally long, within one.

    Softmax is float32. The backward pass keeps q, k, v, the output and one number a query and
    head, and computes the weights anew.
    """
    static = sliding_window, scores, _even(k.shape[1], block)
    return _attention(static, q, k, v, segment_ids, arguments)


def _even(length: int, block: int) -> int:
    """The block size that cuts a length into as few blocks, as equal as can be."""
    return -(-length // -(-length // block))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(
    static: tuple[int | None, Scores, int],
    q: Array,
    k: Array,
    v: Array,
    segment_ids: Array | None,
    arguments: Any,
) -> Array:
    return _forward(static, q, k, v, segment_ids, arguments)[0]


def _forward(
    static: tuple[int | None, Scores, int],
    q: Array,
    k: Array,
    v: Array,
    segment_ids: Array | None,
    arguments: Any,
) -> tuple[Array, Any]:
    cut = _Blocks(static, q.shape[1], k.shape[1], segment_ids)
    queries, keys, values = cut.of_queries(q, k.shape[2]), cut.of_keys(k), cut.of_keys(v)

    def of_query_block(_: None, i: Array) -> tuple[None, tuple[Array, Array]]:
        diagonal = cut.diagonal(i)

        # The diagonal first: there every query sees itself, so no maximum is ever −∞.
        first = cut.logits(arguments, queries[i], keys[diagonal], i, diagonal, on_diagonal=True)
        top = first.max(-1, keepdims=True)
        weights = jnp.exp(first - top)
        total = weights.sum(-1, keepdims=True)
        out = _weighted(weights, values[diagonal])

        def step(j: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            old_top, total, out = carry
            block = cut.logits(arguments, queries[i], keys[j], i, j)
            top = jnp.maximum(old_top, block.max(-1, keepdims=True))
            shrunk, weights = jnp.exp(old_top - top), jnp.exp(block - top)
            total = shrunk * total + weights.sum(-1, keepdims=True)
            return top, total, shrunk * out + _weighted(weights, values[j])

        carry = top, total, out
        top, total, out = jax.lax.fori_loop(cut.first_seen(diagonal), diagonal, step, carry)
        return None, ((out / total).astype(v.dtype), top + jnp.log(total))

    _, (out, log_total) = jax.lax.scan(of_query_block, None, jnp.arange(queries.shape[0]))
    merged = cut.merged(out, q.shape[1])
    return merged, (q, k, v, segment_ids, arguments, merged, log_total)


def _backward(
    static: tuple[int | None, Scores, int], kept: Any, d_merged: Array
) -> tuple[Array, Array, Array, None, Any]:
    q, k, v, segment_ids, arguments, merged, log_total = kept
    cut = _Blocks(static, q.shape[1], k.shape[1], segment_ids)
    kv_heads = k.shape[2]
    queries, keys, values = cut.of_queries(q, kv_heads), cut.of_keys(k), cut.of_keys(v)
    d_outs = cut.of_queries(d_merged, kv_heads, scaled=False)
    outs = cut.of_queries(merged, kv_heads, scaled=False)

    def of_query_block(carry: Any, i: Array) -> tuple[Any, Array]:
        query, d_out = queries[i], d_outs[i]
        # Σ_s P_rs dP_rs = dO_r · O_r: what every logit of row r loses by normalisation.
        product = d_out.astype(jnp.float32) * outs[i].astype(jnp.float32)
        shared = product.sum(-1, keepdims=True)

        def step(j: Array, carry: Any, on_diagonal: bool = False) -> Any:
            d_keys, d_values, d_arguments, d_query = carry

            def logits(arguments: Any, query: Array, key: Array) -> Array:
                return cut.logits(arguments, query, key, i, j, on_diagonal=on_diagonal)

            block, pull = jax.vjp(logits, arguments, query, keys[j])
            weights = jnp.exp(block - log_total[i])
            d_weights = _unstacked(
                _product(_stacked(d_out), values[j].swapaxes(-1, -2)), query.shape[2]
            )
            d_block = weights * (d_weights - shared)
            more_arguments, more_query, d_key = pull(d_block)
            stacked = _stacked(weights.astype(v.dtype))
            d_value = _product(stacked.swapaxes(-1, -2), _stacked(d_out))
            return (
                d_keys.at[j].add(d_key.astype(jnp.float32)),
                d_values.at[j].add(d_value),
                jax.tree.map(jnp.add, d_arguments, more_arguments),
                d_query + more_query.astype(jnp.float32),
            )

        diagonal = cut.diagonal(i)
        carry = *carry, jnp.zeros(query.shape, jnp.float32)
        carry = jax.lax.fori_loop(cut.first_seen(diagonal), diagonal, step, carry)
        *carry, d_query = step(diagonal, carry, on_diagonal=True)
        return tuple(carry), d_query

    zeros = (
        jnp.zeros(keys.shape, jnp.float32),
        jnp.zeros(values.shape, jnp.float32),
        jax.tree.map(jnp.zeros_like, arguments),
    )
    (d_keys, d_values, d_arguments), d_queries = jax.lax.scan(
        of_query_block, zeros, jnp.arange(queries.shape[0])
    )
    d_q = cut.merged(d_queries, q.shape[1]) * q.shape[-1] ** -0.5
    d_k, d_v = (cut.merged(x[:, :, :, None], k.shape[1]) for x in (d_keys, d_values))
    return d_q.astype(q.dtype), d_k.astype(k.dtype), d_v.astype(v.dtype), None, d_arguments


_attention.defvjp(_forward, _backward)


class _Blocks:
    """How queries and keys are cut: ends aligned, so that what is filled up is before the start."""

    def __init__(
        self,
        static: tuple[int | None, Scores, int],
        queries: int,
        keys: int,
        segment_ids: Int[Array, "B S"] | None,
    ) -> None:
        self.window, self.scores, self.block = static
        self.queries_before, self.keys_before = -queries % self.block, -keys % self.block
        #: key blocks before that of the first query block's last row
        self.ahead = (keys + self.keys_before - queries - self.queries_before) // self.block
        self.segment_ids = None
        if segment_ids is not None:
            padded = jnp.pad(segment_ids, ((0, 0), (self.keys_before, 0)), mode="edge")
            cut = padded.reshape(padded.shape[0], -1, self.block)
            self.segment_ids = cut.swapaxes(0, 1)  # [n, B, b]

    def diagonal(self, i: Array) -> Array:
        """The key block of query block i's own tokens, the last that it sees."""
        return i + self.ahead

    def first_seen(self, diagonal: Array) -> Array:
        """The first key block that some query of that block sees."""
        if self.window is None:
            return jnp.zeros_like(diagonal)
        return jnp.maximum(0, (diagonal * self.block - self.window + 1) // self.block)

    def logits(
        self,
        arguments: Any,
        query: Array,
        key: Array,
        i: Array,
        j: Array,
        *,
        on_diagonal: bool = False,
    ) -> Float[Array, "B K G b b"]:
        """Of query block i and key block j, −∞ where a query does not see a key.

        on_diagonal: whether j is known to be the last block that query block i sees. Its mask is
        then a constant: computed from i in the loop, it costs as much as all else.
        """
        rows = self.diagonal(i) * self.block - self.keys_before + jnp.arange(self.block)
        columns = j * self.block - self.keys_before + jnp.arange(self.block)
        logits = self.scores(arguments, query, key, rows, columns)
        within = np.subtract.outer(np.arange(self.block), np.arange(self.block))
        if on_diagonal:
            seen = (within >= 0) & (within < (self.window or self.block))
            logits = logits + np.where(seen, 0, -np.inf).astype(np.float32)[None, None, None]
        elif self.window is not None:
            distance = within.astype(np.int32) + (self.diagonal(i) - j) * self.block
            logits = logits + _hidden(distance >= self.window)[None, None, None]
        if self.keys_before:
            # Not −∞: a query from before the start sees nothing else, and its sum must not be 0.
            padding = jnp.where(columns < 0, np.float32(-1e30), np.float32(0))
            logits = logits + padding[None, None, None, None]
        if self.segment_ids is not None:
            own, others = self.segment_ids[self.diagonal(i)], self.segment_ids[j]
            logits = logits + _hidden(own[:, :, None] != others[:, None, :])[:, None, None]
        return logits

    def of_queries(
        self, x: Float[Array, "B T N H"], kv_heads: int, scaled: bool = True
    ) -> Float[Array, "m B K G b H"]:
        if scaled:
            x = x * jnp.asarray(x.shape[-1] ** -0.5, x.dtype)
        x = jnp.pad(x, ((0, 0), (self.queries_before, 0), (0, 0), (0, 0)))
        x = x.reshape(x.shape[0], -1, self.block, kv_heads, x.shape[2] // kv_heads, x.shape[3])
        return x.transpose(1, 0, 3, 4, 2, 5)

    def of_keys(self, x: Float[Array, "B S K H"]) -> Float[Array, "n B K b H"]:
        x = jnp.pad(x, ((0, 0), (self.keys_before, 0), (0, 0), (0, 0)))
        x = x.reshape(x.shape[0], -1, self.block, *x.shape[2:])
        return x.transpose(1, 0, 3, 2, 4)

    def merged(self, x: Float[Array, "m B K G b H"], length: int) -> Float[Array, "B T N H"]:
        """The last `length` tokens, blocks and heads put together."""
        filled = x.shape[0] * self.block
        x = x.transpose(1, 0, 4, 2, 3, 5).reshape(x.shape[1], filled, -1, x.shape[-1])
        return x[:, filled - length :]


def _hidden(mask: Any) -> Array:
    """What to add to logits: −∞ where the mask is set."""
    return jnp.where(mask, -jnp.inf, 0.0).astype(jnp.float32)


def _product(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, preferred_element_type=jnp.float32)


def _weighted(
    weights: Float[Array, "B K G b b"], values: Float[Array, "B K b H"]
) -> Float[Array, "B K G b H"]:
    stacked = _stacked(weights.astype(values.dtype))
    return _unstacked(_product(stacked, values), weights.shape[2])


def _stacked(x: Float[Array, "B K G b X"]) -> Float[Array, "B K G*b X"]:
    """The queries of one key-value head as the rows of one matrix."""
    return x.reshape(*x.shape[:2], -1, x.shape[-1])


def _unstacked(x: Float[Array, "B K G*b X"], groups: int) -> Float[Array, "B K G b X"]:
    return x.reshape(*x.shape[:2], groups, -1, x.shape[-1])
