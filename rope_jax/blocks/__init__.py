"""The blocks of a decoder layer: the kinds of attention, mixer and feed-forward, by name.

To add a feed-forward, write a file here with a subclass of `FeedForward` and list it below.
"""

from typing import TYPE_CHECKING, Annotated, Union

from pydantic import Field

from rope_jax.blocks.attention import GroupedQueryAttention, SelfAttention
from rope_jax.blocks.base import FeedForward
from rope_jax.blocks.delta_net import GatedDeltaNet
from rope_jax.blocks.experts import Experts
from rope_jax.blocks.latent import LatentAttention
from rope_jax.blocks.mixer import Mixer
from rope_jax.blocks.mlp import MLP

__all__ = [
    "MLP",
    "AnyFeedForward",
    "AnyMixer",
    "AnySelfAttention",
    "Experts",
    "FeedForward",
    "GatedDeltaNet",
    "GroupedQueryAttention",
    "LatentAttention",
    "Mixer",
    "SelfAttention",
]

_ATTENTIONS: tuple[type[SelfAttention], ...] = (GroupedQueryAttention, LatentAttention)
_MIXERS: tuple[type[Mixer], ...] = (*_ATTENTIONS, GatedDeltaNet)
_FEED_FORWARDS: tuple[type[FeedForward], ...] = (MLP, Experts)

if TYPE_CHECKING:
    AnyFeedForward = FeedForward.Config
    """The type of a config field that holds a feed-forward: the union of all, by `type`."""
    AnySelfAttention = SelfAttention.Config
    AnyMixer = Mixer.Config
else:
    AnyFeedForward = Annotated[
        Union[*(block.Config for block in _FEED_FORWARDS)], Field(discriminator="type")
    ]
    AnySelfAttention = Annotated[
        Union[*(block.Config for block in _ATTENTIONS)], Field(discriminator="type")
    ]
    AnyMixer = Annotated[Union[*(block.Config for block in _MIXERS)], Field(discriminator="type")]
