"""The rotation in its three equal forms: a complex product, a matrix, and elementwise.

RoFormer, arXiv 2104.09864, §3.2 to 3.4.2; docs/rope.md explains how they relate. These are to be
read and compared with, in float64 NumPy; `rotation.py` has the one that models use.

Shapes: d rotary dimension, pairs d/2, head_dim at least d, `batch` any leading axes. An angle is
position × frequency, without m. ValueError: an unknown layout.
"""

import numpy as np
from jaxtyping import Float64, Integer

from rope_jax.rope.geometry import Layout

__all__ = [
    "pair_dimensions",
    "rotate_by_matrix",
    "rotate_complex",
    "rotate_elementwise",
    "rotate_half",
    "rotation_angles",
    "rotation_matrix",
]

Vectors = Float64[np.ndarray, "*batch head_dim"]
Angles = Float64[np.ndarray, "*#batch pairs"]
Dimensions = Integer[np.ndarray, " pairs"]


def rotation_angles(
    positions: Integer[np.ndarray, "*batch"], inv_freq: Float64[np.ndarray, " pairs"]
) -> Float64[np.ndarray, "*batch pairs"]:
    """Return the angle p·θ_i of each pair at integer positions p, in radians, not reduced.

    The error is about |p·θ_i|·2^-52: 1e-9 radians at position 10^7, 5e-7 at 2^31.
    """
    return positions[..., None] * inv_freq


def pair_dimensions(pairs: int, layout: Layout) -> tuple[Dimensions, Dimensions]:
    """Return both dimensions of every pair: "half" (i, i + d/2), "interleaved" (2i, 2i + 1)."""
    i = np.arange(pairs)
    if layout == "half":
        return i, i + pairs
    if layout == "interleaved":
        return 2 * i, 2 * i + 1
    raise ValueError(f'layout: {layout!r} is neither "half" nor "interleaved"')


def rotate_complex(x: Vectors, angles: Angles, layout: Layout = "half") -> Vectors:
    """Rotate each pair as a complex number: z_i ↦ z_i·e^(j·φ_i), where z_i = x_a + j·x_b.

    RoFormer, eq. 12. Dimensions from d on are returned unchanged.
    """
    first, second = pair_dimensions(angles.shape[-1], layout)
    z = (x[..., first] + 1j * x[..., second]) * np.exp(1j * angles)
    out = x.copy()
    out[..., first], out[..., second] = z.real, z.imag
    return out


def rotation_matrix(
    angles: Float64[np.ndarray, "*batch pairs"], head_dim: int, layout: Layout = "half"
) -> Float64[np.ndarray, "*batch {head_dim} {head_dim}"]:
    """Return the matrix R that rotates column vectors: x ↦ R·x.

    RoFormer, eq. 15. In the layout "interleaved" it is block-diagonal with the blocks

        cos φ_i  −sin φ_i
        sin φ_i   cos φ_i

    and 1 on the diagonal from dimension d on. In the layout "half" rows and columns are permuted.
    """
    first, second = pair_dimensions(angles.shape[-1], layout)
    matrix = np.zeros((*angles.shape[:-1], head_dim, head_dim))
    matrix[..., np.arange(head_dim), np.arange(head_dim)] = 1
    matrix[..., first, first] = matrix[..., second, second] = np.cos(angles)
    matrix[..., first, second] = -np.sin(angles)
    matrix[..., second, first] = np.sin(angles)
    return matrix


def rotate_by_matrix(x: Vectors, angles: Angles, layout: Layout = "half") -> Vectors:
    """Rotate vectors by `rotation_matrix`, which takes d² products where the others take 2d."""
    return (rotation_matrix(angles, x.shape[-1], layout) @ x[..., None])[..., 0]


def rotate_half(x: Vectors, layout: Layout = "half") -> Vectors:
    """Return each pair (x_a, x_b) as (−x_b, x_a), a quarter turn. All dimensions are paired."""
    first, second = pair_dimensions(x.shape[-1] // 2, layout)
    out = np.empty_like(x)
    out[..., first], out[..., second] = -x[..., second], x[..., first]
    return out


def rotate_elementwise(x: Vectors, angles: Angles, layout: Layout = "half") -> Vectors:
    """Rotate by two elementwise products: x·cos φ + rotate_half(x)·sin φ.

    RoFormer, eq. 34. Dimensions from d on are returned unchanged.
    """
    pairs = angles.shape[-1]
    by_dimension = np.empty((*angles.shape[:-1], 2 * pairs))
    for dimensions in pair_dimensions(pairs, layout):
        by_dimension[..., dimensions] = angles
    rotated, rest = x[..., : 2 * pairs], x[..., 2 * pairs :]
    turned = rotated * np.cos(by_dimension) + rotate_half(rotated, layout) * np.sin(by_dimension)
    return np.concatenate([turned, rest], axis=-1)
