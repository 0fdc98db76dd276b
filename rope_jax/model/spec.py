"""What a decoder is made of, with nothing left to decide: sizes, blocks, numerics, mesh."""

from dataclasses import dataclass
from typing import Literal

from rope_jax.blocks import MLP, FeedForward, GroupedQueryAttention, SelfAttention
from rope_jax.blocks.attention import EVERY_KEY, AttentionSpan
from rope_jax.blocks.base import DecoderSpec
from rope_jax.positions.encodings import Sizes

LayersName = Literal["unrolled", "scanned"]
RematName = Literal["none", "products", "attention", "layer"]
_ATTENTION, _FEED_FORWARD = GroupedQueryAttention.Config(), MLP.Config()


@dataclass(frozen=True)
class ModelSpec(DecoderSpec):
    """A decoder. The names are those of `ModelConfig`, which explains them.

    pattern: which keys layers see; layer i has element i mod its length.
    """

    num_hidden_layers: int = 4
    self_attention: SelfAttention.Config = _ATTENTION
    feed_forward: FeedForward.Config = _FEED_FORWARD
    dense_layers: int = 0
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
    def stacks(self) -> dict[str, tuple[FeedForward.Config, int]]:
        """The layers of each kind, by the name of their parameters: feed-forward, and number."""
        last = {"layers": (self.feed_forward, self.num_hidden_layers - self.dense_layers)}
        if not self.dense_layers:
            return last
        return {"dense_layers": (MLP.Config(), self.dense_layers), **last}

    @property
    def heads_width(self) -> int:
        """H, the width of a head's queries and keys."""
        return self.self_attention.head_dim(self)

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
