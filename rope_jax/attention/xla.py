"""Attention as whole matrices, for XLA: the fastest at a few hundred tokens, and the reference.

Shapes: B batch, T query length, S key length, N heads, K key-value heads, G = N/K, H head dim,
R = G·rows queries of one chunk, C keys that they can see.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

# Query rows are taken in at most this many chunks: each sees only the keys up to its own end, so
# that nearly half of the work above the diagonal is never done. More chunks compile slower, and
# smaller ones make products too small to be fast.
_MAX_CHUNKS = 8
_MIN_CHUNK = 128


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def xla_attention(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    v: Float[Array, "B S K H"],
    segment_ids: Int[Array, "B S"] | None = None,
    sliding_window: int | None = None,
) -> Float[Array, "B T N H"]:
    """softmax(q·kᵀ/√H)·v over keys at or before the query's index, and of its segment.

    The queries are those of the last T of the S tokens.
    sliding_window: only the last so many keys, the query's own among them (Hugging Face's count).
    The mask goes by index in the window, never by position id: positions may jump. Query head n
    reads key-value head n // G. Softmax is float32. Memory: about B·N·T·S floats, of which more
    than half are kept for the backward pass.

    Differentiable in reverse, by hand: automatic differentiation pads the gradient of every
    slice of k and v back to the whole, which took XLA on CPU longer than the products.
    """
    return _forward(q, k, v, segment_ids, sliding_window)[0]


def _forward(
    q: Array, k: Array, v: Array, segment_ids: Array | None, window: int | None
) -> tuple[Array, Any]:
    queries, keys, values = _queries(q, k), _by_width(k), _by_width(v)
    outputs, weights = [], []
    before = k.shape[1] - q.shape[1]
    for start, end in _chunks(q.shape[1]):
        seen = _seen(before + start, before + end, window)
        logits = _product(_stacked(queries[:, :, :, start:end]), keys[..., seen])
        visible = _visible(segment_ids, before + start, before + end, window)
        logits = logits + _mask(visible, q.shape[2] // k.shape[2])
        # One chain of operations, which XLA fuses. A row always sees itself: its maximum is finite.
        exponentials = jnp.exp(logits - logits.max(-1, keepdims=True))
        chunk = exponentials / exponentials.sum(-1, keepdims=True)
        weights.append(chunk.astype(v.dtype))
        out = _product(weights[-1], values[..., seen].swapaxes(-1, -2))
        outputs.append(_unstacked(out, end - start))
    out = jnp.concatenate(outputs, axis=3).astype(v.dtype)
    return _merged(out), (q, k, v, out, weights)


def _backward(window: int | None, kept: Any, d_merged: Array) -> tuple[Array, Array, Array, None]:
    q, k, v, out, weights = kept
    queries, keys, values = _queries(q, k), _by_width(k), _by_width(v)
    d_out = _split(d_merged, k.shape[2])
    # Σ_s P_rs dP_rs = dO_r · O_r: what every logit of row r loses by normalisation.
    shared = (d_out.astype(jnp.float32) * out.astype(jnp.float32)).sum(-1, keepdims=True)
    before = k.shape[1] - q.shape[1]
    d_queries, d_keys, d_values = [], [], []
    # The last chunk first: it sees every key, and the others add to a part of what it gives.
    for (start, end), chunk in reversed(list(zip(_chunks(q.shape[1]), weights, strict=True))):
        rows, seen = slice(start, end), _seen(before + start, before + end, window)
        d_block = _stacked(d_out[:, :, :, rows])
        d_weights = _product(d_block, values[..., seen])
        d_logits = chunk.astype(jnp.float32) * (d_weights - _stacked(shared[:, :, :, rows]))
        d_logits = d_logits.astype(q.dtype)
        d_query = _product(d_logits, keys[..., seen].swapaxes(-1, -2))
        d_queries.append(_unstacked(d_query, end - start))
        # H before time: these two products are twice as fast that way.
        d_keys.append(_product(_stacked(queries[:, :, :, rows]).swapaxes(-1, -2), d_logits))
        d_values.append(_product(d_block.swapaxes(-1, -2), chunk))
    d_q = jnp.concatenate(d_queries[::-1], axis=3) * q.shape[-1] ** -0.5
    chunks = reversed(list(_chunks(q.shape[1])))
    spans = [_seen(before + start, before + end, window) for start, end in chunks]
    d_k, d_v = (_added(parts, spans).transpose(0, 3, 1, 2) for parts in (d_keys, d_values))
    return _merged(d_q).astype(q.dtype), d_k.astype(k.dtype), d_v.astype(v.dtype), None


xla_attention.defvjp(_forward, _backward)


def _chunks(length: int) -> Iterator[tuple[int, int]]:
    size = max(_MIN_CHUNK, -(-length // _MAX_CHUNKS))
    return ((start, min(start + size, length)) for start in range(0, length, size))


def _seen(start: int, end: int, window: int | None) -> slice:
    """The keys that some query of the tokens start to end sees."""
    return slice(0 if window is None else max(0, start - window + 1), end)


def _visible(
    segment_ids: Int[Array, "B S"] | None, start: int, end: int, window: int | None
) -> Bool[Array, "B|1 rows C"]:
    """Which of those keys each query sees."""
    seen = _seen(start, end, window)
    query, key = jnp.arange(start, end)[:, None], jnp.arange(seen.start, end)[None]
    visible = (query >= key)[None]
    if window is not None:
        visible = visible & (query - key < window)[None]
    if segment_ids is not None:
        visible = visible & (segment_ids[:, start:end, None] == segment_ids[:, None, seen])
    return visible


def _mask(visible: Bool[Array, "B|1 rows C"], groups: int) -> Float[Array, "B|1 1 R C"]:
    """What to add to the logits: 0 where a key is seen, else −∞."""
    mask = jnp.where(visible, 0.0, -jnp.inf).astype(jnp.float32)
    return jnp.tile(mask, (1, groups, 1))[:, None]


def _product(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, preferred_element_type=jnp.float32)


def _added(
    parts: Sequence[Float[Array, "B K H C"]], spans: Sequence[slice]
) -> Float[Array, "B K H S"]:
    """The sum of gradients of spans of keys; the first one ends at the last key."""
    whole = jnp.pad(parts[0], ((0, 0), (0, 0), (0, 0), (spans[0].start, 0)))
    for part, span in zip(parts[1:], spans[1:], strict=True):
        whole = whole.at[..., span].add(part)
    return whole


def _queries(q: Float[Array, "B T N H"], k: Array) -> Float[Array, "B K G T H"]:
    return _split(q * jnp.asarray(q.shape[-1] ** -0.5, q.dtype), k.shape[2])


def _split(x: Float[Array, "B T N H"], kv_heads: int) -> Float[Array, "B K G T H"]:
    """Heads before time: plain batched products, 3 times faster on CPU than time before heads."""
    batch, length, heads, width = x.shape
    return x.reshape(batch, length, kv_heads, heads // kv_heads, width).transpose(0, 2, 3, 1, 4)


def _merged(x: Float[Array, "B K G T H"]) -> Float[Array, "B T N H"]:
    batch, kv_heads, groups, length, width = x.shape
    return x.transpose(0, 3, 1, 2, 4).reshape(batch, length, kv_heads * groups, width)


def _by_width(x: Float[Array, "B S K H"]) -> Float[Array, "B K H S"]:
    return x.transpose(0, 2, 3, 1)


def _stacked(x: Float[Array, "B K G rows X"]) -> Float[Array, "B K R X"]:
    return x.reshape(*x.shape[:2], -1, x.shape[-1])


def _unstacked(x: Float[Array, "B K R X"], rows: int) -> Float[Array, "B K G rows X"]:
    return x.reshape(*x.shape[:2], -1, rows, x.shape[-1])
