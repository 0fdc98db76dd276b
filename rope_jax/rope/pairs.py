"""A strategy pair by pair: wavelengths, rotations, and angles unseen in training.

In float64 on the host, with frequencies exact to about 48 bits. Shapes: pairs d/2 of the rotary
dimension d, ordered from fastest to slowest.
"""

from dataclasses import dataclass

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
    inv_freq = made.inv_freq.astype(np.float64) + made.inv_freq_remainder.astype(np.float64)
    return inv_freq, float(made.attention_factor)


def wavelengths(inv_freq: Pairwise) -> Pairwise:
    """Return 2π/θ' in tokens; infinite for a pair that does not rotate."""
    rotating = inv_freq > 0
    return np.where(rotating, 2 * np.pi / np.where(rotating, inv_freq, 1), np.inf)


def turns(inv_freq: Pairwise, length: int) -> Pairwise:
    """Return n·θ'/(2π): the rotations of each pair in n (`length`) tokens."""
    return length * inv_freq / (2 * np.pi)


def covered_share(inv_freq: Pairwise, length: int) -> Pairwise:
    """Return the share of the circle that relative rotations cover in a text of `length` tokens.

    Distances 0 … n − 1 cover an arc of min(1, (n − 1)·θ'/(2π)) turns from angle 0, in one direction
    since a query comes after its keys. Angles between those of two successive distances count.
    """
    return np.minimum(turns(inv_freq, length - 1), 1.0)


def unseen_share(inv_freq: Pairwise, length: int, trained: Pairwise, window: int) -> Pairwise:
    """Return the share of the circle that a text covers but training did not, in [0, 1].

    The text has n (`length`) tokens and frequencies θ' (`inv_freq`); training had L (`window`)
    tokens and frequencies θ (`trained`). Both arcs start at angle 0, so the unseen part is

        max(0, min(1, (n−1)·θ'_i/(2π)) − min(1, (L−1)·θ_i/(2π)))
    """
    return np.maximum(covered_share(inv_freq, length) - covered_share(trained, window), 0.0)


@dataclass(frozen=True)
class Pairs:
    """A strategy compared with no scaling and with training, pair by pair.

    theta:    θ without scaling.
    inv_freq: θ' of the strategy for a text of `length` tokens; m: its attention factor.
    trained:  the frequencies that the model was trained with, at `window` tokens.
    """

    theta: Pairwise
    inv_freq: Pairwise
    m: float
    trained: Pairwise
    window: int
    length: int

    @property
    def wavelengths(self) -> Pairwise:
        """2π/θ', in tokens."""
        return wavelengths(self.inv_freq)

    @property
    def turns(self) -> Pairwise:
        """L·θ'/(2π): turns inside the training window."""
        return turns(self.inv_freq, self.window)

    @property
    def scale(self) -> Pairwise:
        """θ'/θ."""
        return self.inv_freq / self.theta

    @property
    def unseen(self) -> Pairwise:
        """See `unseen_share`."""
        return unseen_share(self.inv_freq, self.length, self.trained, self.window)
