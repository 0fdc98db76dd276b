"""Attention of one layer: rotates queries and keys, and calls the backend.

Shapes: B batch, T query length, S key length, N heads, K key-value heads, H head dim of queries and
keys, R after they are rotated, V that of values. An axis marked # may have size 1.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rope_jax.attention import BACKENDS
from rope_jax.attention.backends.base import in_bfloat16
from rope_jax.devices.collectives import ALONE, Collectives
from rope_jax.positions.bands import Rotation
from rope_jax.positions.encodings import Encoding
from rope_jax.positions.interaction import Interaction, capped
from rope_jax.positions.mask import BandMask
from rope_jax.positions.toeplitz import plus_by_distance
from rope_jax.rope.geometry import Layout


def attend(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    v: Float[Array, "B S K V"],
    rotations: tuple[Rotation, ...],
    query_scale: Float[Array, "#B #S"],
    params: Any,
    segment_ids: Int[Array, "B S"] | None,
    bias: Float[Array, "#B N C"] | None = None,
    *,
    backend: str,
    encoding: Encoding,
    layout: Layout,
    masks: tuple[BandMask, ...],
    sliding_window: int | None,
    softcap: float | None = None,
    rounded: bool = False,
    over: Collectives = ALONE,
) -> Float[Array, "B T N V"]:
    """Rotate queries and keys, once for every band, and attend from each query to what it sees.

    Linear attention rotates its features of queries and keys instead.

    The queries are the last T of the S tokens. Where devices share each window, q, k, v and what
    rotates them are the S tokens of this device, and segment_ids has all tokens of the window; keys
    and values of the other devices are gathered.
    rotations:   how far each band is rotated.
    query_scale: multiplies whole queries, after they are rotated.
    params:     the layer's arrays of the encoding.
    bias:        added to the logits: by head, and distance from 0 to C − 1 and more; None: nothing.
    masks:       which keys each band holds.
    softcap:     c, which bounds the logits to c·tanh(logits/c) before the mask; None: nothing.
    rounded:     round the factors of the products of queries, keys, values and weights to bfloat16;
                 linear attention ignores it.
    over:        the devices that share each window.
    """
    length, attention = q.shape[1], BACKENDS[backend]

    def rotate_queries(q: Float[Array, "B T N H"], rotation: Rotation) -> Float[Array, "B T N R"]:
        cos, sin = rotation.query_cos[:, -length:], rotation.query_sin[:, -length:]
        return encoding.rotate_queries(params, q, cos, sin, layout)

    def rotate_keys(k: Float[Array, "B S K H"], rotation: Rotation) -> Float[Array, "B S K R"]:
        return encoding.rotate_keys(params, k, rotation.key_cos, rotation.key_sin, layout)

    if not attention.is_softmax:
        (rotation,) = rotations
        of_queries, of_keys = (
            functools.partial(f, rotation=rotation) for f in (rotate_queries, rotate_keys)
        )
        return attention.attend_features(q, k, v, of_queries, of_keys, segment_ids)
    rotated = []
    for rotation in rotations:
        scale = query_scale[:, -length:, None]
        if rotation.query_scale is not None:
            scale = scale * rotation.query_scale[:, -length:]
        rotated_keys = over.all_tokens(rotate_keys(k, rotation), 1)
        rotated.append((_scaled(rotate_queries(q, rotation), scale), rotated_keys))
    v = over.all_tokens(v, 1)
    scores = encoding.scores
    if bias is not None:  # only beside plain dot products, see `check_map`
        scores, params = plus_by_distance, {"by_distance": bias}
    if softcap is not None:
        scores, params = capped(scores), params | {"softcap": jnp.float32(softcap)}
    interaction = Interaction(masks, scores, encoding.values)
    compute: Callable[..., Array] = (
        attention.attend if interaction.is_plain else attention.attend_bands
    )
    if rounded:
        compute = (
            functools.partial(compute, rounded=True) if attention.rounds else in_bfloat16(compute)
        )
    interaction = interaction.within(sliding_window)
    if interaction.is_plain:
        ((query, key),), (band,) = rotated, interaction.masks
        return compute(query, key, v, segment_ids, band.beyond, over.part)
    queries, keys = zip(*rotated, strict=True)
    return compute(queries, keys, v, segment_ids, interaction, params, over.part)


def _scaled(q: Float[Array, "B T N H"], scale: Float[Array, "#B #T #N"]) -> Float[Array, "B T N H"]:
    """Scale queries in float32: in bfloat16 the scale itself would be off by up to 0.4%."""
    return (q.astype(jnp.float32) * scale[..., None]).astype(q.dtype)
