"""The normalizations of a decoder, all computed in float32 and returned in the input's dtype."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from rope_jax.config.model import ModelConfig
from rope_jax.kernels.norms import rms_norm


class RMSNorm(nnx.Module):
    """x / √(mean x² + ε) · (offset + scale) over the last axis, where a fresh factor is 1.

    offset: 0 (Llama) or 1 (Gemma).
    """

    def __init__(self, config: ModelConfig, width: int, rngs: nnx.Rngs, offset: int = 0) -> None:
        self.epsilon, self.offset = config.rms_norm_eps, offset
        if not offset:
            rngs.params()  # unused: the other parameters of a seed depend on how many were drawn
        self.scale = nnx.Param(jnp.full(width, 1 - offset, config.param_dtype))

    def __call__(self, x: Float[Array, "*batch width"]) -> Float[Array, "*batch width"]:
        wide = x.reshape(-1, x.shape[-1]).astype(jnp.float32)
        # in float32: bfloat16 would round 1 + scale to multiples of 1/128
        scale = self.offset + self.scale[...].astype(jnp.float32)
        return rms_norm(wide, scale, self.epsilon).reshape(x.shape).astype(x.dtype)


class LayerNorm(nnx.LayerNorm):
    """(x − mean x) / √(var x + ε) · scale + bias over the last axis (GPT-NeoX).

    The variance is that of the centred numbers: mean x² − (mean x)² would cancel in float32 where
    the mean is large.
    """

    def __init__(self, config: ModelConfig, width: int, rngs: nnx.Rngs) -> None:
        super().__init__(
            width,
            epsilon=config.rms_norm_eps,
            dtype=jnp.float32,
            param_dtype=config.param_dtype,
            use_fast_variance=False,
            rngs=rngs,
        )

    def __call__(
        self, x: Float[Array, "*batch width"], *, mask: Array | None = None
    ) -> Float[Array, "*batch width"]:
        return super().__call__(x, mask=mask).astype(x.dtype)


def norm(config: ModelConfig, width: int, rngs: nnx.Rngs) -> nnx.Module:
    """Return a fresh norm of the configured kind, over a last axis of `width` numbers."""
    if config.norm == "layer_norm":
        return LayerNorm(config, width, rngs)
    return RMSNorm(config, width, rngs, offset=int(config.norm == "rms_norm_plus_one"))
