"""The normalizations of a decoder, all computed in float32 and returned in the input's dtype.

Shapes: N heads; an axis of them only where each has weights of its own.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from rope_jax.blocks.base import DecoderSpec, parameter
from rope_jax.collectives import EVERYWHERE, TENSOR, Sharding
from rope_jax.kernels.norms import rms_norm


class RMSNorm(nnx.Module):
    """x / √(mean x² + ε) · (offset + scale) over the last axis, where a fresh factor is 1.

    offset: 0 (Llama) or 1 (Gemma).
    """

    def __init__(
        self, spec: DecoderSpec, shape: tuple[int, ...], epsilon: float, rngs: nnx.Rngs
    ) -> None:
        self.epsilon, self.offset = epsilon, _offset(spec)
        self.scale = _scale(spec, shape, rngs)

    def __call__(self, x: Float[Array, "*batch width"]) -> Float[Array, "*batch width"]:
        x_float32 = x.reshape(-1, x.shape[-1]).astype(jnp.float32)
        # in float32: bfloat16 would round 1 + scale to multiples of 1/128
        scale = self.offset + self.scale[...].astype(jnp.float32)
        if scale.ndim == 1:
            return rms_norm(x_float32, scale, self.epsilon).reshape(x.shape).astype(x.dtype)
        y = without_weights(x_float32, self.epsilon).reshape(x.shape)
        return (y * _on_last_axes(scale, x.ndim)).astype(x.dtype)


class LayerNorm(nnx.Module):
    """(x − mean x) / √(var x + ε) · (offset + scale) + bias over the last axis.

    offset: 0 (GPT-NeoX) or 1 (Nemotron). There may be no bias (Cohere), nor a scale (OLMo).

    The variance is that of the centred numbers: mean x² − (mean x)² would cancel in float32 where
    the mean is large.
    """

    def __init__(
        self, spec: DecoderSpec, shape: tuple[int, ...], epsilon: float, rngs: nnx.Rngs
    ) -> None:
        self.epsilon, self.offset = epsilon, _offset(spec)
        self.scale: nnx.Param[Array] | None = nnx.data(None)
        self.bias: nnx.Param[Array] | None = nnx.data(None)
        if spec.norm != "layer_norm_plain":
            self.scale = _scale(spec, shape, rngs)
        if spec.norm in ("layer_norm", "layer_norm_plus_one") and len(shape) == 1:
            self.bias = parameter(spec, shape, rngs, initial=0.0)

    def __call__(self, x: Float[Array, "*batch width"]) -> Float[Array, "*batch width"]:
        x_float32 = x.astype(jnp.float32)
        centred = x_float32 - x_float32.mean(-1, keepdims=True)
        factor = jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + self.epsilon)
        if self.scale is not None:
            factor = factor * (self.offset + _on_last_axes(self.scale[...], x.ndim))
        y = centred * factor
        if self.bias is not None:
            y = y + _on_last_axes(self.bias[...], x.ndim)
        return y.astype(x.dtype)


Norm = RMSNorm | LayerNorm


def norm(
    spec: DecoderSpec,
    width: int,
    rngs: nnx.Rngs,
    *,
    heads: int | None = None,
    epsilon: float | None = None,
) -> Norm:
    """Return a fresh norm of the model's kind over a last axis of `width`.

    heads: how many heads, on the axis before, have weights of their own, but no biases; None: all
        share them, and every device has all of them. epsilon: None: the model's.
    """
    cls = LayerNorm if spec.norm.startswith("layer_norm") else RMSNorm
    shape = (width,) if heads is None else (heads, width)
    return cls(spec, shape, spec.rms_norm_eps if epsilon is None else epsilon, rngs)


def without_weights(
    x: Float[Array, "*batch width"], epsilon: float
) -> Float[Array, "*batch width"]:
    """x / √(mean x² + ε) over the last axis."""
    x_float32 = x.reshape(-1, x.shape[-1]).astype(jnp.float32)
    ones = jnp.ones(x.shape[-1], jnp.float32)
    return rms_norm(x_float32, ones, epsilon).reshape(x.shape).astype(x.dtype)


def _offset(spec: DecoderSpec) -> int:
    return int(spec.norm.endswith("plus_one"))


def _scale(spec: DecoderSpec, shape: tuple[int, ...], rngs: nnx.Rngs) -> nnx.Param[Array]:
    sharding = Sharding((TENSOR, None)) if len(shape) == 2 else EVERYWHERE
    if spec.norm == "rms_norm_plus_one":  # draws nothing: other parameters depend on the count
        value = jnp.zeros(shape, spec.param_dtype)
        return nnx.Param(value, split=sharding)
    return parameter(spec, shape, rngs, initial=1.0 - _offset(spec), sharding=sharding)


def _on_last_axes(weights: Float[Array, "*axes"], ndim: int) -> Float[Array, "..."]:
    weights = weights.astype(jnp.float32)
    return weights.reshape((1,) * (ndim - weights.ndim) + weights.shape)
