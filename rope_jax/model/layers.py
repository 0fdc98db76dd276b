"""A decoder layer: its Flax NNX modules, and how it rotates queries and keys and attends.

Shapes: B batch, S tokens per window, T of them computed, D model, N heads, K key-value heads,
H head dim of queries and keys, R after they are rotated, V that of values, L layers, C distances;
tokens: B·S, the windows laid end to end; computed: B·T, the last T tokens of every window. An axis
marked # may have size 1. Where a mesh splits windows or heads, S, T, N, K and the hidden layer's
size are this device's own, and segment_ids has all tokens of a window.
"""

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from rope_jax.blocks import MLP, FeedForward
from rope_jax.blocks.base import Norm, Parameter, Parameters
from rope_jax.config.model import ModelConfig
from rope_jax.devices.collectives import SINGLE_DEVICE, Collectives
from rope_jax.kernels.projections import project, projected
from rope_jax.model.norms import norm, without_weights
from rope_jax.positions.bands import Rotation
from rope_jax.positions.encodings import Encoding, RoPE
from rope_jax.positions.interaction import Interaction, capped, plus_by_distance
from rope_jax.positions.mask import BandMask
from rope_jax.rope.geometry import Layout

_ROPE, _MLP = RoPE(), MLP()


class LayerInputs(NamedTuple):
    """The inputs of the layers besides the residual stream.

    Every leaf has a leading axis of size L, or of size 1 if all layers share it. `at` removes it.

    rotations:   how far queries and keys are rotated, one for each band of a position map.
    query_scale: multiplies the whole query, rotated or not; float32.
    encoding:    what the encoding needs inside attention; float32.
    segment_ids: which document a token belongs to; None if each window is one document.
    bias:        added to the logits by head and distance.
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
        return self.rotations[0].key_cos.shape[-3]


@dataclass(frozen=True)
class LayerKind:
    """The static properties of a layer, which are compiled into the program.

    sliding_window: how many keys a query sees, including its own; None: all up to its own.
    attention_chunk: tokens per chunk, of which a query sees its own up to itself; None: all.
    rotates:        whether queries and keys are rotated.
    last:           compute only this many tokens at the end of each window; None: all.
    masks:          which keys each band of a position map holds.
    feed_forward:   what the layer computes of each token by itself.
    """

    sliding_window: int | None = None
    attention_chunk: int | None = None
    rotates: bool = True
    last: int | None = None
    masks: tuple[BandMask, ...] = (BandMask(),)
    feed_forward: FeedForward = _MLP


class Weights(nnx.Module):
    """The parameters that a block declares: params["up_proj"]["kernel"], params["q_norm"](x)."""

    def __init__(self, declared: Parameters, config: ModelConfig, rngs: nnx.Rngs) -> None:
        initializers: dict[str, Any] = {
            "normal": nnx.initializers.normal(config.initializer_range),
            "zeros": nnx.initializers.zeros,
            "ones": nnx.initializers.ones,
        }

        def fresh(entry: Any) -> Any:
            if isinstance(entry, Parameter):
                draw = initializers[entry.initial]
                dtype = "float32" if entry.in_float32 else config.param_dtype
                return nnx.Param(draw(rngs.params(), entry.shape, dtype))
            if isinstance(entry, Norm):
                return norm(config, entry, rngs)
            return Weights(entry, config, rngs)

        for name, entry in declared.items():
            setattr(self, name, fresh(entry))

    def __contains__(self, name: str) -> bool:
        return hasattr(self, name)

    def __getitem__(self, name: str) -> Any:
        value = getattr(self, name)
        return value[...] if isinstance(value, nnx.Param) else value


@dataclass(frozen=True)
class LayerContext:
    """Inputs of a block besides its parameters and the residual stream.

    inputs: without an axis of layers.
    """

    config: ModelConfig
    inputs: LayerInputs
    kind: LayerKind
    encoding: Encoding = _ROPE
    layout: Layout = "half"
    mesh: Collectives = SINGLE_DEVICE

    @property
    def low_precision(self) -> bool:
        """Whether the factors of matrix products are rounded to bfloat16."""
        return self.config.product_dtype == "bfloat16"

    def factor(self, kernel: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
        """Return weights as products take them; those of low precision round them themselves."""
        return kernel.astype("float32" if self.config.product_dtype else self.config.dtype)

    def tokens(self, x: Float[Array, "tokens D"]) -> Float[Array, "tokens D"]:
        """Return activations as products with weights take them."""
        return x.astype(self.config.factor_dtype)

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
        return projected(self.mesh.sum_over_tensor(share))

    def linear(self, x: Float[Array, "tokens _"], weights: Weights) -> Float[Array, "tokens _"]:
        """Return x·kernel + bias with the weights that this device has."""
        dtype = self.config.dtype
        y = project(self.tokens(x), self.factor(weights["kernel"]), self.low_precision)
        y = y.astype(dtype)
        return y + weights["bias"].astype(dtype)[None] if "bias" in weights else y

    def attend(
        self,
        q: Float[Array, "B T N H"],
        k: Float[Array, "B S K H"],
        v: Float[Array, "B S K V"],
        sinks: Float[Array, " N"] | None = None,
    ) -> Float[Array, "B T N V"]:
        """Rotate queries and keys (linear attention: their features), and attend to visible keys.

        The queries are the last T of the S tokens. Where devices share each window, q, k, v and
        inputs are of the S tokens of this device, except segment_ids; keys and values of the other
        devices are gathered.

        sinks: one more logit of every query, without a value.
        """
        encoding, layout, inputs, mesh = self.encoding, self.layout, self.inputs, self.mesh
        length, attention, params = q.shape[1], self.config.backend, inputs.encoding

        def rotate_queries(
            q: Float[Array, "B T N H"], rotation: Rotation
        ) -> Float[Array, "B T N R"]:
            cos, sin = rotation.query_cos[:, -length:], rotation.query_sin[:, -length:]
            return normed(encoding.rotate_queries(params, q, cos, sin, layout))

        def rotate_keys(k: Float[Array, "B S K H"], rotation: Rotation) -> Float[Array, "B S K R"]:
            cos, sin = rotation.key_cos, rotation.key_sin
            return normed(encoding.rotate_keys(params, k, cos, sin, layout))

        def normed(x: Float[Array, "B T N R"]) -> Float[Array, "B T N R"]:
            if self.config.qk_norm != "rotated" or not self.kind.rotates:
                return x
            return without_weights(x, self.config.rms_norm_eps)

        if not attention.is_softmax:
            (rotation,) = inputs.rotations
            of_queries = functools.partial(rotate_queries, rotation=rotation)
            of_keys = functools.partial(rotate_keys, rotation=rotation)
            return attention.attend_features(q, k, v, of_queries, of_keys, inputs.segment_ids)
        rotated = []
        for rotation in inputs.rotations:
            scale = inputs.query_scale[:, -length:, None]
            if rotation.query_scale is not None:
                scale = scale * rotation.query_scale[:, -length:]
            # in float32: in bfloat16 the scale itself would be off by up to 0.4%
            query = rotate_queries(q, rotation).astype(jnp.float32) * scale[..., None]
            rotated.append((query.astype(q.dtype), mesh.all_tokens(rotate_keys(k, rotation), 1)))
        v = mesh.all_tokens(v, 1)
        scores = encoding.scores
        if inputs.bias is not None:  # only beside plain dot products, see `check_map`
            scores, params = plus_by_distance, {"by_distance": inputs.bias}
        if (softcap := self.config.attention_softcap) is not None:
            scores, params = capped(scores), params | {"softcap": jnp.float32(softcap)}
        if sinks is not None:
            params = params | {"sinks": sinks.astype(jnp.float32)}
        queries, keys = zip(*rotated, strict=True)
        arrays = queries, keys, v
        attend_bands: Any = attention.attend_bands
        if self.low_precision and attention.has_precision:
            attend_bands = functools.partial(attend_bands, low_precision=True)
        elif products := self.config.product_dtype:
            arrays = jax.tree.map(lambda x: x.astype(products), arrays)
        has_sinks = sinks is not None
        interaction = Interaction(self.kind.masks, scores, encoding.values, has_sinks)
        interaction = interaction.within(self.kind.sliding_window, self.kind.attention_chunk)
        out = attend_bands(*arrays, inputs.segment_ids, interaction, params, mesh.part)
        return out.astype(v.dtype)


def multiplied(x: Float[Array, "*axes"], factor: float) -> Float[Array, "*axes"]:
    """Return x·factor. In float32: in bfloat16 the factor itself would be off by up to 0.4%."""
    return x if factor == 1 else (x.astype(jnp.float32) * factor).astype(x.dtype)


class DecoderLayer(Weights):
    """Attention and feed-forward, each multiplied and added to the residual stream.

    Norms are named as in Hugging Face's models: `post_attention_layernorm` is before the
    feed-forward in a Llama (placement before), and of attention's output in OLMo 2 and Gemma 2.
    Where one norm is shared, it is the `input_layernorm`.
    """

    def __init__(self, config: ModelConfig, feed_forward: FeedForward, rngs: nnx.Rngs) -> None:
        placement, norm = config.norm_placement, Norm(config.hidden_size)
        declared: Parameters = {} if placement == "after" else {"input_layernorm": norm}
        declared["self_attn"] = config.self_attention.parameters(config)
        if placement != "shared":
            declared["post_attention_layernorm"] = norm
        if placement == "both":
            declared["pre_feedforward_layernorm"] = norm
        declared["mlp"] = feed_forward.parameters(config)
        if placement in ("after", "both"):
            declared["post_feedforward_layernorm"] = norm
        super().__init__(declared, config, rngs)

    def __call__(
        self, x: Float[Array, "tokens D"], layer: LayerContext
    ) -> tuple[Float[Array, "computed D"], Float[Array, ""] | None]:
        """Return the residual stream, and the feed-forward's auxiliary loss if it has one."""
        config, placement = layer.config, layer.config.norm_placement
        normed = x if placement == "after" else self["input_layernorm"](x)
        y = config.self_attention.apply(config, self["self_attn"], normed, layer)
        before, factor = layer.computed(x), config.residual_multiplier
        if placement == "shared":
            x, normed = before + multiplied(y, factor), layer.computed(normed)
        elif placement == "before":
            x = before + multiplied(y, factor)
            normed = self["post_attention_layernorm"](before if config.parallel_residual else x)
        else:
            x = before + multiplied(self["post_attention_layernorm"](y), factor)
            normed = x if placement == "after" else self["pre_feedforward_layernorm"](x)
        y, auxiliary = layer.kind.feed_forward.apply(config, self["mlp"], normed, layer)
        if "post_feedforward_layernorm" in self:
            y = self["post_feedforward_layernorm"](y)
        return x + multiplied(y, factor), auxiliary
