"""Causal attention: one signature, several backends, chosen by name.

Shapes: B batch, T query length, S key length, N heads, K key-value heads, G = N/K, H head dim.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

Attention = Callable[
    [
        Float[Array, "B T N H"],
        Float[Array, "B T K H"],
        Float[Array, "B T K H"],
        Int[Array, "B T"] | None,
    ],
    Float[Array, "B T N H"],
]

# Query rows are taken in at most this many chunks: each sees only the keys up to its own end, so
# that nearly half of the work above the diagonal is never done. More chunks compile slower.
_MAX_CHUNKS = 8
_MIN_CHUNK = 64


def xla_attention(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B T K H"],
    v: Float[Array, "B T K H"],
    segment_ids: Int[Array, "B T"] | None = None,
) -> Float[Array, "B T N H"]:
    """softmax(q·kᵀ/√H)·v over keys at or before the query's index, and of its segment.

    The mask goes by index in the window, never by position id: positions may jump. Query head n
    reads key-value head n // G. Softmax is float32. Memory: B·N·T·S/8 floats at a time.
    """
    batch, length, heads, width = q.shape
    kv_heads = k.shape[2]
    groups = heads // kv_heads
    # Heads before time: two plain batched matmuls, 3 times faster on CPU than heads after time.
    q = (q * jnp.asarray(width**-0.5, q.dtype)).reshape(batch, length, kv_heads, groups, width)
    q = q.transpose(0, 2, 3, 1, 4)  # B K G T H
    k, v = k.transpose(0, 2, 3, 1), v.transpose(0, 2, 1, 3)  # B K H S, B K S H
    index = jnp.arange(length)
    size = max(_MIN_CHUNK, -(-length // _MAX_CHUNKS))
    outputs = []
    for start in range(0, length, size):
        end = min(start + size, length)
        rows = end - start
        visible = (index[start:end, None] >= index[None, :end])[None, None, None]
        if segment_ids is not None:
            same = segment_ids[:, start:end, None] == segment_ids[:, None, :end]
            visible = visible & same[:, None, None]
        block = q[:, :, :, start:end].reshape(batch, kv_heads, groups * rows, width)
        logits = jnp.matmul(block, k[..., :end], preferred_element_type=jnp.float32)
        logits = logits.reshape(batch, kv_heads, groups, rows, end)
        logits = jnp.where(visible, logits, -jnp.inf)
        # A row always sees itself, so its maximum is finite.
        weights = jnp.exp(logits - jax.lax.stop_gradient(logits.max(-1, keepdims=True)))
        total = weights.sum(-1, keepdims=True)
        weights = weights.astype(v.dtype).reshape(batch, kv_heads, groups * rows, end)
        out = jnp.matmul(weights, v[:, :, :end], preferred_element_type=jnp.float32)
        # Dividing after the product: H numbers a row instead of S.
        outputs.append(out.reshape(batch, kv_heads, groups, rows, width) / total)
    out = jnp.concatenate(outputs, axis=3).astype(v.dtype)
    return out.transpose(0, 3, 1, 2, 4).reshape(batch, length, heads, width)


BACKENDS: dict[str, Attention] = {"xla": xla_attention}
