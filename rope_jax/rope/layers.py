"""The geometry and scaling of each layer of a model: as a `Rotary`, and in words.

Shapes: L layers, B batch, T length, d rotary dimension.
"""

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from jaxtyping import Float32

from rope_jax.rope.angles import Positions
from rope_jax.rope.geometry import (
    AnyArray,
    Frequencies,
    Rotary,
    RotaryGeometry,
    SeqLen,
    array_module,
)
from rope_jax.rope.strategies import Scaling

T = TypeVar("T")


@dataclass(frozen=True)
class LayerOverride:
    """Settings in which one layer differs from the others; None: the same as theirs."""

    base: float | int | None = None
    scaling: Scaling | None = None
    rotary_dim: int | None = None


@dataclass(frozen=True)
class RotaryLayers:
    """The rotary embedding of every layer: layer i uses pattern[i mod len(pattern)].

    geometry: that of layers that do not override the base.
    count:    L, the number of layers.
    pattern:  overrides, repeated. For example, to leave every fourth layer without positions:
              (LayerOverride(),) * 3 + (LayerOverride(scaling=DRoPEScaling()),)
    head_dim: the heads' width, if known; `check` needs it to recognize partial rotary.
    """

    geometry: RotaryGeometry
    count: int = 1
    pattern: tuple[LayerOverride, ...] = (LayerOverride(),)
    head_dim: int | None = None

    def for_layer(self, layer: int, scaling: Scaling) -> tuple[RotaryGeometry, Scaling]:
        """Return one layer's geometry and scaling: `scaling`, unless the layer overrides it."""
        override = self.pattern[layer % len(self.pattern)]
        geometry = self.geometry
        if override.base is not None:
            geometry = replace(geometry, base=override.base)
        if override.rotary_dim is not None:
            geometry = replace(geometry, rotary_dim=override.rotary_dim)
        applied = scaling.where_trained(override.scaling)
        return geometry, applied.for_layer(layer, self.count)

    def per_layer(self, scaling: Scaling) -> list[tuple[RotaryGeometry, Scaling]]:
        """Return the geometry and scaling of all L layers, or a single one if all are alike."""
        layers = [self.for_layer(layer, scaling) for layer in range(self.count)]
        return layers[:1] if all(layer == layers[0] for layer in layers) else layers

    def check(self, scaling: Scaling, seq_len: SeqLen = None) -> None:
        """Check every layer as `Scaling.check` does; ValueError for the first that fails."""
        for geometry, layer_scaling in dict.fromkeys(self.per_layer(scaling)):
            layer_scaling.check(geometry, seq_len, self.head_dim)
            layer_scaling.query_scale_at(geometry, np.arange(1))

    def frequencies(self, scaling: Scaling, seq_len: SeqLen = None) -> Frequencies:
        """Return frequencies with leading axes [L, B].

        L is 1 if all layers are alike, B is 1 unless seq_len holds one length per row. Layers with
        fewer pairs than others have zeros after them.
        """
        made = [each.frequencies(geometry, seq_len) for geometry, each in self.per_layer(scaling)]
        inv_freqs, remainders, factors = [*zip(*made, strict=True)]
        xp = array_module(*inv_freqs, *remainders, *factors)
        rows, pairs = max(map(np.size, factors)), max(x.shape[-1] for x in inv_freqs)

        def by_pair(leaf: tuple[AnyArray, ...]) -> AnyArray:
            rest = ([(0, 0)] * (x.ndim - 1) + [(0, pairs - x.shape[-1])] for x in leaf)
            padded = (xp.pad(x, widths) for x, widths in zip(leaf, rest, strict=True))
            return xp.stack([xp.broadcast_to(x, (rows, pairs)) for x in padded])

        by_layer = xp.stack([xp.broadcast_to(x, (rows,)) for x in factors])
        return Frequencies(by_pair(inv_freqs), by_pair(remainders), by_layer)

    def has_query_scale(self, scaling: Scaling) -> bool:
        """Return whether any layer scales its queries by position."""
        return any(each.query_scale is not None for _, each in self.per_layer(scaling))

    def query_scale(
        self, scaling: Scaling, positions: Positions
    ) -> Float32[AnyArray, "#layers *batch T"]:
        """Return the factors on queries at positions [B, T]."""
        scales = [
            each.query_scale_at(geometry, positions) for geometry, each in self.per_layer(scaling)
        ]
        return array_module(positions, *scales).stack(scales)

    def rotary(self, scaling: Scaling, positions: Positions, seq_len: SeqLen = None) -> Rotary:
        """Return the model's argument, for positions [B, T], where B may be 1."""
        return Rotary(self.frequencies(scaling, seq_len), self.query_scale(scaling, positions))


def shortest_pattern(layers: list[T]) -> list[T]:
    """Return the shortest list that repeats to this one; its last repetition may be cut."""
    count = len(layers)
    return next(layers[:n] for n in range(1, count + 1) if layers[n:] == layers[: count - n])
