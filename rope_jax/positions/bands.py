"""The rotation of a layer's queries and keys in each band of a position map.

Shapes: L layers, B batch, S tokens per window, N heads, K key-value heads, d rotary dimension;
pairs: d/2. An axis marked # may have size 1.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rope_jax.positions.mask import BandMask
from rope_jax.rope import Frequencies, Rotary, cos_sin
from rope_jax.rope.angles import angles, computed_once

__all__ = ["Band", "HeadBand", "Rotation", "band_masks", "of_tokens", "rotations"]

Choose = Callable[[Any], Any]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Band:
    """The keys that a position map shows at one kind of relative position, as the model's argument.

    A query at position p rotates by θ'·f(p) + (θ − θ')·border, a key by θ'·g(p), where θ are the
    frequencies of the `Rotary` that the band belongs to.

    frequencies:     θ' and m, with leading axes [L, B], each of which may be 1.
    query_positions: f(p), integers [1, #B, S]; None: f(p) = p.
    key_positions:   g(p), integers [1, #B, S]; None: g = f.
    border:          the distance at which θ' takes over from θ without a step, [1, #B]; None: 0.
    mask:            which keys these are; static.
    """

    # numpy on the host, jax inside jit
    frequencies: Frequencies
    query_positions: Any
    key_positions: Any
    border: Any
    mask: BandMask = field(metadata={"static": True})

    def rotation(self, near: Frequencies, positions: Int[Array, "#B S"]) -> "Rotation":
        """Return the rotation at the tokens' positions. near: θ."""
        phase = None
        if self.border is not None:
            border = jnp.asarray(self.border)[..., None]
            phase = angles(near, border) - angles(self.frequencies, border)
        query = positions if self.query_positions is None else self.query_positions
        of_queries = _same_for_heads(cos_sin(self.frequencies, query, phase))
        if self.key_positions is None and phase is None:
            return Rotation(*of_queries, *of_queries)
        key = query if self.key_positions is None else self.key_positions
        return Rotation(*of_queries, *_same_for_heads(cos_sin(self.frequencies, key)))

    def of_tokens(self, choose: Choose) -> "Band":
        """Return the band of some tokens of a window: choose(x) takes them from x's last axis."""
        positions = (self.query_positions, self.key_positions)
        queries, keys = (None if x is None else choose(x) for x in positions)
        return replace(self, query_positions=queries, key_positions=keys)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class HeadBand:
    """A band whose params may differ between heads, as fits find them.

    In head h, pair m of a query at position p rotates by θ'·p + φ and is multiplied by a; that of a
    key rotates by θ'·p. Its share in the logit at distance d has the angle θ'·d + φ, times a.

    frequencies: θ' and m, [L, #B, #K, pairs] and [L, #B, #K].
    phase:       φ in radians, [L, #B, #N, pairs].
    amplitude:   a, [L, #B, #N, pairs].
    query_scale: multiplies whole queries, [L, #B, #N, S].
    mask:        which keys these are; static.
    """

    frequencies: Frequencies
    phase: Any
    amplitude: Any
    query_scale: Any
    mask: BandMask = field(metadata={"static": True})

    def rotation(self, near: Frequencies, positions: Int[Array, "#B S"]) -> "Rotation":
        """Return the rotation at the tokens' positions, which no other frequencies decide."""
        of_keys = angles(self.frequencies, positions[:, None])  # [L, #B, #K, S, pairs]
        m = jnp.asarray(self.frequencies.attention_factor, jnp.float32)[..., None, None]
        kv_heads, heads = of_keys.shape[2], max(self.phase.shape[2], self.amplitude.shape[2])
        of_queries, query_m = of_keys, m
        if 1 < kv_heads < heads:  # grouped-query attention
            of_queries, query_m = (jnp.repeat(x, heads // kv_heads, 2) for x in (of_keys, m))
        of_queries = of_queries + self.phase[..., None, :]
        query_m = query_m * self.amplitude[..., None, :]
        query_cos, query_sin, key_cos, key_sin = (
            jnp.swapaxes(computed_once(factor * function(angle)), 2, 3)
            for factor, angle in ((query_m, of_queries), (m, of_keys))
            for function in (jnp.cos, jnp.sin)
        )
        query_scale = jnp.swapaxes(self.query_scale, 2, 3)
        return Rotation(query_cos, query_sin, key_cos, key_sin, query_scale)

    def of_tokens(self, choose: Choose) -> "HeadBand":
        """As `Band.of_tokens`."""
        return replace(self, query_scale=_chosen(self.query_scale, choose))


class Rotation(NamedTuple):
    """cos and sin, times m, of the angles of one band's queries and keys; float32.

    query_scale: multiplies the band's whole queries, if given.
    """

    query_cos: Float[Array, "*layers #B S #N pairs"]
    query_sin: Float[Array, "*layers #B S #N pairs"]
    key_cos: Float[Array, "*layers #B S #K pairs"]
    key_sin: Float[Array, "*layers #B S #K pairs"]
    query_scale: Float[Array, "*layers #B S #N"] | None = None


def of_tokens(rotary: Rotary, choose: Choose) -> Rotary:
    """Return the argument for some tokens: choose(x) takes them from x [..., S], unless S is 1."""
    return rotary._replace(
        query_scale=_chosen(rotary.query_scale, choose),
        bands=tuple(band.of_tokens(choose) for band in rotary.bands),
    )


def rotations(rotary: Rotary, positions: Int[Array, "#B S"]) -> tuple[Rotation, ...]:
    """Return the rotation of every band at the tokens' positions; one band without a map."""
    if not rotary.bands:
        return (Rotation(*_same_for_heads(cos_sin(rotary.frequencies, positions)) * 2),)
    return tuple(band.rotation(rotary.frequencies, positions) for band in rotary.bands)


def band_masks(rotary: Rotary) -> tuple[BandMask, ...]:
    """Return which keys each band holds; static."""
    return tuple(band.mask for band in rotary.bands) or (BandMask(),)


def _chosen(x: Any, choose: Choose) -> Any:
    return x if x.shape[-1] == 1 else choose(x)


def _same_for_heads(cos_and_sin: tuple[Any, Any]) -> tuple[Any, Any]:
    """Add the axis of heads to [L, #B, S, pairs]."""
    cos, sin = cos_and_sin
    return cos[..., None, :], sin[..., None, :]
