"""The Flax NNX modules of a decoder layer, and its inputs besides the residual stream.

Shapes: B batch, S tokens per window, T of them computed, D model, N heads, K key-value heads,
H head dim, L layers, C distances; tokens: B·S, the windows laid end to end; computed: B·T, the
last T tokens of every window.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from rope_jax.attention import attend
from rope_jax.config.model import ModelConfig
from rope_jax.positions.encodings import Encoding
from rope_jax.positions.turning import Turn
from rope_jax.positions.visible import Visible
from rope_jax.rope.geometry import Layout


class LayerInputs(NamedTuple):
    """The inputs of the layers besides the residual stream.

    Every leaf has a leading axis of size L, or of size 1 if all layers share it. `at` removes that
    axis, which leaves the shapes below; axes marked # may have size 1.

    turns:       how far queries and keys turn, one for each band of a position map.
    query_scale: multiplies the whole query, rotated or not; float32.
    numbers:     what the encoding needs inside attention; float32.
    segment_ids: which document a token belongs to; None if each window is one document.
    bias:        added to the logits by head and distance; None: nothing.
    """

    turns: tuple[Turn, ...]
    query_scale: Float[Array, "*layers #B #S"]
    numbers: dict[str, Any]
    segment_ids: Int[Array, "*layers B S"] | None
    bias: Float[Array, "*layers #B N C"] | None

    def at(self, layer: int | Int[Array, ""]) -> "LayerInputs":
        """Return the inputs of one layer, without the leading axis."""
        return jax.tree.map(lambda leaf: leaf[0] if leaf.shape[0] == 1 else leaf[layer], self)

    @property
    def length(self) -> int:
        """S."""
        return self.turns[0].key_cos.shape[-3]


@dataclass(frozen=True)
class LayerKind:
    """The static properties of a layer, which are compiled into the program.

    sliding_window: how many keys a query sees, including its own; None: all up to its own.
    last:           compute only this many tokens at the end of each window; None: all.
    visible:        which keys each band of a position map holds.
    """

    sliding_window: int | None = None
    last: int | None = None
    visible: tuple[Visible, ...] = (Visible(),)


def linear(config: ModelConfig, inputs: int, outputs: int, rngs: nnx.Rngs) -> nnx.Linear:
    """Return a linear map without bias, initialized as the config says."""
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

    def __init__(
        self, config: ModelConfig, encoding: Encoding, layout: Layout, rngs: nnx.Rngs
    ) -> None:
        self.config, self.encoding, self.layout = config, encoding, layout
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
        width = self.config.heads_width
        x_computed = last_of_window(x, inputs.length, kind.last)
        projections = self.q_proj(x_computed), self.k_proj(x), self.v_proj(x)
        batch = x.shape[0] // inputs.length
        q, k, v = (y.reshape(batch, -1, y.shape[1] // width, width) for y in projections)
        if self.config.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        out = attend(
            *(q, k, v),
            inputs.turns,
            inputs.query_scale,
            inputs.numbers,
            inputs.segment_ids,
            inputs.bias,
            backend=self.config.attention,
            encoding=self.encoding,
            layout=self.layout,
            visible=kind.visible,
            sliding_window=kind.sliding_window,
        )
        return self.o_proj(out.reshape(out.shape[0] * out.shape[1], -1))


def last_of_window(
    x: Float[Array, "tokens D"], length: int, last: int | None
) -> Float[Array, "computed D"]:
    """Return the last `last` tokens of every window of S = `length`; None: all tokens."""
    if last is None:
        return x
    return x.reshape(-1, length, x.shape[1])[:, -last:].reshape(-1, x.shape[1])


class MLP(nnx.Module):
    """SwiGLU: down(silu(gate(x)) · up(x))."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs) -> None:
        # Gate and up stay separate: one fused matrix product is slower on a CPU.
        self.gate_proj = linear(config, config.hidden_size, config.intermediate_size, rngs)
        self.up_proj = linear(config, config.hidden_size, config.intermediate_size, rngs)
        self.down_proj = linear(config, config.intermediate_size, config.hidden_size, rngs)

    def __call__(self, x: Float[Array, "tokens D"]) -> Float[Array, "tokens D"]:
        return self.down_proj(jax.nn.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nnx.Module):
    """Pre-norm attention and feed-forward, each added to the residual stream."""

    def __init__(
        self, config: ModelConfig, encoding: Encoding, layout: Layout, rngs: nnx.Rngs
    ) -> None:
        self.input_layernorm = RMSNorm(config, config.hidden_size, rngs)
        self.self_attn = SelfAttention(config, encoding, layout, rngs)
        self.post_attention_layernorm = RMSNorm(config, config.hidden_size, rngs)
        self.mlp = MLP(config, rngs)

    def __call__(
        self, x: Float[Array, "tokens D"], inputs: LayerInputs, kind: LayerKind
    ) -> Float[Array, "computed D"]:
        attended = self.self_attn(self.input_layernorm(x), inputs, kind)
        x = last_of_window(x, inputs.length, kind.last) + attended
        return x + self.mlp(self.post_attention_layernorm(x))
