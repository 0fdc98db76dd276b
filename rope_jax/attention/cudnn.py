"""`cudnn`: cuDNN's flash attention, through `jax.nn.dot_product_attention`.

Shapes: B batch, T query length, S key length, N heads, K key-value heads, H head dim of queries and
keys, V that of values.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rope_jax.attention.base import Inputs
from rope_jax.attention.blockwise import BLOCK, PlainKernel


class Cudnn(PlainKernel):
    """cuDNN's kernel for NVIDIA GPUs, in bfloat16.

    Memory is linear in S if each row is one document. Document borders need a mask, which is one
    array of B·S·S bytes.
    """

    name: ClassVar[str] = "cudnn"
    summary: ClassVar[str] = "kernel for GPU"
    platforms: ClassVar[tuple[str, ...]] = ("gpu",)
    splits_windows: ClassVar[bool] = False  # it masks by a query's number among its arguments

    def obstacle(self, platform: str, dtype: str, head_dim: int) -> str | None:
        if platform != "gpu" or "rocm" in jax.devices()[0].client.platform_version:
            return f"needs an NVIDIA GPU, but the platform is {platform}"
        if dtype == "float32":
            return (
                "computes in 16 bits, but model.dtype is float32; set model.dtype=bfloat16 or "
                "model.product_dtype=bfloat16"
            )
        if head_dim % 8 or head_dim > 256:
            return f"needs a head width that is a multiple of 8, at most 256, not {head_dim}"
        return None

    def block(self, rows: int) -> int:
        # Each pair of blocks launches a dozen kernels, so short ones leave the GPU idle. Longer
        # ones are for few heads: the scores of a pair stay within 256 MiB.
        return next((size for size in (2048, 1024) if rows * size**2 <= 2**26), BLOCK)

    def attend_plain(self, inputs: Inputs, sliding_window: int | None) -> Float[Array, "B T N V"]:
        if inputs.part is not None:
            raise ValueError("cudnn cannot split a window over devices")
        (q,), (k,), v, segment_ids, *_ = inputs
        before, scale, width = k.shape[1] - q.shape[1], q.shape[3] ** -0.5, v.shape[3]
        # cuDNN aligns the first query with the first key, so pad the queries to S.
        q = jnp.pad(q, ((0, 0), (before, 0), (0, 0), (0, 0)))
        widest = max(k.shape[3], width)
        q, k, v = (jnp.pad(x, ((0, 0),) * 3 + ((0, widest - x.shape[3]),)) for x in (q, k, v))
        mask = None
        if segment_ids is not None:
            mask = (segment_ids[:, :, None] == segment_ids[:, None, :])[:, None]
        out = jax.nn.dot_product_attention(
            q,
            k,
            v,
            mask=mask,
            is_causal=True,
            scale=scale,
            # (keys before, keys after); the count leaves out the query's own key
            local_window_size=None if sliding_window is None else (sliding_window - 1, 0),
            implementation="cudnn",
        )
        return out[:, before:, :, :width]
