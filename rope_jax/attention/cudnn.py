"""cuDNN's flash attention, for NVIDIA GPUs, through `jax.nn.dot_product_attention`.

Shapes: B batch, T query length, S key length, N heads, K key-value heads, H head dim.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rope_jax.positions.zigzag import ZigZag


def cudnn_attention(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    v: Float[Array, "B S K H"],
    segment_ids: Int[Array, "B S"] | None = None,
    sliding_window: int | None = None,
    part: ZigZag | None = None,
) -> Float[Array, "B T N H"]:
    """softmax(q·kᵀ/√H)·v as in `xla_attention`, in bfloat16 or float16.

    Memory is linear in S if each row is one document. Document borders need a mask, which is one
    array of B·S·S bytes. ValueError if devices share the window: cuDNN masks by the number of a
    query among its arguments, not by its index in the window.
    """
    if part is not None:
        raise ValueError("cudnn cannot split a window over devices")
    before = k.shape[1] - q.shape[1]
    # cuDNN aligns the first query with the first key, so pad the queries to S.
    q = jnp.pad(q, ((0, 0), (before, 0), (0, 0), (0, 0)))
    mask = None
    if segment_ids is not None:
        mask = (segment_ids[:, :, None] == segment_ids[:, None, :])[:, None]
    out = jax.nn.dot_product_attention(
        q,
        k,
        v,
        mask=mask,
        is_causal=True,
        # (keys before, keys after); the count leaves out the query's own key
        local_window_size=None if sliding_window is None else (sliding_window - 1, 0),
        implementation="cudnn",
    )
    return out[:, before:]
