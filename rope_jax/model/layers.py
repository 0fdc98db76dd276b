"""The Flax NNX modules of a decoder layer, and its inputs besides the residual stream.

Shapes: B batch, S tokens per window, T of them computed, D model, N heads, K key-value heads,
H head dim, L layers, C distances; tokens: B·S, the windows laid end to end; computed: B·T, the
last T tokens of every window. Where a mesh splits windows or heads, S, T, N, K and the hidden
layer's size are this device's own, and segment_ids has all tokens of a window.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
from flax import nnx
from jaxtyping import Array, Float, Int

from rope_jax.attention.remat_names import projected
from rope_jax.config.model import ActivationName, ModelConfig
from rope_jax.devices.collectives import Collectives
from rope_jax.kernels.projections import has_kernels, project
from rope_jax.model.attention import attend
from rope_jax.model.feed_forward import gated_feed_forward
from rope_jax.model.norms import norm
from rope_jax.positions.bands import Rotation
from rope_jax.positions.encodings import Encoding
from rope_jax.positions.mask import BandMask
from rope_jax.rope.geometry import Layout


class LayerInputs(NamedTuple):
    """The inputs of the layers besides the residual stream.

    Every leaf has a leading axis of size L, or of size 1 if all layers share it. `at` removes that
    axis, which leaves the shapes below; axes marked # may have size 1.

    rotations:   how far queries and keys are rotated, one for each band of a position map.
    query_scale: multiplies the whole query, rotated or not; float32.
    encoding:    what the encoding needs inside attention; float32.
    segment_ids: which document a token belongs to; None if each window is one document.
    bias:        added to the logits by head and distance; None: nothing.
    """

    rotations: tuple[Rotation, ...]
    query_scale: Float[Array, "*layers #B #S"]
    encoding: dict[str, Any]
    segment_ids: Int[Array, "*layers B S"] | None
    bias: Float[Array, "*layers #B N C"] | None

    def at(self, layer: int | Int[Array, ""]) -> "LayerInputs":
        """Return the inputs of one layer, without the leading axis."""
        return jax.tree.map(lambda leaf: leaf[0] if leaf.shape[0] == 1 else leaf[layer], self)

    @property
    def length(self) -> int:
        """S."""
        return self.rotations[0].key_cos.shape[-3]


@dataclass(frozen=True)
class LayerKind:
    """The static properties of a layer, which are compiled into the program.

    sliding_window: how many keys a query sees, including its own; None: all up to its own.
    last:           compute only this many tokens at the end of each window; None: all.
    masks:          which keys each band of a position map holds.
    """

    sliding_window: int | None = None
    last: int | None = None
    masks: tuple[BandMask, ...] = (BandMask(),)


def linear(
    config: ModelConfig, inputs: int, outputs: int, rngs: nnx.Rngs, *, bias: bool = False
) -> nnx.Linear:
    """Return a linear map, initialized as the config says; a fresh bias is 0."""
    init = nnx.initializers.normal(config.initializer_range)
    rounded = config.product_dtype == "bfloat16"
    return nnx.Linear(
        inputs,
        outputs,
        use_bias=bias,
        dtype=config.dtype,
        param_dtype=config.param_dtype,
        kernel_init=init,
        dot_general=lambda x, kernel, *_, **__: project(x, kernel, rounded),  # its only one
        rngs=rngs,
    )


class SelfAttention(nnx.Module):
    """Grouped-query attention. QK-norm, where configured, comes before the rotation."""

    def __init__(
        self,
        config: ModelConfig,
        encoding: Encoding,
        layout: Layout,
        over: Collectives,
        rngs: nnx.Rngs,
    ) -> None:
        self.config, self.encoding, self.layout, self.over = config, encoding, layout, over
        width, heads, kv_heads = config.heads_width, config.num_attention_heads, config.kv_heads
        d, bias = config.hidden_size, config.qkv_bias
        self.q_proj = linear(config, d, heads * width, rngs, bias=bias)
        self.k_proj = linear(config, d, kv_heads * width, rngs, bias=bias)
        self.v_proj = linear(config, d, kv_heads * width, rngs, bias=bias)
        self.o_proj = linear(config, heads * width, d, rngs, bias=config.o_bias)
        if config.qk_norm:
            together = config.qk_norm == "all_heads"
            self.q_norm = norm(config, heads * width if together else width, rngs)
            self.k_norm = norm(config, kv_heads * width if together else width, rngs)

    def __call__(
        self, x: Float[Array, "tokens D"], inputs: LayerInputs, kind: LayerKind
    ) -> Float[Array, "computed D"]:
        """Attend from the computed tokens to all tokens of their window."""
        width = self.config.heads_width
        x_computed = last_of_window(x, inputs.length, kind.last)
        q, k, v = map(projected, (self.q_proj(x_computed), self.k_proj(x), self.v_proj(x)))
        if self.config.qk_norm == "all_heads":
            q, k = self.q_norm(q), self.k_norm(k)
        batch = x.shape[0] // inputs.length
        q, k, v = (y.reshape(batch, -1, y.shape[1] // width, width) for y in (q, k, v))
        if self.config.qk_norm is True:
            q, k = self.q_norm(q), self.k_norm(k)
        out = attend(
            *(q, k, v),
            inputs.rotations,
            inputs.query_scale,
            inputs.encoding,
            inputs.segment_ids,
            inputs.bias,
            backend=self.config.attention,
            encoding=self.encoding,
            layout=self.layout,
            masks=kind.masks,
            sliding_window=kind.sliding_window,
            softcap=self.config.attention_softcap,
            rounded=self.config.product_dtype == "bfloat16",
            over=self.over,
        )
        own_heads = self.o_proj(out.reshape(out.shape[0] * out.shape[1], -1))
        return projected(self.over.sum_over_tensor(own_heads))


def last_of_window(
    x: Float[Array, "tokens D"], length: int, last: int | None
) -> Float[Array, "computed D"]:
    """Return the last `last` tokens of every window of S = `length`; None: all tokens."""
    if last is None:
        return x
    return x.reshape(-1, length, x.shape[1])[:, -last:].reshape(-1, x.shape[1])


# x·sigmoid(x); x·Φ(x) with the normal distribution's Φ; the latter by an approximation with tanh.
_ACTIVATIONS: dict[ActivationName, Callable[[Array], Array]] = {
    "silu": jax.nn.silu,
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
}


class MLP(nnx.Module):
    """down(activation(gate(x)) · up(x)), or without a gate down(activation(up(x)))."""

    def __init__(self, config: ModelConfig, over: Collectives, rngs: nnx.Rngs) -> None:
        self.config, self.over = config, over
        d, f, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        # Gate and up stay separate: one fused matrix product is slower on a CPU.
        if config.gated_mlp:
            self.gate_proj = linear(config, d, f, rngs, bias=bias)
        self.up_proj = linear(config, d, f, rngs, bias=bias)
        self.down_proj = linear(config, f, d, rngs, bias=bias)

    def __call__(self, x: Float[Array, "tokens D"]) -> Float[Array, "tokens D"]:
        if self._is_one_call(x):
            maps = self.gate_proj, self.up_proj, self.down_proj
            weights = (each.kernel[...].astype(x.dtype) for each in maps)
            out = gated_feed_forward(x, *weights, self.config.product_dtype == "bfloat16")
            return projected(self.over.sum_over_tensor(out))
        activation = _ACTIVATIONS[self.config.activation]
        if self.config.gated_mlp:
            # The backward pass computes the activation again: reading it back would take longer.
            gated = jax.checkpoint(lambda gate, up: activation(gate) * up)
            hidden = gated(projected(self.gate_proj(x)), projected(self.up_proj(x)))
        else:
            hidden = activation(projected(self.up_proj(x)))
        return projected(self.over.sum_over_tensor(self.down_proj(hidden)))

    def _is_one_call(self, x: Float[Array, "tokens D"]) -> bool:
        """Whether our kernels compute it, which know only a Llama's."""
        config = self.config
        is_llamas = config.gated_mlp and config.activation == "silu" and not config.mlp_bias
        rounded = config.product_dtype == "bfloat16"
        # the width on this device, which is odd where a mesh splits it so
        in_pairs = not rounded or self.up_proj.kernel[...].shape[1] % 2 == 0
        return is_llamas and in_pairs and has_kernels(x, rounded=rounded)


