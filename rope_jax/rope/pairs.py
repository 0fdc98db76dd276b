"""What a strategy does, pair by pair: wavelengths, turns, angles that training never showed, decay.

All in float64 on the host, from frequencies to about 48 bits. Shapes: d rotary dimension, N
distances.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rope_jax.rope.geometry import RotaryGeometry
from rope_jax.rope.strategies import Scaling

Array = NDArray[np.float64]

_AT_ONCE = 2**14  # distances: a block of angles stays within megabytes


def effective(
    scaling: Scaling, geometry: RotaryGeometry, seq_len: int | None = None
) -> tuple[Array, float]:
    """θ' [d/2], radians a token, and m; seq_len as in `Scaling.frequencies`.

    As a model has them: what is below a float32's least, 1e-45, is 0.
    """
    made = scaling.frequencies(geometry, seq_len)
    inv_freq = made.inv_freq.astype(np.float64) + made.inv_freq_remainder.astype(np.float64)
    return inv_freq, float(made.attention_factor)


def wavelengths(inv_freq: Array) -> Array:
    """2π/θ' in tokens, [d/2]; infinite where a pair stands still."""
    turning = inv_freq > 0
    return np.where(turning, 2 * np.pi / np.where(turning, inv_freq, 1), np.inf)


def turns(inv_freq: Array, length: int) -> Array:
    """L·θ'/(2π), [d/2]: how often each pair turns in `length` tokens."""
    return length * inv_freq / (2 * np.pi)


def arcs(inv_freq: Array, length: int) -> Array:
    """Share of the circle that relative rotations in a text of `length` tokens cover, [d/2].

    Distances 0 … n−1 turn a pair by 0 … (n−1)·θ', one way, as a query stands after its keys: an
    arc from angle 0, of min(1, (n−1)·θ'/(2π)) turns. It is taken whole: the points between two
    distances count as met.
    """
    return np.minimum(turns(inv_freq, length - 1), 1.0)


def unseen_share(inv_freq: Array, length: int, trained: Array, window: int) -> Array:
    """Share of the circle that a text meets and training did not, in [0, 1], [d/2].

    The text has n (`length`) tokens and frequencies θ' (`inv_freq`), training had L (`window`) and
    `trained`. Both arcs begin at angle 0, so what the text's has beyond training's is

        max(0, min(1, (n−1)·θ'_i/(2π)) − min(1, (L−1)·θ_i/(2π)))

    0 where training saw the pair's whole circle, however long the text, and where the strategy
    slows the pair enough. 1 needs a pair that stood still in training.
    """
    return np.maximum(arcs(inv_freq, length) - arcs(trained, window), 0.0)


@dataclass(frozen=True)
class Pairs:
    """A strategy beside no scaling and beside training. Arrays are float64 [d/2], fastest first.

    theta:    θ, of no scaling.
    inv_freq: θ', of the strategy at a text of `length` tokens; m: its attention factor.
    trained:  what the model was trained with, at `window` tokens: θ, or those of a scaling.
    """

    theta: Array
    inv_freq: Array
    m: float
    trained: Array
    window: int
    length: int

    @property
    def wavelengths(self) -> Array:
        """2π/θ', tokens."""
        return wavelengths(self.inv_freq)

    @property
    def turns(self) -> Array:
        """L·θ'/(2π): turns inside the training window."""
        return turns(self.inv_freq, self.window)

    @property
    def scale(self) -> Array:
        """θ'/θ."""
        return self.inv_freq / self.theta

    @property
    def unseen(self) -> Array:
        """Share of the circle that the text meets and training did not; see `unseen_share`."""
        return unseen_share(self.inv_freq, self.length, self.trained, self.window)


def decay(inv_freq: Array, distances: NDArray[np.integer], m: float = 1.0) -> Array:
    """The score of q = k = (1, …, 1) at distances Δ [N]: m²·Σ_i 2·cos(Δ·θ'_i)/√d, [N].

    RoFormer, arXiv 2104.09864, §3.4.3, without its bound. At Δ = 0 it is m²·√d, the largest it
    can be. Frequencies all alike (base 1) give m²·√d·cos(Δ·θ), which does not decay. A query scale
    depends on the position, not on the distance, and is left out.
    """
    weight = 2 * m**2 / np.sqrt(2 * inv_freq.size)
    scores = np.empty(distances.shape)
    for first in range(0, distances.size, _AT_ONCE):
        block = slice(first, first + _AT_ONCE)
        scores[block] = weight * np.cos(np.multiply.outer(distances[block], inv_freq)).sum(-1)
    return scores


def log_decay(geometry: RotaryGeometry, distances: Array) -> Array:
    """√d·(1 − (ln Δ + C)/ln b), C = 0.577: the mean of `decay` of θ_i = b^(−2i/d), 1 ≪ Δ ≪ b.

    With many pairs the sum is an integral, √d·(Ci(Δ) − Ci(Δ/b))/ln b, Ci the cosine integral:
    Ci(Δ) → 0, and Ci(x) → C + ln x for small x, C Euler's constant. So the score falls by
    √d·ln 2/ln b an octave: the larger the base, the weaker the decay. Of b > 1.
    """
    log_base = np.log(geometry.base)
    return np.sqrt(geometry.rotary_dim) * (1 - (np.log(distances) + np.euler_gamma) / log_base)


def octaves(length: int) -> list[tuple[int, int]]:
    """Distances 1 … length − 1 by octave, first and last: (1, 1), (2, 3), (4, 7), …"""
    starts = [2**k for k in range(int(length - 1).bit_length())]
    return [(start, min(2 * start, length) - 1) for start in starts]


def over_octaves(scores: Array) -> tuple[Array, Array]:
    """Mean and largest |score| by octave of distance; `scores` at distances 0 … N−1."""
    parts = [scores[first : last + 1] for first, last in octaves(scores.size)]
    return np.array([part.mean() for part in parts]), np.array([abs(part).max() for part in parts])


def running(scores: Array, centres: NDArray[np.integer]) -> Array:
    """Mean score within half an octave either side, distances Δ/√2 … Δ√2, by centre Δ.

    scores: at distances 0 … N−1; centres: Δ ≥ 1, with ⌊Δ√2⌋ below N. An octave averages out every
    pair that turns often within it, whatever its phase.
    """
    half = 2**0.5
    return np.array(
        [scores[math.ceil(c / half) : math.floor(c * half) + 1].mean() for c in centres]
    )
