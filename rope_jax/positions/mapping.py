"""From a position map's settings to the bands that a model takes as its argument.

Shapes: L layers, B batch, F far bands, S tokens per window, N heads, K key-value heads, C
distances, pairs d/2. An axis marked # may have size 1.
"""

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rope_jax.positions.bands import Band, HeadBand
from rope_jax.positions.maps import Places, PositionMap
from rope_jax.positions.maps.base import OWN
from rope_jax.positions.maps.fitted import FittedMap
from rope_jax.positions.mask import BandMask
from rope_jax.rope import Frequencies, Rotary, RotaryLayers

# numpy on the host, jax inside jit
Array = Any


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
        params, masks = FittedParams(**map_.params), [band.mask for band in made]
        length = map_.train_length
        return fitted_rotary(rotary, params, masks, positions, train_length=length, seq_len=seq_len)

    def positions_of(places: Places) -> Any:
        """The positions [1, #B, S] at which a band puts tokens."""
        return places.of(positions)[None].astype(np.int32)

    bands = []
    for band in made:
        far = band.far
        frequencies = rotary.frequencies if far is None else layers.frequencies(far, seq_len)
        if band.divisor != 1:
            frequencies = _divided(frequencies, band.divisor)
        if band.attention_factor != 1:
            m = frequencies.attention_factor * np.float32(band.attention_factor)
            frequencies = frequencies._replace(attention_factor=m)
        bands.append(
            Band(
                frequencies,
                query_positions=None if band.query == OWN else positions_of(band.query),
                key_positions=None if band.key == band.query else positions_of(band.key),
                border=np.full((1, 1), band.border, np.int32) if band.border else None,
                mask=band.mask,
            )
        )
    return rotary._replace(bands=tuple(bands))


def _divided(frequencies: Frequencies, divisor: float) -> Frequencies:
    """Return θ/k; exact to about 48 bits on the host."""
    if isinstance(frequencies.inv_freq, np.ndarray):
        return Frequencies.from_float64(frequencies.exact / divisor, frequencies.attention_factor)
    return frequencies._replace(
        inv_freq=frequencies.inv_freq / jnp.float32(divisor),
        inv_freq_remainder=frequencies.inv_freq_remainder / jnp.float32(divisor),
    )


class FittedParams(NamedTuple):
    """The params of a map, on the host or traced in a fit; None: as without a map. F far bands."""

    near_inv_freq: Array | None = None
    """θ' of near keys [#L, #K, pairs]."""
    attention_factor: Array | None = None
    """m [#L, #K]."""
    far_inv_freq: Array | None = None
    """θ' of far keys [F, #L, #K, pairs]."""
    far_phase: Array | None = None
    """φ [F, #L, #N, pairs], given together with far_inv_freq."""
    far_amplitude: Array | None = None
    """a [F, #L, #N, pairs]."""
    scale_s: Array | None = None
    """s of the query scale [#L, #N]; None: the scaling's own query scale."""
    scale_p: Array | None = None
    """p of the query scale [#L, #N], given together with scale_s."""
    bias: Array | None = None
    """[#L, N, knots]."""


def fitted_rotary(
    rotary: Rotary,
    params: FittedParams,
    masks: Sequence[BandMask],
    positions: Any,
    *,
    train_length: int,
    seq_len: int,
) -> Rotary:
    """Return `rotary` with the bands and the bias that the params make.

    rotary:    frequencies and m for the bands that have none of their own; its query scale is
               replaced if the params have one.
    masks:     which keys each band holds.
    positions: integers [#B, S] that restart in every document.
    train_length: L of the query scale. seq_len: n, the longest distance plus 1.
    """
    on_host = all(isinstance(x, np.ndarray) for x in jax.tree.leaves((params, positions)))
    xp: ModuleType = np if on_host else jnp
    scale = np.ones((1, 1, 1, 1), np.float32)
    if params.scale_s is not None:
        rotary = rotary._replace(query_scale=np.ones((1, 1, 1), np.float32))
        scale = _query_scale(params.scale_s, params.scale_p, positions, train_length, xp)
    near = Frequencies(*(leaf[:, :, None] for leaf in rotary.frequencies))
    if params.attention_factor is not None:
        near = near._replace(attention_factor=_float32(params.attention_factor[:, None]))
    by_band: list[tuple[Any, ...]] = [(params.near_inv_freq, None, None)]
    for number in range(len(masks) - 1):
        far = (params.far_inv_freq, params.far_phase, params.far_amplitude)
        by_band.append(tuple(None if x is None else x[number] for x in far))
    bands = [
        HeadBand(
            frequencies=_frequencies(inv_freq, near, xp),
            phase=_or_constant(phase, 0.0, near),
            amplitude=_or_constant(amplitude, 1.0, near),
            query_scale=scale,
            mask=mask,
        )
        for (inv_freq, phase, amplitude), mask in zip(by_band, masks, strict=True)
    ]
    bias = None
    if params.bias is not None:
        bias = _by_distance(params.bias, masks[1].nearest, seq_len, xp)
    return rotary._replace(bands=tuple(bands), bias=bias)


def _frequencies(inv_freq: Array | None, near: Frequencies, xp: ModuleType) -> Frequencies:
    """θ' [#L, #K, pairs] or near's, and near's m, as [#L, #B, #K, …]."""
    m = near.attention_factor
    if inv_freq is not None:
        inv_freq = inv_freq[:, None]
        made = Frequencies.from_float64(inv_freq) if xp is np else near.with_inv_freq(inv_freq)
        near = made._replace(attention_factor=m)
    *leading, pairs = near.inv_freq.shape
    shape = np.broadcast_shapes(tuple(leading), np.shape(m))
    inv_freq, remainder = (xp.broadcast_to(x, (*shape, pairs)) for x in near[:2])
    return Frequencies(inv_freq, remainder, xp.broadcast_to(m, shape))


def _or_constant(params: Array | None, constant: float, near: Frequencies) -> Array:
    if params is None:
        return np.full((1, 1, 1, near.inv_freq.shape[-1]), constant, np.float32)
    return _float32(params[:, None])


def _query_scale(s: Array, p: Array, positions: Array, train_length: int, xp: ModuleType) -> Array:
    """Return s·max(1, ln n / ln L)^p with n = position + 1: float32 [#L, #B, #N, S]."""
    beyond = xp.maximum(positions, train_length - 1)[None, :, None]
    beyond = beyond.astype(np.float64 if xp is np else np.float32)
    ratio = xp.log1p(beyond) / beyond.dtype.type(math.log(train_length))
    return _float32(s[:, None, :, None] * ratio ** p[:, None, :, None])


def _by_distance(bias: Array, first: int, seq_len: int, xp: ModuleType) -> Array:
    """Return the bias [#L, N, knots] by distance, [#L, 1, N, C], the last entry for all beyond."""
    knots = bias.shape[-1]
    distances = np.arange(min(seq_len, first * 2 ** (knots - 1) + 1))
    octaves = np.log2(np.maximum(distances, first) / first)
    weights = np.maximum(0, 1 - np.abs(octaves - np.arange(knots)[:, None]))
    weights[:, distances < first] = 0
    table = xp.matmul(bias, weights if xp is np else weights.astype(np.float32))
    return _float32(table[:, None])


def _float32(x: Array) -> Array:
    return x.astype(np.float32)
