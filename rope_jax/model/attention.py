"""Attention of one layer: rotates queries and keys, and calls the backend.

Shapes: B batch, T query length, S key length, N heads, K key-value heads, H head dim of queries and
keys, R after they are rotated, V that of values. An axis marked # may have size 1.
"""

import functools
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rope_jax.attention import BACKENDS
from rope_jax.attention.backends.base import in_bfloat16
from rope_jax.devices.collectives import ALONE, Collectives
from rope_jax.positions.encodings import Encoding
from rope_jax.positions.interaction import Interaction
from rope_jax.positions.scores import capped
from rope_jax.positions.toeplitz import plus_by_distance
from rope_jax.positions.turning import Turn
from rope_jax.positions.visible import Visible
from rope_jax.rope.geometry import Layout


def attend(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    v: Float[Array, "B S K V"],
    turns: tuple[Turn, ...],
    query_scale: Float[Array, "#B #S"],
    numbers: Any,
    segment_ids: Int[Array, "B S"] | None,
    bias: Float[Array, "#B N C"] | None = None,
    *,
    backend: str,
    encoding: Encoding,
    layout: Layout,
    visible: tuple[Visible, ...],
    sliding_window: int | None,
    softcap: float | None = None,
    rounded: bool = False,
    over: Collectives = ALONE,
) -> Float[Array, "B T N V"]:
    """Turn queries and keys, once for every band, and attend from each query to what it sees.

    Linear attention turns its features of queries and keys instead.

    The queries are the last T of the S tokens. Where devices share each window, q, k, v and what
    turns them are the S tokens of this device, and segment_ids has all tokens of the window; keys
    and values of the other devices are gathered.
    turns:       how far each band turns.
    query_scale: multiplies whole queries, after they are turned.
    numbers:     the layer's arrays of the encoding.
    bias:        added to the logits: by head, and distance from 0 to C − 1 and more; None: nothing.
    visible:     which keys each band holds.
    softcap:     c, which bounds the logits to c·tanh(logits/c) before the mask; None: nothing.
    rounded:     round the factors of the products of queries, keys, values and weights to bfloat16;
                 linear attention ignores it.
    over:        the devices that share each window.
    """
    length, attention = q.shape[1], BACKENDS[backend]

    def turn_queries(q: Float[Array, "B T N H"], turn: Turn) -> Float[Array, "B T N R"]:
        cos, sin = turn.query_cos[:, -length:], turn.query_sin[:, -length:]
        return encoding.turn_queries(numbers, q, cos, sin, layout)

    def turn_keys(k: Float[Array, "B S K H"], turn: Turn) -> Float[Array, "B S K R"]:
        return encoding.turn_keys(numbers, k, turn.key_cos, turn.key_sin, layout)

    if not attention.is_softmax:
        (turn,) = turns
        of_queries, of_keys = (functools.partial(f, turn=turn) for f in (turn_queries, turn_keys))
        return attention.attend_features(q, k, v, of_queries, of_keys, segment_ids)
    turned = []
    for turn in turns:
        scale = query_scale[:, -length:, None]
        if turn.query_scale is not None:
            scale = scale * turn.query_scale[:, -length:]
        turned_keys = over.all_tokens(turn_keys(k, turn), 1)
        turned.append((_scaled(turn_queries(q, turn), scale), turned_keys))
    v = over.all_tokens(v, 1)
    scores = encoding.scores
    if bias is not None:  # only beside plain dot products, see `check_map`
        scores, numbers = plus_by_distance, {"by_distance": bias}
    if softcap is not None:
        scores, numbers = capped(scores), numbers | {"softcap": jnp.float32(softcap)}
    interaction = Interaction(visible, scores, encoding.values)
    compute = attention.attend if interaction.is_plain else attention.attend_bands
    if rounded:
        compute = (
            functools.partial(compute, rounded=True) if attention.rounds else in_bfloat16(compute)
        )
    interaction = interaction.within(sliding_window)
    if interaction.is_plain:
        ((query, key),), (band,) = turned, interaction.visible
        return compute(query, key, v, segment_ids, band.beyond, over.part)
    queries, keys = zip(*turned, strict=True)
    return compute(queries, keys, v, segment_ids, interaction, numbers, over.part)


def _scaled(q: Float[Array, "B T N H"], scale: Float[Array, "#B #T #N"]) -> Float[Array, "B T N H"]:
    """Scale queries in float32: in bfloat16 the scale itself would be off by up to 0.4%."""
    return (q.astype(jnp.float32) * scale[..., None]).astype(q.dtype)
