"""The normalizations of a decoder, all computed in float32 and returned in the input's dtype.

Shapes: N heads; an axis of them only where each has weights of its own.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from rope_jax.blocks.base import Norm
from rope_jax.config.model import ModelConfig
from rope_jax.kernels.norms import rms_norm

Shape = tuple[int, ...]
"""[width], or [N, width]."""


class RMSNorm(nnx.Module):
    """x / √(mean x² + ε) · (offset + scale) over the last axis, where a fresh factor is 1.

    offset: 0 (Llama) or 1 (Gemma).
    """

    def __init__(self, config: ModelConfig, shape: Shape, rngs: nnx.Rngs) -> None:
        self.epsilon, self.offset = config.rms_norm_eps, int(config.norm.endswith("plus_one"))
        if not self.offset:
            rngs.params()  # unused: the other parameters of a seed depend on how many were drawn
        self.scale = nnx.Param(jnp.full(shape, 1 - self.offset, config.param_dtype))

    def __call__(self, x: Float[Array, "*batch width"]) -> Float[Array, "*batch width"]:
        wide = x.reshape(-1, x.shape[-1]).astype(jnp.float32)
        # in float32: bfloat16 would round 1 + scale to multiples of 1/128
        scale = self.offset + self.scale[...].astype(jnp.float32)
        if scale.ndim == 1:
            return rms_norm(wide, scale, self.epsilon).reshape(x.shape).astype(x.dtype)
        y = without_weights(wide, self.epsilon).reshape(x.shape)
        return (y * _on_last_axes(scale, x.ndim)).astype(x.dtype)


def without_weights(
    x: Float[Array, "*batch width"], epsilon: float
) -> Float[Array, "*batch width"]:
    """x / √(mean x² + ε) over the last axis."""
    wide = x.reshape(-1, x.shape[-1]).astype(jnp.float32)
    ones = jnp.ones(x.shape[-1], jnp.float32)
    return rms_norm(wide, ones, epsilon).reshape(x.shape).astype(x.dtype)


class LayerNorm(nnx.Module):
    """(x − mean x) / √(var x + ε) · (offset + scale) + bias over the last axis.

    offset: 0 (GPT-NeoX) or 1 (Nemotron). There may be no bias (Cohere), nor a scale (OLMo).

    The variance is that of the centred numbers: mean x² − (mean x)² would cancel in float32 where
    the mean is large.
    """

    def __init__(self, config: ModelConfig, shape: Shape, rngs: nnx.Rngs) -> None:
        self.epsilon, self.offset = config.rms_norm_eps, int(config.norm.endswith("plus_one"))
        self.scale = self.bias = nnx.data(None)
        if config.norm != "layer_norm_plain":
            rngs.params()
            self.scale = nnx.Param(jnp.full(shape, 1 - self.offset, config.param_dtype))
        if config.norm in ("layer_norm", "layer_norm_plus_one") and len(shape) == 1:
            rngs.params()
            self.bias = nnx.Param(jnp.zeros(shape, config.param_dtype))

    def __call__(self, x: Float[Array, "*batch width"]) -> Float[Array, "*batch width"]:
        wide = x.astype(jnp.float32)
        centred = wide - wide.mean(-1, keepdims=True)
        factor = jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + self.epsilon)
        if self.scale is not None:
            factor = factor * (self.offset + _on_last_axes(self.scale, x.ndim))
        y = centred * factor
        if self.bias is not None:
            y = y + _on_last_axes(self.bias, x.ndim)
        return y.astype(x.dtype)


def _on_last_axes(weights: Any, ndim: int) -> Float[Array, "..."]:
    wide = weights[...].astype(jnp.float32)
    return wide.reshape((1,) * (ndim - wide.ndim) + wide.shape)


def norm(config: ModelConfig, declared: Norm, rngs: nnx.Rngs) -> nnx.Module:
    """Return a fresh norm of the configured kind."""
    kind = LayerNorm if config.norm.startswith("layer_norm") else RMSNorm
    shape = (declared.width,) if declared.heads is None else (declared.heads, declared.width)
    if declared.epsilon is not None:
        config = config.model_copy(update={"rms_norm_eps": declared.epsilon})
    return kind(config, shape, rngs)
