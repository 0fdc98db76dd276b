"""How far the queries and keys of a layer turn, in each band of a position map.

Shapes: L layers, B batch, S tokens per window, d rotary dimension; pairs: d/2. An axis marked # may
have size 1.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rope_jax.positions.visible import Visible
from rope_jax.rope import Frequencies, Rotary, cos_sin
from rope_jax.rope.angles import angles


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Band:
    """The keys that a position map shows at one kind of relative position, as the model's argument.

    A query at position p turns by θ'·f(p) + (θ − θ')·border, a key by θ'·g(p), where θ are the
    frequencies of the `Rotary` that the band belongs to.

    frequencies:     θ' and m, with leading axes [L, B], each of which may be 1.
    query_positions: f(p), integers [1, #B, S]; None: f(p) = p.
    key_positions:   g(p), integers [1, #B, S]; None: g = f.
    border:          the distance at which θ' takes over from θ without a step, [1, #B]; None: 0.
    visible:         which keys these are. Static: another value needs another program.
    """

    # numpy on the host, jax inside jit
    frequencies: Frequencies
    query_positions: Any
    key_positions: Any
    border: Any
    visible: Visible = field(metadata={"static": True})


class Turn(NamedTuple):
    """cos and sin, times m, of the angles by which one band's queries and keys turn; float32."""

    query_cos: Float[Array, "*layers #B S pairs"]
    query_sin: Float[Array, "*layers #B S pairs"]
    key_cos: Float[Array, "*layers #B S pairs"]
    key_sin: Float[Array, "*layers #B S pairs"]


def turns(rotary: Rotary, positions: Int[Array, "#B S"]) -> tuple[Turn, ...]:
    """Return the rotation of every band at the tokens' positions; one band without a map.

    Computed once, before the layers, and for every token once per band.
    """
    if not rotary.bands:
        return (Turn(*cos_sin(rotary.frequencies, positions) * 2),)
    return tuple(_turn(band, rotary.frequencies, positions) for band in rotary.bands)


def visible(rotary: Rotary) -> tuple[Visible, ...]:
    """Return which keys each band holds; static."""
    return tuple(band.visible for band in rotary.bands) or (Visible(),)


def _turn(band: Band, near: Frequencies, positions: Int[Array, "#B S"]) -> Turn:
    phase = None
    if band.border is not None:
        border = jnp.asarray(band.border)[..., None]
        phase = angles(near, border) - angles(band.frequencies, border)
    query = positions if band.query_positions is None else band.query_positions
    of_queries = cos_sin(band.frequencies, query, phase)
    if band.key_positions is None and phase is None:
        return Turn(*of_queries, *of_queries)
    key = query if band.key_positions is None else band.key_positions
    return Turn(*of_queries, *cos_sin(band.frequencies, key))
