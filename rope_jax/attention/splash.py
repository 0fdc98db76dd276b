"""Splash attention: JAX's Pallas kernel for TPUs, linear in memory, skipping what is masked.

Shapes: B batch, T query length, S key length, N heads, K key-value heads, H head dim.
"""

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel as kernel,
)
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_mask as masks,
)
from jaxtyping import Array, Float, Int

_LANES = 128  # the kernel's block sizes are multiples of this
_BLOCK = 512


def splash_attention(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    v: Float[Array, "B S K H"],
    segment_ids: Int[Array, "B S"] | None = None,
    sliding_window: int | None = None,
    *,
    interpret: bool = False,
) -> Float[Array, "B T N H"]:
    """softmax(q·kᵀ/√H)·v as in `xla_attention`, by the TPU kernel.

    interpret: run without a TPU, slowly, for tests.

    The window is padded at its end to whole blocks, where causality hides the padding.
    """
    queries, keys = q.shape[1], k.shape[1]
    size = -(-keys // _LANES) * _LANES
    if size > _BLOCK:
        size = -(-keys // _BLOCK) * _BLOCK
    # The kernel computes all S rows of queries and skips none; those before the last T are zeros.
    q = jnp.pad(q, ((0, 0), (keys - queries, size - keys), (0, 0), (0, 0)))
    k, v = (jnp.pad(x, ((0, 0), (0, size - keys), (0, 0), (0, 0))) for x in (k, v))
    ids = None
    if segment_ids is not None:
        padded = jnp.pad(segment_ids, ((0, 0), (0, size - keys)), mode="edge")
        ids = kernel.SegmentIds(padded, padded)
    shape = size, size
    mask: masks.Mask = masks.CausalMask(shape)
    if sliding_window is not None and sliding_window < keys:
        # (how far back, how far ahead); the kernel's count leaves out the query's own key
        mask = masks.LocalMask(shape, (sliding_window - 1, 0), 0)
    block = min(size, _BLOCK)
    attend = kernel.make_splash_mha(
        masks.MultiHeadMask([mask] * q.shape[2]),
        block_sizes=kernel.BlockSizes(
            block_q=block,
            block_kv=block,
            block_kv_compute=block,
            block_q_dkv=block,
            block_kv_dkv=block,
            block_kv_dkv_compute=block,
            block_q_dq=block,
            block_kv_dq=block,
        ),
        head_shards=1,
        q_seq_shards=1,
        interpret=interpret,
    )
    # The kernel takes heads first, one row at a time, and does not divide by √H.
    q = q * jnp.asarray(q.shape[-1] ** -0.5, q.dtype)
    q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
    if ids is None:
        out = jax.vmap(lambda q, k, v: attend(q, k, v))(q, k, v)
    else:
        out = jax.vmap(attend)(q, k, v, ids)
    return out.swapaxes(1, 2)[:, keys - queries : keys].astype(v.dtype)
