"""Attention's backends by name, and what each of them needs.

Shapes: B batch, T query length, S key length, N heads, K key-value heads, H head dim.
"""

from collections.abc import Callable

import jax
from jaxtyping import Array, Float, Int

from rope_jax.attention.blockwise import blockwise_attention
from rope_jax.attention.cudnn import cudnn_attention
from rope_jax.attention.xla import xla_attention
from rope_jax.config.model import AttentionName, ModelConfig
from rope_jax.errors import UserError

Attention = Callable[
    [
        Float[Array, "B T N H"],
        Float[Array, "B S K H"],
        Float[Array, "B S K H"],
        Int[Array, "B S"] | None,
        int | None,
    ],
    Float[Array, "B T N H"],
]


def _splash(
    q: Array, k: Array, v: Array, segment_ids: Array | None = None, window: int | None = None
) -> Array:
    from rope_jax.attention.splash import splash_attention  # slow to import, for TPUs alone

    return splash_attention(q, k, v, segment_ids, window)


BACKENDS: dict[AttentionName, Attention] = {
    "xla": xla_attention,
    "blockwise": blockwise_attention,
    "cudnn": cudnn_attention,
    "splash": _splash,
}


def check_backend(model: ModelConfig) -> None:
    """UserError where the model's backend cannot run here: another one is never taken instead."""
    reason = _missing(model, jax.default_backend())
    if reason:
        raise UserError(
            f"model.attention: {model.attention} {reason}; blockwise and xla run everywhere"
        )


def _missing(model: ModelConfig, platform: str) -> str | None:
    """What the model's backend lacks on a platform."""
    if model.attention == "splash" and platform != "tpu":
        return f"is a kernel for TPUs, and this is {platform}"
    if model.attention == "cudnn":
        if platform != "gpu" or "rocm" in jax.devices()[0].client.platform_version:
            return f"is a kernel for NVIDIA GPUs, and this is {platform}"
        if model.dtype == "float32":
            return "computes in 16 bits, and model.dtype is float32; set model.dtype to bfloat16"
        if model.heads_width % 8 or model.heads_width > 256:
            return f"needs heads of a multiple of 8, at most 256, not {model.heads_width}"
    return None
