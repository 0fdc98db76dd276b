"""Whether the entries of a sweep or a fit have an effect and work in every layer."""

import math

from rope_jax.config.sections import Trained
from rope_jax.config.sweep import SweepConfig, TrainedEntry
from rope_jax.config.types import errors_in
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
    fixed = all(layer.scaling is not None for layer in layers.pattern)
    for entry in (TrainedEntry(), *config.scalings):
        if fixed and entry.type != "trained":
            advice = "; give type: trained beside the map" if entry.map else ""
            raise UserError(
                f"scalings: {entry.label} changes nothing: every layer of this model has a "
                f"scaling of its own{advice}"
            )
        with errors_in(f"scalings: {entry.label}: ", UserError):
            scaling = entry.at(length, trained.window, trained.scaling)
            layers.check(scaling, length)
            if not takes_maps and (entry.map is not None or trained.map is not None):
                raise ValueError("map: this model cannot read with a position map")
            with errors_in("map."):
                map_ = entry.map_at(length, trained.window, trained.map)
                if map_ is None and entry.map is not None:
                    raise ValueError(
                        f"type: {entry.map.type} with auto settings acts beyond the window of "
                        f"{trained.window:,} tokens, and no length is longer; give numbers"
                    )
                if map_ is not None and map_ != trained.map:
                    map_.check_reach(_known_length(scaling, trained, length), length)
                    _check_map(map_, layers, trained.window, length)


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
            with errors_in("far."):
                layers.check(band.far, length)


def _known_length(scaling: Scaling, trained: Trained, length: int) -> int:
    """The window, times what a scaling stretches beyond the trained one; at most `length`."""
    if math.isinf(scaling.longest_extension):
        return length
    more = max(1.0, scaling.longest_extension / trained.scaling.longest_extension)
    # n/L·L may be rounded to less than n
    return min(length, math.floor(trained.window * more + 1e-6))
