"""From a position map's settings to the bands that a model takes as its argument.

Shapes: L layers, B batch, F far bands, S tokens per window, N heads, K key-value heads, C
distances, pairs d/2. An axis marked # may have size 1.
"""

import math
from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from rope_jax.positions.bands import Band
from rope_jax.positions.maps import PositionFunction, PositionMap
from rope_jax.positions.maps.base import UNMOVED
from rope_jax.positions.maps.fitted import FittedMap
from rope_jax.positions.mask import BandMask
from rope_jax.rope import Frequencies, Rotary, RotaryLayers
from rope_jax.rope.geometry import AnyArray, array_module, as_float


def with_map(
    rotary: Rotary,
    map_: PositionMap,
    layers: RotaryLayers,
    positions: Int[AnyArray, "#B S"],
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

    def moved(function: PositionFunction) -> AnyArray:
        """The positions [1, #B, S] at which a band puts tokens."""
        return function(positions)[None].astype(np.int32)

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
                frequencies.for_heads(),
                band.mask,
                query_positions=None if band.query == UNMOVED else moved(band.query),
                key_positions=None if band.key == band.query else moved(band.key),
                border=np.full((1, 1), band.border, np.int32) if band.border else None,
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
    """The params of a `FittedMap`, with its names and axes, on the host or traced in a fit.

    None: as without a map. [#L, #K, …]: near_inv_freq, attention_factor and, for each of F far
    bands, far_inv_freq; [#L, #N, …]: far_phase and far_amplitude, for each far band, scale_s,
    scale_p and bias, whose heads are all N.
    """

    near_inv_freq: AnyArray | None = None
    attention_factor: AnyArray | None = None
    far_inv_freq: AnyArray | None = None
    far_phase: AnyArray | None = None
    far_amplitude: AnyArray | None = None
    scale_s: AnyArray | None = None
    scale_p: AnyArray | None = None
    bias: AnyArray | None = None


def fitted_rotary(
    rotary: Rotary,
    params: FittedParams,
    masks: Sequence[BandMask],
    positions: Int[AnyArray, "#B S"],
    *,
    train_length: int,
    seq_len: int,
) -> Rotary:
    """Return `rotary` with the bands and the bias that the params make.

    rotary:    frequencies and m for the bands that have none of their own; its query scale is
               replaced if the params have one.
    masks:     which keys each band holds.
    positions: restart in every document.
    train_length: L of the query scale. seq_len: n, the longest distance plus 1.
    """
    xp = array_module(*jax.tree.leaves((params, positions)))
    near, scale, bias = rotary.frequencies.for_heads(), None, None
    if params.scale_s is not None and params.scale_p is not None:
        rotary = rotary._replace(query_scale=np.ones((1, 1, 1), np.float32))
        # s·max(1, ln n / ln L)^p with n = position + 1: [#L, #B, #N, S]
        s, p = (x[:, None, :, None] for x in (params.scale_s, params.scale_p))
        beyond = as_float(xp.maximum(positions, train_length - 1)[None, :, None], xp)
        scale = (s * (xp.log1p(beyond) / math.log(train_length)) ** p).astype(np.float32)
    if params.attention_factor is not None:
        near = near._replace(attention_factor=_by_row(params.attention_factor))
    bands = [Band(_frequencies(params.near_inv_freq, near, xp), masks[0], query_scale=scale)]
    for number, mask in enumerate(masks[1:]):
        inv_freq, phase, amplitude = (
            None if x is None else x[number]
            for x in (params.far_inv_freq, params.far_phase, params.far_amplitude)
        )
        bands.append(
            Band(
                _frequencies(inv_freq, near, xp),
                mask,
                phase=None if phase is None else _by_row(phase),
                amplitude=None if amplitude is None else _by_row(amplitude),
                query_scale=scale,
            )
        )
    if params.bias is not None:
        bias = _by_distance(params.bias, masks[1].nearest, seq_len, xp)
    return rotary._replace(bands=tuple(bands), bias=bias)


def _by_row(params: AnyArray) -> AnyArray:
    """Return params [#L, …] in float32, with the axis of rows: [#L, 1, …]."""
    return params[:, None].astype(np.float32)


def _frequencies(inv_freq: AnyArray | None, near: Frequencies, xp: ModuleType) -> Frequencies:
    """Return θ' [#L, #K, pairs], or near's, and near's m, with the axis of rows."""
    if inv_freq is None:
        return near
    if xp is np:
        made = Frequencies.from_float64(np.asarray(inv_freq[:, None]))
        return made._replace(attention_factor=near.attention_factor)
    return near.with_inv_freq(inv_freq[:, None])


def _by_distance(
    bias: Float[AnyArray, "#L N knots"], first: int, seq_len: int, xp: ModuleType
) -> Float[AnyArray, "#L 1 N C"]:
    """Return the bias by distance, the last entry for all beyond."""
    knots = bias.shape[-1]
    distances = np.arange(min(seq_len, first * 2 ** (knots - 1) + 1))
    octaves = np.log2(np.maximum(distances, first) / first)
    weights = np.maximum(0, 1 - np.abs(octaves - np.arange(knots)[:, None]))
    weights[:, distances < first] = 0
    return _by_row(xp.matmul(bias, weights if xp is np else weights.astype(np.float32)))
