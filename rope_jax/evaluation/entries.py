"""Whether the entries of a sweep or a fit have an effect and work in every layer."""

import math

from rope_jax.config.sections import Trained
from rope_jax.config.sweep import SweepConfig, TrainedEntry
from rope_jax.errors import UserError
from rope_jax.positions.maps import PositionMap
from rope_jax.rope import RotaryLayers, Scaling


def check_entries(
    config: SweepConfig,
    layers: RotaryLayers,
    trained: Trained,
    length: int,
    *,
    takes_maps: bool = True,
) -> None:
    """UserError if an entry has no effect, or does not work in every layer, at the longest length.

    trained: as for `Plan`.
    """
    window, trained_scaling, trained_map = trained
    fixed = all(layer.scaling is not None for layer in layers.pattern)
    for entry in (TrainedEntry(), *config.scalings):
        if fixed and entry.type != "trained":
            advice = "; give type: trained beside the map" if entry.map else ""
            raise UserError(
                f"scalings: {entry.label} changes nothing: every layer of this model has a "
                f"scaling of its own{advice}"
            )
        try:
            scaling = entry.at(length, window, trained_scaling)
            layers.check(scaling, length)
        except ValueError as error:
            raise UserError(f"scalings: {entry.label}: {error}") from None
        if not takes_maps and (entry.map is not None or trained_map is not None):
            raise UserError(
                f"scalings: {entry.label}: map: this model cannot read with a position map"
            )
        try:
            map_ = entry.map_at(length, window, trained_map)
            if map_ is None and entry.map is not None:
                raise ValueError(
                    f"type: {entry.map.type} with auto settings acts beyond the window of "
                    f"{window:,} tokens, and no length is longer; give numbers"
                )
            if map_ is not None and map_ != trained_map:
                known = _known_length(scaling, trained_scaling, window, length)
                map_.check_reach(known, length)
                _check_map(map_, layers, window, length)
        except ValueError as error:
            raise UserError(f"scalings: {entry.label}: map.{error}") from None


def _check_map(map_: PositionMap, layers: RotaryLayers, window: int, length: int) -> None:
    """ValueError, which begins with a key of the map, if a map has no effect."""
    if not map_.has_effect(window, length):
        raise ValueError(
            f"type: {map_.type} with these settings changes nothing in a text of {length:,} tokens"
        )
    map_.check_layers(layers)
    for band in map_.bands(window, length):
        if band.far is not None:
            if all(layer.scaling is not None for layer in layers.pattern):
                raise ValueError(
                    "far: changes nothing: every layer of this model has a scaling of its own"
                )
            try:
                layers.check(band.far, length)
            except ValueError as error:
                raise ValueError(f"far.{error}") from None


def _known_length(scaling: Scaling, trained: Scaling, window: int, length: int) -> int:
    """The window, times what a scaling stretches beyond the trained one; at most `length`."""
    if math.isinf(scaling.longest_extension):
        return length
    more = max(1.0, scaling.longest_extension / trained.longest_extension)
    # n/L·L may be rounded to less than n
    return min(length, math.floor(window * more + 1e-6))
