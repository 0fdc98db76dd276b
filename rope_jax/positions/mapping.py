"""From a position map's settings to the bands that a model takes as its argument.

Shapes: L layers, B batch, S tokens per window, d rotary dimension. Axes marked # may have size 1.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from rope_jax.positions.fitted import FittedNumbers, fitted_rotary
from rope_jax.positions.maps import MapBand, Places, PositionMap
from rope_jax.positions.maps.base import OWN
from rope_jax.positions.maps.fitted import FittedMap
from rope_jax.positions.turning import Band
from rope_jax.rope import Frequencies, Rotary, RotaryLayers


def with_map(
    rotary: Rotary,
    map_: PositionMap,
    layers: RotaryLayers,
    positions: Any,
    *,
    window: int,
    seq_len: int,
) -> Rotary:
    """Return `rotary` with a map's bands, for tokens at positions [#B, S].

    map_:    without "auto" (see `PositionMap.at`).
    layers:  those that the frequencies of `rotary` were made for.
    positions: integers that restart in every document; on the host, or traced.
    window:  L. seq_len: n.
    """
    made = map_.bands(window, seq_len)
    if isinstance(map_, FittedMap):
        numbers, keys = FittedNumbers(**map_.numbers), [band.visible for band in made]
        length = map_.train_length
        return fitted_rotary(rotary, numbers, keys, positions, train_length=length, seq_len=seq_len)
    bands = tuple(_band(band, rotary.frequencies, layers, positions, seq_len) for band in made)
    return rotary._replace(bands=bands)


def _band(
    band: MapBand, near: Frequencies, layers: RotaryLayers, positions: Any, seq_len: int
) -> Band:
    frequencies = near if band.far is None else layers.frequencies(band.far, seq_len)
    if band.divisor != 1:
        frequencies = _divided(frequencies, band.divisor)
    if band.attention_factor != 1:
        m = frequencies.attention_factor * np.float32(band.attention_factor)
        frequencies = frequencies._replace(attention_factor=m)
    border = np.full((1, 1), band.border, np.int32)
    return Band(
        frequencies,
        query_positions=None if band.query == OWN else _places(band.query, positions),
        key_positions=None if band.key == band.query else _places(band.key, positions),
        border=border if band.border else None,
        visible=band.visible,
    )


def _places(places: Places, positions: Any) -> Any:
    """Return the positions [1, #B, S] at which a band puts tokens."""
    return places.of(positions)[None].astype(np.int32)


def _divided(frequencies: Frequencies, divisor: float) -> Frequencies:
    """Return θ/k; exact to about 48 bits on the host."""
    if isinstance(frequencies.inv_freq, np.ndarray):
        exact = frequencies.inv_freq.astype(np.float64) + frequencies.inv_freq_remainder
        return Frequencies.from_float64(exact / divisor, frequencies.attention_factor)
    return frequencies._replace(
        inv_freq=frequencies.inv_freq / jnp.float32(divisor),
        inv_freq_remainder=frequencies.inv_freq_remainder / jnp.float32(divisor),
    )
