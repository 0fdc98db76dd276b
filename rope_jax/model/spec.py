"""What a decoder is made of, with nothing left to decide: sizes, blocks, numerics, mesh."""

import math
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from rope_jax.blocks import MLP, FeedForward, GroupedQueryAttention, Mixer, SelfAttention
from rope_jax.blocks.base import DecoderSpec
from rope_jax.blocks.mixer import EVERY_KEY, AttentionSpan
from rope_jax.positions.encodings import Sizes

LayersName = Literal["unrolled", "scanned"]
RematName = Literal["none", "products", "attention", "layer"]
_ATTENTION, _FEED_FORWARD = GroupedQueryAttention.Config(), MLP.Config()


class LayerKind(NamedTuple):
    """The static settings in which a layer differs from the others.

    stack: the name of its parameters, and of those of all layers with the same blocks.
    """

    stack: str
    mixer: Mixer.Config
    feed_forward: FeedForward.Config
    span: AttentionSpan


@dataclass(frozen=True)
class ModelSpec(DecoderSpec):
    """A decoder. The names are those of `ModelConfig`, which explains them.

    pattern: which keys layers see; layer i has element i mod its length.
    """

    num_hidden_layers: int = 4
    self_attention: SelfAttention.Config = _ATTENTION
    feed_forward: FeedForward.Config = _FEED_FORWARD
    dense_layers: int | tuple[int, ...] = 0
    alternate_mixer: Mixer.Config | None = None
    alternate_layers: tuple[bool, ...] = (True, True, True, False)
    shared_kv_layers: int = 0
    shared_kv_wide_mlp: bool = False
    pattern: tuple[AttentionSpan, ...] = (EVERY_KEY,)
    tie_word_embeddings: bool = True
    head_bias: bool = False
    scale_embeddings: float | Literal["sqrt_hidden_size"] = 1.0
    logit_multiplier: float = 1.0
    logit_softcap: float | None = None
    query_pre_attn_scalar: float | None = None
    layers: LayersName = "unrolled"
    remat: RematName = "none"

    @property
    def kinds(self) -> list[LayerKind]:
        """The kind of every layer."""
        dense, alternate = self.dense_layers, self.alternate_mixer
        kinds = []
        for layer in range(self.num_hidden_layers):
            stack, feed_forward = "layers", self.feed_forward
            mixer: Mixer.Config = self.self_attention
            is_dense = layer < dense if isinstance(dense, int) else layer in dense
            if is_dense:
                stack, feed_forward = "dense_layers", MLP.Config()
            if alternate and self.alternate_layers[layer % len(self.alternate_layers)]:
                stack, mixer = f"alternate_{stack}", alternate
            span = self.pattern[layer % len(self.pattern)]
            if layer >= self.num_hidden_layers - self.shared_kv_layers:
                stack, span = f"shared_kv_{stack}", replace(span, shares=True)
                if self.shared_kv_wide_mlp:
                    feed_forward = MLP.Config(width=2 * self.intermediate_size)
            kinds.append(LayerKind(stack, mixer, feed_forward, span))
        return kinds

    @property
    def stacks(self) -> dict[str, list[int]]:
        """The numbers of the layers of each stack."""
        stacks: dict[str, list[int]] = {}
        for layer, kind in enumerate(self.kinds):
            stacks.setdefault(kind.stack, []).append(layer)
        return stacks

    @property
    def segments(self) -> list[range]:
        """The layers in order, cut after the first ones if these are dense: each repeats a pattern.

        No stack has layers of two segments.
        """
        first = self.dense_layers if isinstance(self.dense_layers, int) else 0
        first = 0 if self.shared_kv_layers else first  # those read what the first ones keep
        segments = range(first), range(first, self.num_hidden_layers)
        return [layers for layers in segments if layers]

    @property
    def splits_windows(self) -> bool:
        """Whether devices can share a window."""
        return all(kind.mixer.splits_windows(self) for kind in self.kinds)

    @property
    def heads_width(self) -> int:
        """H, the width of a head's queries and keys."""
        return self.self_attention.head_dim(self)

    @property
    def query_factors(self) -> list[float]:
        """What queries are multiplied by in each layer, beside 1/√H."""
        if (scalar := self.query_pre_attn_scalar) is None:
            return [1.0]
        mixers = (kind.mixer for kind in self.kinds)
        widths = [
            m.head_dim(self) if isinstance(m, SelfAttention.Config) else self.heads_width
            for m in mixers
        ]
        factors = [math.sqrt(width / scalar) for width in widths]
        return factors if len(set(factors)) > 1 else factors[:1]

    @property
    def sizes(self) -> Sizes:
        """What the shapes of a position encoding's parameters depend on."""
        return Sizes(
            layers=self.num_hidden_layers,
            hidden_size=self.hidden_size,
            heads=self.num_attention_heads,
            head_dim=self.heads_width,
            std=self.initializer_range,
        )
