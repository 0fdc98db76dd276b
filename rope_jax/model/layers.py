"""The Flax NNX modules of a decoder layer, and its inputs besides the residual stream.

Shapes: B batch, S tokens per window, T of them computed, D model, N heads, K key-value heads,
H head dim, L layers, C distances; tokens: B·S, the windows laid end to end; computed: B·T, the
last T tokens of every window. Where a mesh splits windows or heads, S, T, N, K and the hidden
layer's size are this device's own, and segment_ids has all tokens of a window.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
from flax import nnx
from jaxtyping import Array, Float, Int

from rope_jax.attention.remat_names import projected
from rope_jax.blocks.attention import GroupedQueryAttention
from rope_jax.blocks.base import Norm, Parameter, Parameters
from rope_jax.config.model import ModelConfig
from rope_jax.devices.collectives import Collectives
from rope_jax.kernels.projections import project
from rope_jax.model.attention import attend
from rope_jax.model.norms import norm
from rope_jax.positions.bands import Rotation
from rope_jax.positions.encodings import Encoding
from rope_jax.positions.mask import BandMask
from rope_jax.rope.geometry import Layout

_ATTENTION = GroupedQueryAttention()


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


class Weights(nnx.Module):
    """The parameters that a block declares: params["up_proj"]["kernel"], params["q_norm"](x)."""

    def __init__(self, declared: Parameters, config: ModelConfig, rngs: nnx.Rngs) -> None:
        initializers: dict[str, Any] = {
            "normal": nnx.initializers.normal(config.initializer_range),
            "zeros": nnx.initializers.zeros,
            "ones": nnx.initializers.ones,
        }
        for name, entry in declared.items():
            value: Any
            if isinstance(entry, Parameter):
                draw = initializers[entry.initial]
                value = nnx.Param(draw(rngs.params(), entry.shape, config.param_dtype))
            elif isinstance(entry, Norm):
                value = norm(config, entry.width, rngs)
            else:
                value = Weights(entry, config, rngs)
            setattr(self, name, value)

    def __contains__(self, name: str) -> bool:
        return hasattr(self, name)

    def __getitem__(self, name: str) -> Any:
        value = getattr(self, name)
        return value[...] if isinstance(value, nnx.Param) else value


@dataclass(frozen=True)
class LayerContext:
    """What a block of a layer computes with, besides its parameters and the residual stream."""

    config: ModelConfig
    encoding: Encoding
    layout: Layout
    over: Collectives
    inputs: LayerInputs
    kind: LayerKind

    @property
    def rounded(self) -> bool:
        """Whether the factors of matrix products are rounded to bfloat16."""
        return self.config.product_dtype == "bfloat16"

    def computed(self, x: Float[Array, "tokens D"]) -> Float[Array, "computed D"]:
        """Return the tokens that the layer computes, of every window its last ones."""
        return last_of_window(x, self.inputs.length, self.kind.last)

    def column_parallel(
        self, x: Float[Array, "tokens D"], weights: Weights
    ) -> Float[Array, "tokens F"]:
        """Return x·kernel + bias, of whose columns each device has its own."""
        return projected(self.linear(x, weights))

    def row_parallel(
        self, x: Float[Array, "tokens F"], weights: Weights
    ) -> Float[Array, "tokens D"]:
        """Return x·kernel + bias, of whose inputs each device has its own; summed over devices."""
        return self.summed(self.linear(x, weights))

    def summed(self, share: Float[Array, "tokens D"]) -> Float[Array, "tokens D"]:
        """Sum the shares of the devices that split heads or hidden layer."""
        return projected(self.over.sum_over_tensor(share))

    def linear(self, x: Float[Array, "tokens _"], weights: Weights) -> Float[Array, "tokens _"]:
        """Return x·kernel + bias with the weights that this device has."""
        dtype = self.config.dtype
        y = project(x.astype(dtype), weights["kernel"].astype(dtype), self.rounded)
        return y + weights["bias"].astype(dtype)[None] if "bias" in weights else y

    def attend(
        self, q: Float[Array, "B T N H"], k: Float[Array, "B S K H"], v: Float[Array, "B S K V"]
    ) -> Float[Array, "B T N V"]:
        """Rotate queries and keys, and attend by the configured backend; see `attend`."""
        return attend(
            *(q, k, v),
            self.inputs.rotations,
            self.inputs.query_scale,
            self.inputs.encoding,
            self.inputs.segment_ids,
            self.inputs.bias,
            backend=self.config.attention,
            encoding=self.encoding,
            layout=self.layout,
            masks=self.kind.masks,
            sliding_window=self.kind.sliding_window,
            softcap=self.config.attention_softcap,
            rounded=self.rounded,
            over=self.over,
        )


def last_of_window(
    x: Float[Array, "tokens D"], length: int, last: int | None
) -> Float[Array, "computed D"]:
    """Return the last `last` tokens of every window of S = `length`; None: all tokens."""
    if last is None:
        return x
    return x.reshape(-1, length, x.shape[1])[:, -last:].reshape(-1, x.shape[1])


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
        self.config, self.encoding, self.layout, self.over = config, encoding, layout, over
        placement, width = config.norm_placement, config.hidden_size
        if placement != "after":
            self.input_layernorm = norm(config, width, rngs)
        self.self_attn = Weights(_ATTENTION.parameters(config), config, rngs)
        self.post_attention_layernorm = norm(config, width, rngs)
        if placement == "both":
            self.pre_feedforward_layernorm = norm(config, width, rngs)
        self.mlp = Weights(config.feed_forward.parameters(config), config, rngs)
        if placement != "before":
            self.post_feedforward_layernorm = norm(config, width, rngs)

    def __call__(
        self, x: Float[Array, "tokens D"], inputs: LayerInputs, kind: LayerKind
    ) -> tuple[Float[Array, "computed D"], Float[Array, ""] | None]:
        """Return the residual stream, and the feed-forward's auxiliary loss if it has one."""
        config, placement = self.config, self.config.norm_placement
        layer = LayerContext(config, self.encoding, self.layout, self.over, inputs, kind)
        normed = x if placement == "after" else self.input_layernorm(x)
        attended = _ATTENTION.apply(config, self.self_attn, normed, layer)
        x = layer.computed(x)
        if placement == "before":
            stream = x + attended
            normed = self.post_attention_layernorm(x if config.parallel_residual else stream)
            y, auxiliary = self._feed_forward(normed, layer)
            return stream + y, auxiliary
        x = x + self.post_attention_layernorm(attended)
        normed = x if placement == "after" else self.pre_feedforward_layernorm(x)
        y, auxiliary = self._feed_forward(normed, layer)
        return x + self.post_feedforward_layernorm(y), auxiliary

    def _feed_forward(self, x: Float[Array, "computed D"], layer: LayerContext) -> tuple[Any, Any]:
        return self.config.feed_forward.apply(self.config, self.mlp, x, layer)
