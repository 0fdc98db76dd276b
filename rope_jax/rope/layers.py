"""Which geometry and scaling each layer of a model has, and the `Rotary` that follows.

Shapes: L layers, B batch, T length, d rotary dimension.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np

from rope_jax.rope.frequencies import Frequencies, Rotary
from rope_jax.rope.geometry import RotaryGeometry
from rope_jax.rope.strategies import Scaling


@dataclass(frozen=True)
class LayerOverride:
    """What a layer has of its own; None: as the others."""

    base: float | None = None
    scaling: Scaling | None = None


@dataclass(frozen=True)
class RotaryLayers:
    """The rotary embedding of every layer: layer i has what pattern[i mod its length] says.

    geometry: of the layers without a base of their own.
    count:    L, how many layers there are.
    pattern:  a short one repeats. Every fourth layer without positions:
              (LayerOverride(),) * 3 + (LayerOverride(scaling=DRoPEScaling()),)
    head_dim: the heads' width, where it is known: `check` then knows partial rotary.
    """

    geometry: RotaryGeometry
    count: int = 1
    pattern: tuple[LayerOverride, ...] = (LayerOverride(),)
    head_dim: int | None = None

    def of(self, layer: int, scaling: Scaling) -> tuple[RotaryGeometry, Scaling]:
        """One layer's geometry and scaling, where `scaling` is in force for the others."""
        own = self.pattern[layer % len(self.pattern)]
        geometry = self.geometry if own.base is None else replace(self.geometry, base=own.base)
        return geometry, (own.scaling or scaling).for_layer(layer, self.count)

    def each(self, scaling: Scaling) -> list[tuple[RotaryGeometry, Scaling]]:
        """Of all L layers; of one, where all are alike."""
        layers = [self.of(layer, scaling) for layer in range(self.count)]
        return layers[:1] if all(layer == layers[0] for layer in layers) else layers

    def check(self, scaling: Scaling, seq_len: Any = None) -> None:
        """ValueError, as `Scaling.check`, for any layer."""
        for geometry, own in self.each(scaling):
            own.check(geometry, seq_len, self.head_dim)
            own.query_scale_at(geometry, np.arange(1))

    def frequencies(self, scaling: Scaling, seq_len: Any = None) -> Frequencies:
        """Leaves with axes [L|1, B|1] in front; B where seq_len has one length a row."""
        made = [own.frequencies(geometry, seq_len) for geometry, own in self.each(scaling)]
        xp = _arrays_of([leaf for frequencies in made for leaf in frequencies])
        rows = max(xp.size(frequencies.attention_factor) for frequencies in made)
        pairs = self.geometry.rotary_dim // 2
        return Frequencies(
            xp.stack([xp.broadcast_to(f.inv_freq, (rows, pairs)) for f in made]),
            xp.stack([xp.broadcast_to(f.inv_freq_remainder, (rows, pairs)) for f in made]),
            xp.stack([xp.broadcast_to(f.attention_factor, (rows,)) for f in made]),
        )

    def has_query_scale(self, scaling: Scaling) -> bool:
        """Whether any layer's queries are scaled by position."""
        return any(own.query_scale is not None for _, own in self.each(scaling))

    def query_scale(self, scaling: Scaling, positions: Any) -> Any:
        """float32 [L|1, B|1, T] of positions [B|1, T]."""
        scales = [own.query_scale_at(geometry, positions) for geometry, own in self.each(scaling)]
        return _arrays_of([positions, *scales]).stack(scales)

    def rotary(self, scaling: Scaling, positions: Any, seq_len: Any = None) -> Rotary:
        """What the model takes: frequencies for text lengths, query scales for positions [B|1, T].

        seq_len: as in `Scaling.frequencies`. Where all layers are alike the layer axis is 1.
        """
        return Rotary(self.frequencies(scaling, seq_len), self.query_scale(scaling, positions))


def _arrays_of(leaves: Sequence[Any]) -> ModuleType:
    """numpy where all is on the host, so that nothing is rounded or moved before it must be."""
    if all(isinstance(leaf, np.ndarray | np.generic) for leaf in leaves):
        return np
    import jax.numpy as jnp

    return jnp
