"""The blocks of a decoder layer: the kinds of attention and of feed-forward, by name.

Imports no jax until a model is built. To add a feed-forward, write a file here with a subclass of
`FeedForward` and list it below.
"""

from typing import TYPE_CHECKING, Annotated, Union

from pydantic import Field

from rope_jax.blocks.attention import GroupedQueryAttention
from rope_jax.blocks.base import Block, FeedForward, SelfAttention, Sharding
from rope_jax.blocks.experts import Experts
from rope_jax.blocks.latent import LatentAttention
from rope_jax.blocks.mlp import MLP

__all__ = [
    "MLP",
    "SHARDINGS",
    "AnyFeedForward",
    "AnySelfAttention",
    "Block",
    "Experts",
    "FeedForward",
    "GroupedQueryAttention",
    "SelfAttention",
]

_ATTENTIONS: tuple[type[SelfAttention], ...] = (GroupedQueryAttention, LatentAttention)
_ALL: tuple[type[FeedForward], ...] = (MLP, Experts)

if TYPE_CHECKING:
    AnyFeedForward = FeedForward
    """The type of a config field that holds a feed-forward: the union of all, by `type`."""
    AnySelfAttention = SelfAttention
else:
    AnySelfAttention = Annotated[Union[*_ATTENTIONS], Field(discriminator="type")]
    AnyFeedForward = Annotated[Union[*_ALL], Field(discriminator="type")]


_BLOCKS: tuple[type[Block], ...] = (*_ATTENTIONS, *_ALL)
SHARDINGS: dict[tuple[str, ...], Sharding] = {
    (block.slot, *name.split(".")): sharding
    for block in _BLOCKS
    for name, sharding in block.sharding.items()
}
"""How each parameter of every block is split, by its path in a layer's parameters."""
