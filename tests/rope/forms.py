"""The rotation in float64 NumPy: a complex product, and a matrix (RoFormer, eq. 12 and 15).

Shapes: d rotary dimension, pairs d/2, `batch` any leading axes. Angles are position × frequency,
without m.
"""

import numpy as np


def pair_dimensions(pairs, layout):
    """Return both dimensions of every pair: "half" (i, i + d/2), "interleaved" (2i, 2i + 1)."""
    i = np.arange(pairs)
    return (i, i + pairs) if layout == "half" else (2 * i, 2 * i + 1)


def rotate_complex(x, angles, layout="half"):
    """Rotate pair i of x [*batch, H] by angles [*batch, pairs]: z_i·e^(j·φ_i), z_i = x_a + j·x_b.

    Dimensions from d on are returned unchanged.
    """
    first, second = pair_dimensions(angles.shape[-1], layout)
    z = (x[..., first] + 1j * x[..., second]) * np.exp(1j * angles)
    out = x.copy()
    out[..., first], out[..., second] = z.real, z.imag
    return out


def rotation_matrix(angles, layout="half"):
    """Return the matrix [d, d] that rotates column vectors by angles [pairs]."""
    pairs = angles.size
    first, second = pair_dimensions(pairs, layout)
    matrix = np.zeros((2 * pairs, 2 * pairs))
    matrix[first, first] = matrix[second, second] = np.cos(angles)
    matrix[first, second], matrix[second, first] = -np.sin(angles), np.sin(angles)
    return matrix
