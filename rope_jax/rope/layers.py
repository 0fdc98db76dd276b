"""The geometry and scaling of each layer of a model, and the `Rotary` made from them.

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
    """Settings of one layer that differ from the other layers'; None: the same as theirs."""

    base: float | None = None
    scaling: Scaling | None = None


@dataclass(frozen=True)
class RotaryLayers:
    """The rotary embedding of every layer: layer i uses pattern[i mod len(pattern)].

    geometry: of the layers without an overriding base.
    count:    L, the number of layers.
    pattern:  overrides, repeated. Every fourth layer without positions is
              (LayerOverride(),) * 3 + (LayerOverride(scaling=DRoPEScaling()),)
    head_dim: the heads' width, if known, by which `check` recognizes partial rotary.
    """

    geometry: RotaryGeometry
    count: int = 1
    pattern: tuple[LayerOverride, ...] = (LayerOverride(),)
    head_dim: int | None = None

    def for_layer(self, layer: int, scaling: Scaling) -> tuple[RotaryGeometry, Scaling]:
        """Return one layer's geometry and scaling.

        scaling: that of the layers without an override.
        """
        own = self.pattern[layer % len(self.pattern)]
        geometry = self.geometry if own.base is None else replace(self.geometry, base=own.base)
        return geometry, (own.scaling or scaling).for_layer(layer, self.count)

    def per_layer(self, scaling: Scaling) -> list[tuple[RotaryGeometry, Scaling]]:
        """Return the geometry and scaling of all L layers, or a single one if all are alike."""
        layers = [self.for_layer(layer, scaling) for layer in range(self.count)]
        return layers[:1] if all(layer == layers[0] for layer in layers) else layers

    def check(self, scaling: Scaling, seq_len: Any = None) -> None:
        """Check every layer as `Scaling.check` does; ValueError for the first that fails."""
        for geometry, own in self.per_layer(scaling):
            own.check(geometry, seq_len, self.head_dim)
            own.query_scale_at(geometry, np.arange(1))

    def frequencies(self, scaling: Scaling, seq_len: Any = None) -> Frequencies:
        """Return frequencies with leading axes [L, B].

        L is 1 if all layers are alike, B is 1 unless seq_len holds one length per row.
        """
        made = [own.frequencies(geometry, seq_len) for geometry, own in self.per_layer(scaling)]
        xp = _arrays_of([leaf for frequencies in made for leaf in frequencies])
        rows = max(xp.size(frequencies.attention_factor) for frequencies in made)
        pairs = self.geometry.rotary_dim // 2
        return Frequencies(
            xp.stack([xp.broadcast_to(f.inv_freq, (rows, pairs)) for f in made]),
            xp.stack([xp.broadcast_to(f.inv_freq_remainder, (rows, pairs)) for f in made]),
            xp.stack([xp.broadcast_to(f.attention_factor, (rows,)) for f in made]),
        )

    def has_query_scale(self, scaling: Scaling) -> bool:
        """Return whether any layer scales its queries by position."""
        return any(own.query_scale is not None for _, own in self.per_layer(scaling))

    def query_scale(self, scaling: Scaling, positions: Any) -> Any:
        """Return the factors on queries at positions [B, T]: float32 [L, B, T].

        L is 1 if all layers are alike; B may be 1.
        """
        scales = [
            own.query_scale_at(geometry, positions) for geometry, own in self.per_layer(scaling)
        ]
        return _arrays_of([positions, *scales]).stack(scales)

    def rotary(self, scaling: Scaling, positions: Any, seq_len: Any = None) -> Rotary:
        """Return the model's argument, for positions [B, T], where B may be 1.

        seq_len: as in `Scaling.frequencies`. The layer axis is 1 if all layers are alike.
        """
        return Rotary(self.frequencies(scaling, seq_len), self.query_scale(scaling, positions))


def _arrays_of(leaves: Sequence[Any]) -> ModuleType:
    """Return numpy if all leaves are on the host, so that nothing moves to the device too early."""
    if all(isinstance(leaf, np.ndarray | np.generic) for leaf in leaves):
        return np
    import jax.numpy as jnp

    return jnp
