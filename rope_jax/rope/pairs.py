"""A strategy pair by pair: wavelengths, rotations, and angles unseen in training.

In float64 on the host, with frequencies exact to about 48 bits. Shapes: pairs d/2 of the rotary
dimension d, ordered from fastest to slowest.
"""

import numpy as np
from jaxtyping import Float64

from rope_jax.rope.geometry import RotaryGeometry
from rope_jax.rope.strategies import Scaling

Pairwise = Float64[np.ndarray, " pairs"]


def exact_frequencies(
    scaling: Scaling, geometry: RotaryGeometry, seq_len: int | None = None
) -> tuple[Pairwise, float]:
    """Return θ' in radians per token, as a model uses them, and m; see `Scaling.frequencies`."""
    made = scaling.frequencies(geometry, seq_len)
    return made.exact, float(made.attention_factor)


def wavelengths(inv_freq: Pairwise) -> Pairwise:
    """Return 2π/θ' in tokens; infinite for a pair that does not rotate."""
    rotating = inv_freq > 0
    return np.where(rotating, 2 * np.pi / np.where(rotating, inv_freq, 1), np.inf)


def turns(inv_freq: Pairwise, length: int) -> Pairwise:
    """Return n·θ'/(2π): the rotations of each pair in n (`length`) tokens."""
    return length * inv_freq / (2 * np.pi)


def unseen_share(inv_freq: Pairwise, length: int, trained: Pairwise, window: int) -> Pairwise:
    """Return the share of the circle that a text covers but training did not, in [0, 1].

    The text has n (`length`) tokens and frequencies θ' (`inv_freq`); training had L (`window`)
    tokens and frequencies θ (`trained`). Distances 0 … n − 1 cover an arc from angle 0 in one
    direction, since a query comes after its keys; angles between two distances count. So the unseen
    part is

        max(0, min(1, (n−1)·θ'_i/(2π)) − min(1, (L−1)·θ_i/(2π)))
    """
    covered = np.minimum(turns(inv_freq, length - 1), 1.0)
    return np.maximum(covered - np.minimum(turns(trained, window - 1), 1.0), 0.0)
