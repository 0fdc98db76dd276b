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
from rope_jax.rope.geometry import AnyArray

__all__ = ["Band", "Rotation", "RotationsByLayer", "band_masks", "of_tokens", "rotations"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Band:
    """The keys that a position map shows in one way, as a part of the model's argument.

    In head h, pair m of a query at position p rotates by θ'·f(p) + φ + (θ − θ')·border and is
    multiplied by a; that of a key rotates by θ'·g(p). θ are the frequencies of the `Rotary` that
    the band belongs to. What is None has no effect.

    frequencies:     θ' and m, [#L, #B, #K, pairs] and [#L, #B, #K].
    mask:            which keys these are; static.
    query_positions: f(p), integers [1, #B, S]; None: f(p) = p.
    key_positions:   g(p), integers [1, #B, S]; None: g = f.
    border:          the distance at which θ' takes over from θ without a step, [1, #B].
    phase:           φ in radians, [#L, #B, #N, pairs].
    amplitude:       a, [#L, #B, #N, pairs].
    query_scale:     multiplies whole queries, [#L, #B, #N, S].
    """

    frequencies: Frequencies
    mask: BandMask = field(metadata={"static": True})
    query_positions: Any = None
    key_positions: Any = None
    border: Any = None
    phase: Any = None
    amplitude: Any = None
    query_scale: Any = None

    def rotation(self, near: Frequencies, positions: Int[Array, "#B S"]) -> "Rotation":
        """Return the rotation at the tokens' positions. near: θ."""
        query = positions if self.query_positions is None else self.query_positions
        key = query if self.key_positions is None else self.key_positions
        by_head = [x.shape[2] for x in (self.phase, self.amplitude) if x is not None]
        heads = max(by_head, default=1)

        def for_queries(x: Array) -> Array:  # whose heads share those of keys in groups
            return jnp.repeat(x, heads // x.shape[2], 2) if 1 < x.shape[2] < heads else x

        m = jnp.asarray(self.frequencies.attention_factor, jnp.float32)[..., None, None]
        of_queries = of_keys = angles(self.frequencies, key[..., None, :])  # [L, #B, #K, S, pairs]
        if key is not query:
            of_queries = angles(self.frequencies, query[..., None, :])
        of_queries, query_m = for_queries(of_queries), for_queries(m)
        if self.border is not None:
            border = jnp.asarray(self.border)[..., None, None]
            phase = angles(near.for_heads(), border) - angles(self.frequencies, border)
            of_queries = of_queries + phase
        if self.phase is not None:
            of_queries = of_queries + self.phase[..., None, :]
        if self.amplitude is not None:
            query_m = query_m * self.amplitude[..., None, :]
        keys = _cos_sin(m, of_keys)
        queries = keys if of_queries is of_keys and query_m is m else _cos_sin(query_m, of_queries)
        scale = None if self.query_scale is None else jnp.swapaxes(self.query_scale, 2, 3)
        return Rotation(*queries, *keys, query_scale=scale)


def _cos_sin(m: Array, radians: Array) -> tuple[Array, Array]:
    """Return m·cos and m·sin of angles [L, #B, heads, S, pairs], as [L, #B, S, heads, pairs]."""
    cos, sin = (computed_once(m * f(radians)) for f in (jnp.cos, jnp.sin))
    return jnp.swapaxes(cos, 2, 3), jnp.swapaxes(sin, 2, 3)


class Rotation(NamedTuple):
    """cos and sin, times m, of the angles of one band's queries and keys; float32.

    query_scale: multiplies the band's whole queries, if given.
    """

    query_cos: Float[Array, "*layers #B S #N pairs"]
    query_sin: Float[Array, "*layers #B S #N pairs"]
    key_cos: Float[Array, "*layers #B S #K pairs"]
    key_sin: Float[Array, "*layers #B S #K pairs"]
    query_scale: Float[Array, "*layers #B S #N"] | None = None


def of_tokens(rotary: Rotary, choose: Callable[[AnyArray], AnyArray]) -> Rotary:
    """Return the argument for some tokens: choose(x) takes them from x [..., S], unless S is 1."""

    def chosen(x: AnyArray) -> AnyArray:
        return x if x.shape[-1] == 1 else choose(x)

    def given(x: AnyArray | None) -> AnyArray | None:
        return None if x is None else chosen(x)

    bands = tuple(
        replace(
            band,
            query_positions=given(band.query_positions),
            key_positions=given(band.key_positions),
            query_scale=given(band.query_scale),
        )
        for band in rotary.bands
    )
    return rotary._replace(bands=bands, query_scale=chosen(rotary.query_scale))


def rotations(rotary: Rotary, positions: Int[Array, "#B S"]) -> tuple[Rotation, ...]:
    """Return the rotation of every band at the tokens' positions; one band without a map."""
    if not rotary.bands:
        cos, sin = (x[..., None, :] for x in cos_sin(rotary.frequencies, positions))
        return (Rotation(cos, sin, cos, sin),)
    return tuple(band.rotation(rotary.frequencies, positions) for band in rotary.bands)


class RotationsByLayer(NamedTuple):
    """Of what each layer makes its own rotations; those of all layers at once take much memory.

    In a fit by head of SmolLM2-135M they took 6 GiB of 15 at 12,288 tokens.
    """

    rotary: Rotary
    positions: Int[Array, "*#layers #B S"]

    def made(self) -> tuple[Rotation, ...]:
        """Return the rotations of one layer, without an axis of layers here and there."""
        rotary = jax.tree.map(lambda x: x[None], self.rotary)
        return jax.tree.map(lambda x: x[0], rotations(rotary, self.positions))


def band_masks(rotary: Rotary) -> tuple[BandMask, ...]:
    """Return which keys each band holds; static."""
    return tuple(band.mask for band in rotary.bands) or (BandMask(),)
