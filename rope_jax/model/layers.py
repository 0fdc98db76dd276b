"""The Flax NNX modules of a decoder layer.

Shapes: B batch, S tokens per window, T of them computed, D model, N heads, K key-value heads,
H head dim; tokens: B·S, the windows laid end to end; computed: B·T, the last T tokens of every
window. Where a mesh splits windows or heads, S, T, N, K and the hidden layer's size are this
device's own, and segment_ids has all tokens of a window.
"""

from dataclasses import dataclass
from typing import Any

from flax import nnx
from jaxtyping import Array, Float

from rope_jax.attention.remat_names import projected
from rope_jax.blocks.attention import GroupedQueryAttention
from rope_jax.blocks.base import Norm, Parameter, Parameters
from rope_jax.config.model import ModelConfig
from rope_jax.devices.collectives import Collectives
from rope_jax.kernels.projections import project
from rope_jax.model.attention import LayerInputs, LayerKind, attend
from rope_jax.model.norms import norm
from rope_jax.positions.encodings import Encoding
from rope_jax.rope.geometry import Layout

_ATTENTION = GroupedQueryAttention()


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
    """Inputs of a block besides its parameters and the residual stream."""

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
        if self.kind.last is None:
            return x
        windows = x.reshape(-1, self.inputs.length, x.shape[1])
        return windows[:, -self.kind.last :].reshape(-1, x.shape[1])

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
            *(q, k, v, self.inputs, self.kind),
            backend=self.config.attention,
            encoding=self.encoding,
            layout=self.layout,
            softcap=self.config.attention_softcap,
            rounded=self.rounded,
            over=self.over,
        )


class DecoderLayer(nnx.Module):
    """Attention and feed-forward, each added to the residual stream.

    Norms are named as in Hugging Face's models: `post_attention_layernorm` is before the
    feed-forward in a Llama (placement before), and of attention's output in OLMo 2 and Gemma 2.
    """

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs) -> None:
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
        self, x: Float[Array, "tokens D"], layer: LayerContext
    ) -> tuple[Float[Array, "computed D"], Float[Array, ""] | None]:
        """Return the residual stream, and the feed-forward's auxiliary loss if it has one."""
        config, placement = layer.config, layer.config.norm_placement
        normed = x if placement == "after" else self.input_layernorm(x)
        attended = _ATTENTION.apply(config, self.self_attn, normed, layer)
        x = layer.computed(x)
        if placement == "before":
            stream = x + attended
            normed = self.post_attention_layernorm(x if config.parallel_residual else stream)
            y, auxiliary = config.feed_forward.apply(config, self.mlp, normed, layer)
            return stream + y, auxiliary
        x = x + self.post_attention_layernorm(attended)
        normed = x if placement == "after" else self.pre_feedforward_layernorm(x)
        y, auxiliary = config.feed_forward.apply(config, self.mlp, normed, layer)
        return x + self.post_feedforward_layernorm(y), auxiliary