class DecoderLayer(nnx.Module):
    """Attention and feed-forward, each added to the residual stream.

    Their norms are named as in Hugging Face's models of that placement. So
    `post_attention_layernorm` is the norm before the feed-forward in a Llama (placement before),
    and that of attention's output in an OLMo 2 (after) or Gemma 2 (both).
    """

    def __init__(
        self,
        config: ModelConfig,
        encoding: Encoding,
        layout: Layout,
        over: Collectives,
        rngs: nnx.Rngs,
    ) -> None:
        self.config = config
        placement, width = config.norm_placement, config.hidden_size
        if placement != "after":
            self.input_layernorm = norm(config, width, rngs)
        self.self_attn = SelfAttention(config, encoding, layout, over, rngs)
        self.post_attention_layernorm = norm(config, width, rngs)
        if placement == "both":
            self.pre_feedforward_layernorm = norm(config, width, rngs)
        self.mlp = MLP(config, over, rngs)
        if placement != "before":
            self.post_feedforward_layernorm = norm(config, width, rngs)

    def __call__(
        self, x: Float[Array, "tokens D"], inputs: LayerInputs, kind: LayerKind
    ) -> Float[Array, "computed D"]:
        placement = self.config.norm_placement
        normed = x if placement == "after" else self.input_layernorm(x)
        attended = self.self_attn(normed, inputs, kind)
        x = last_of_window(x, inputs.length, kind.last)
        if self.config.parallel_residual:
            return x + attended + self.mlp(self.post_attention_layernorm(x))
        if placement == "before":
            x = x + attended
            return x + self.mlp(self.post_attention_layernorm(x))
        x = x + self.post_attention_layernorm(attended)
        normed = x if placement == "after" else self.pre_feedforward_layernorm(x)
        return x + self.post_feedforward_layernorm(self.mlp(normed))
