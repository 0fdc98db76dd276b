"""The modules of a decoder layer, in Flax NNX, and what a layer reads beside the residual stream.

Shapes: B batch, S tokens per window, T of them computed, D model, N heads, K key-value heads,
H head dim, L layers; pairs: d/2, where d of a head's dimensions are rotated; tokens: B·S windows
laid end to end; computed: B·T, the last T tokens of every window.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from rope_jax.attention import BACKENDS
from rope_jax.config.model import ModelConfig
from rope_jax.rope import rotate
from rope_jax.rope.geometry import Layout


class LayerInputs(NamedTuple):
    """The arrays that layers read beside the residual stream.

    Every leaf has a leading axis of size L, or of size 1 where all layers share it. `at` takes
    that axis off, and what is left has the shapes below; axes marked # may have size 1.

    cos, sin:    rotate queries and keys; float32.
    query_scale: multiplies the whole query, rotated or not; float32.
    segment_ids: which document a token belongs to; None if each window is one document.
    """

    cos: Float[Array, "*layers #B S pairs"]
    sin: Float[Array, "*layers #B S pairs"]
    query_scale: Float[Array, "*layers #B #S"]
    segment_ids: Int[Array, "*layers B S"] | None

    def at(self, layer: int | Int[Array, ""]) -> "LayerInputs":
        """Return the inputs of one layer, without the leading axis."""
        return jax.tree.map(lambda leaf: leaf[0] if leaf.shape[0] == 1 else leaf[layer], self)


@dataclass(frozen=True)
class LayerKind:
    """What is static about a layer, and so is part of the compiled program.

    sliding_window: how many keys a query sees, its own among them; None: all up to its own.
    last:           compute only this many tokens at the end of each window; None: all.
    """

    sliding_window: int | None = None
    last: int | None = None


def linear(config: ModelConfig, inputs: int, outputs: int, rngs: nnx.Rngs) -> nnx.Linear:
    """Return a linear map without a bias, drawn as the config says."""
    init = nnx.initializers.normal(config.initializer_range)
    return nnx.Linear(
        inputs, outputs, use_bias=False, dtype=config.dtype, kernel_init=init, rngs=rngs
    )


class RMSNorm(nnx.RMSNorm):
    """x / √(mean x² + ε) · scale over the last axis, computed in float32, returned in x's dtype."""

    def __init__(self, config: ModelConfig, width: int, rngs: nnx.Rngs) -> None:
        super().__init__(width, epsilon=config.rms_norm_eps, dtype=jnp.float32, rngs=rngs)

    def __call__(
        self, x: Float[Array, "*batch width"], mask: Array | None = None
    ) -> Float[Array, "*batch width"]:
        return super().__call__(x, mask).astype(x.dtype)


class SelfAttention(nnx.Module):
    """Grouped-query attention. QK-norm, where configured, comes before the rotation."""

    def __init__(self, config: ModelConfig, layout: Layout, rngs: nnx.Rngs) -> None:
        self.config, self.layout = config, layout
        width, heads, kv_heads = config.heads_width, config.num_attention_heads, config.kv_heads
        self.q_proj = linear(config, config.hidden_size, heads * width, rngs)
        self.k_proj = linear(config, config.hidden_size, kv_heads * width, rngs)
        self.v_proj = linear(config, config.hidden_size, kv_heads * width, rngs)
        self.o_proj = linear(config, heads * width, config.hidden_size, rngs)
        if config.qk_norm:
            self.q_norm = RMSNorm(config, width, rngs)
            self.k_norm = RMSNorm(config, width, rngs)

    def __call__(
        self, x: Float[Array, "tokens D"], inputs: LayerInputs, kind: LayerKind
    ) -> Float[Array, "computed D"]:
        """Attend from the computed tokens to all tokens of their window."""
        length, width = inputs.cos.shape[1], self.config.heads_width
        x_computed = last_of_window(x, length, kind.last)
        projections = self.q_proj(x_computed), self.k_proj(x), self.v_proj(x)
        batch = x.shape[0] // length
        q, k, v = (y.reshape(batch, -1, y.shape[1] // width, width) for y in projections)
        if self.config.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        queries = q.shape[1]
        q = rotate(q, inputs.cos[:, -queries:], inputs.sin[:, -queries:], self.layout)
        k = rotate(k, inputs.cos, inputs.sin, self.layout)
        q = _scaled(q, inputs.query_scale[:, -queries:])
        attend = BACKENDS[self.config.attention]
        out = attend(q, k, v, inputs.segment_ids, kind.sliding_window)
        return self.o_proj(out.reshape(out.shape[0] * out.shape[1], -1))


def _scaled(
    q: Float[Array, "B T N H"], query_scale: Float[Array, "#B #T"]
) -> Float[Array, "B T N H"]:
    """Multiply queries in float32: in bfloat16 the scale itself would be off by up to 0.4%."""
    return (q.astype(jnp.float32) * query_scale[:, :, None, None]).astype(q.dtype)


def last_of_window(
    x: Float[Array, "tokens D"], length: int, last: int | None
) -> Float[Array, "computed D"]:
    """Return the last tokens of every window of S = `length`; all of them if `last` is None."""
    if last is None:
        return x
    return x.reshape(-1, length, x.shape[1])[:, -last:].reshape(-1, x.shape[1])


class MLP(nnx.Module):
    """SwiGLU: down(silu(gate(x)) · up(x))."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs) -> None:
        # Gate and up are separate: fused into one matrix product they are slower on a CPU.
        self.gate_proj = linear(config, config.hidden_size, config.intermediate_size, rngs)
        self.up_proj = linear(config, config.hidden_size, config.intermediate_size, rngs)
        self.down_proj = linear(config, config.intermediate_size, config.hidden_size, rngs)

    def __call__(self, x: Float[Array, "tokens D"]) -> Float[Array, "tokens D"]:
        return self.down_proj(jax.nn.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nnx.Module):
    """Pre-norm attention and feed-forward, each added to the residual stream."""

    def __init__(self, config: ModelConfig, layout: Layout, rngs: nnx.Rngs) -> None:
        self.input_layernorm = RMSNorm(config, config.hidden_size, rngs)
        self.self_attn = SelfAttention(config, layout, rngs)
        self.post_attention_layernorm = RMSNorm(config, config.hidden_size, rngs)
        self.mlp = MLP(config, rngs)

    def __call__(
        self, x: Float[Array, "tokens D"], inputs: LayerInputs, kind: LayerKind
    ) -> Float[Array, "computed D"]:
        attended = self.self_attn(self.input_layernorm(x), inputs, kind)
        x = last_of_window(x, inputs.cos.shape[1], kind.last) + attended
        return x + self.mlp(self.post_attention_layernorm(x))
