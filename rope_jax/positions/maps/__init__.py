"""Position maps: which relative position a query sees a key at.

To add one, write a file here with a subclass of `PositionMap` and list it below.
"""

from typing import TYPE_CHECKING, Annotated, Union

from pydantic import Field

from rope_jax.positions.maps.base import (
    MapBand,
    PositionFunction,
    PositionMap,
    first_changed_distance,
    relative_positions,
)
from rope_jax.positions.maps.fitted import FittedMap
from rope_jax.positions.maps.rerope import FarFrequencies, LeakyReRoPE, ReRoPE
from rope_jax.positions.maps.self_extend import STRING, DualChunk, SelfExtend
from rope_jax.positions.maps.sinks import LMInfinite, Streaming

__all__ = [
    "MAPS",
    "AnyMap",
    "MapBand",
    "PositionFunction",
    "PositionMap",
    "first_changed_distance",
    "relative_positions",
]

_ALL: tuple[type[PositionMap], ...] = (
    ReRoPE,
    LeakyReRoPE,
    SelfExtend,
    DualChunk,
    Streaming,
    LMInfinite,
    STRING,
    FarFrequencies,
    FittedMap,
)
MAPS = {map_.model_fields["type"].default: map_ for map_ in _ALL}
"""The class of each map, by its `type`."""

if TYPE_CHECKING:
    AnyMap = PositionMap
    """The type of a config field that holds a map: the union of all, by `type`."""
else:
    AnyMap = Annotated[Union[*MAPS.values()], Field(discriminator="type")]
