"""Our own kernel for CPUs: float32, memory linear in the length. See kernels/attention.cc.

Shapes: B batch, T query length, S key length, N heads, K key-value heads, H head dim of queries and
keys, V that of values, C chunks of keys.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from rope_jax.attention.blocks import places_in_document
from rope_jax.attention.kept import attended
from rope_jax.kernels.loading import ATTENTION_BACKWARD, ATTENTION_FORWARD, load_kernels
from rope_jax.positions.zigzag import ZigZag

# The backward pass works on one key-value head and one chunk of keys at a time. These numbers
# decide how many there are. They do not depend on the processor, so neither does the result.
_WANTED_TASKS, _LEAST_KEYS = 16, 512


def cpu_attention(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    v: Float[Array, "B S K V"],
    segment_ids: Int[Array, "B S"] | None = None,
    sliding_window: int | None = None,
    part: ZigZag | None = None,
) -> Float[Array, "B T N V"]:
    """softmax(q·kᵀ/√H)·v as in `xla_attention`, by one call of the kernel, which is all float32.

    segment_ids: which document a token belongs to; the tokens of a document are consecutive.

    Differentiable in reverse mode. The backward pass keeps q, k, v, the output and one number per
    query and head, and computes the probabilities again. RuntimeError if there is no kernel.
    """
    if load_kernels() is None:
        raise RuntimeError("attention cpu: the kernels were not compiled")
    first, last = _seen(q.shape[1], v, segment_ids, sliding_window, part)
    wide = (x.astype(jnp.float32) for x in (q, k, v))
    return _attention(*wide, first, last).astype(v.dtype)


def _seen(
    queries: int,
    v: Float[Array, "B S K V"],
    segment_ids: Int[Array, "B S"] | None,
    sliding_window: int | None,
    part: ZigZag | None,
) -> tuple[Int[Array, "B T"], Int[Array, "B T"]]:
    """Return the first and the last key that each query sees: it sees all between them."""
    batch, keys = v.shape[:2]
    index = jnp.arange(keys, dtype=jnp.int32)[None]
    first = jnp.zeros_like(index)
    if segment_ids is not None:
        first = index - places_in_document(segment_ids)
    if sliding_window is not None:
        first = jnp.maximum(first, index - sliding_window + 1)
    own = [x[:, -queries:] if part is None else part.own(x, 1) for x in (first, index)]
    first, last = (jnp.broadcast_to(x, (batch, queries)).astype(jnp.int32) for x in own)
    return first, last


class _Saved(NamedTuple):
    """Arrays that the forward pass keeps for the backward pass."""

    q: Float[Array, "B T N H"]
    k: Float[Array, "B S K H"]
    v: Float[Array, "B S K V"]
    first: Int[Array, "B T"]
    last: Int[Array, "B T"]
    out: Float[Array, "B T N V"]
    lse: Float[Array, "B N T"]


@jax.custom_vjp
def _attention(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    v: Float[Array, "B S K V"],
    first: Int[Array, "B T"],
    last: Int[Array, "B T"],
) -> Float[Array, "B T N V"]:
    return _forward(q, k, v, first, last)[0]


def _forward(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    v: Float[Array, "B S K V"],
    first: Int[Array, "B T"],
    last: Int[Array, "B T"],
) -> tuple[Float[Array, "B T N V"], _Saved]:
    batch, queries, heads, width = q.shape
    results = _floats(batch, queries, heads, v.shape[-1]), _floats(batch, heads, queries)
    call = jax.ffi.ffi_call(ATTENTION_FORWARD, results, vmap_method="sequential")
    out, lse = attended(call(q, k, v, first, last, scale=np.float32(width**-0.5)))
    return out, _Saved(q, k, v, first, last, out, lse)


def _backward(
    saved: _Saved, dout: Float[Array, "B T N V"]
) -> tuple[Float[Array, "B T N H"], Float[Array, "B S K H"], Float[Array, "B S K V"], None, None]:
    q, k, v = saved.q, saved.k, saved.v
    chunks = -(-_WANTED_TASKS // max(1, k.shape[0] * k.shape[2]))
    chunks = max(1, min(chunks, -(-k.shape[1] // _LEAST_KEYS)))
    results = _floats(chunks, *q.shape), _floats(*k.shape), _floats(*v.shape)
    call = jax.ffi.ffi_call(ATTENTION_BACKWARD, results, vmap_method="sequential")
    dq, dk, dv = call(*saved, dout, scale=np.float32(q.shape[-1] ** -0.5))
    return dq[0] if chunks == 1 else dq.sum(0), dk, dv, None, None


_attention.defvjp(_forward, _backward)


def _floats(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)
