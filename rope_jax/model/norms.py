"""The normalizations of a decoder, all computed in float32 and returned in the input's dtype."""

from typing import ClassVar

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from rope_jax.config.model import ModelConfig
from rope_jax.kernels.norms import rms_norm


class RMSNorm(nnx.Module):
    """x / √(mean x² + ε) · scale over the last axis (Llama). A fresh scale is 1."""

    offset: ClassVar[int] = 0

    def __init__(self, config: ModelConfig, width: int, rngs: nnx.Rngs) -> None:
        self.epsilon = config.rms_norm_eps
        if not self.offset:
            rngs.params()  # unused: the other parameters of a seed depend on how many were drawn
        self.scale = nnx.Param(jnp.full(width, 1 - self.offset, config.param_dtype))

    def __call__(self, x: Float[Array, "*batch width"]) -> Float[Array, "*batch width"]:
        wide = x.reshape(-1, x.shape[-1]).astype(jnp.float32)
        # in float32: bfloat16 would round 1 + scale to multiples of 1/128
        scale = self.offset + self.scale[...].astype(jnp.float32)
        return rms_norm(wide, scale, self.epsilon).reshape(x.shape).astype(x.dtype)


class RMSNormPlusOne(RMSNorm):
    """x / √(mean x² + ε) · (1 + scale) over the last axis (Gemma). A fresh scale is 0."""

    offset: ClassVar[int] = 1


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


_NORMS = {"rms_norm": RMSNorm, "rms_norm_plus_one": RMSNormPlusOne, "layer_norm": LayerNorm}


def norm(config: ModelConfig, width: int, rngs: nnx.Rngs) -> nnx.Module:
    """Return a fresh norm of the configured kind, over a last axis of `width` numbers."""
    return _NORMS[config.norm](config, width, rngs)
