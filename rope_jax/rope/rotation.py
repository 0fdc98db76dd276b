"""Rotation of queries and keys by given cos and sin, in both layouts of the pairs.

Shapes: T length, pairs d/2 of the rotary dimension d, `batch` any leading axes.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from rope_jax.rope.geometry import Layout


def rotate(
    x: Float[Array | np.ndarray, "*batch T heads head_dim"],
    cos: Float[Array | np.ndarray, "*#batch T pairs"],
    sin: Float[Array | np.ndarray, "*#batch T pairs"],
    layout: Layout = "half",
) -> Float[Array, "*batch T heads head_dim"]:
    """Rotate pair i of each head's first d dimensions by its angle; pass the rest through.

        (x_a, x_b) -> (x_a cos − x_b sin, x_b cos + x_a sin)

    RoFormer, arXiv 2104.09864, eq. 34. Layout "half" pairs dimensions (i, i + d/2), as GPT-NeoX and
    Hugging Face do; "interleaved" pairs (2i, 2i + 1), as RoFormer and GPT-J do. They are
    equivalent up to a permutation of the projections' columns, so trained weights need theirs.

    Computed in float32, returned in x's dtype. `cos` and `sin` already include m (see `cos_sin`).

    ValueError: d is above head_dim, or the layout is unknown.
    """
    rank = x.ndim - 1
    cos, sin = (c.reshape((1,) * (rank - c.ndim) + c.shape)[..., None, :] for c in (cos, sin))
    return rotate_heads(x, cos, sin, layout)


def rotate_heads(
    x: Float[Array | np.ndarray, "*batch T heads head_dim"],
    cos: Float[Array | np.ndarray, "*#batch T groups pairs"],
    sin: Float[Array | np.ndarray, "*#batch T groups pairs"],
    layout: Layout = "half",
) -> Float[Array, "*batch T heads head_dim"]:
    """Rotate as `rotate` does, by angles that may differ between heads.

    groups divides heads; heads/groups consecutive heads share the angles of one group, as in
    grouped-query attention. Errors: as in `rotate`.
    """
    half, groups = cos.shape[-1], cos.shape[-2]
    if 1 < groups < x.shape[-2]:
        cos, sin = (jnp.repeat(c, x.shape[-2] // groups, axis=-2) for c in (cos, sin))
    if 2 * half > x.shape[-1]:
        raise ValueError(
            f"x: has heads of {x.shape[-1]} dimensions, fewer than the {2 * half} to rotate"
        )
    rotated, rest = x[..., : 2 * half].astype(jnp.float32), x[..., 2 * half :]
    if layout == "half":
        a, b = rotated[..., :half], rotated[..., half:]
        out = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
    elif layout == "interleaved":
        a, b = rotated[..., 0::2], rotated[..., 1::2]
        out = jnp.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(rotated.shape)
    else:
        raise ValueError(f'layout: {layout!r} is neither "half" nor "interleaved"')
    return jnp.concatenate([out.astype(x.dtype), rest], axis=-1)
