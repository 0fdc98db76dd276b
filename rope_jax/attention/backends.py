"""The attention backends by name, and what each of them needs.

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
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    v: Float[Array, "B S K H"],
    segment_ids: Int[Array, "B S"] | None = None,
    sliding_window: int | None = None,
) -> Float[Array, "B T N H"]:
    from rope_jax.attention.splash import splash_attention  # slow to import, and only for TPUs

    return splash_attention(q, k, v, segment_ids, sliding_window)


BACKENDS: dict[AttentionName, Attention] = {
    "xla": xla_attention,
    "blockwise": blockwise_attention,
    "cudnn": cudnn_attention,
    "splash": _splash,
}


def check_backend(model: ModelConfig) -> None:
    """Raise UserError if the model's backend cannot run here. No other one is ever substituted."""
    reason = _obstacle(model, jax.default_backend())
    if reason:
        raise UserError(
            f"model.attention: {model.attention} {reason}; blockwise and xla run everywhere"
        )


def _obstacle(model: ModelConfig, platform: str) -> str | None:
    """Return why the model's backend cannot run on a platform, or None if it can."""
    if model.attention == "splash" and platform != "tpu":
        return f"needs a TPU, and JAX runs on {platform} here"
    if model.attention == "cudnn":
        if platform != "gpu" or "rocm" in jax.devices()[0].client.platform_version:
            return f"needs an NVIDIA GPU, and JAX runs on {platform} here"
        if model.dtype == "float32":
            return "computes in 16 bits, but model.dtype is float32; set model.dtype=bfloat16"
        if model.heads_width % 8 or model.heads_width > 256:
            return (
                f"needs a head width that is a multiple of 8, at most 256, not {model.heads_width}"
            )
    return None
