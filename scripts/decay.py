"""How the score of equal queries and keys decays with their distance, in float64 on the host.

Shapes: pairs d/2 of the rotary dimension d.
"""

import numpy as np
from jaxtyping import Float64, Integer

from rope_jax.rope.geometry import RotaryGeometry

Scores = Float64[np.ndarray, " distances"]

_ANGLES_AT_ONCE = 2**20  # 8 MiB


def decay_scores(
    inv_freq: Float64[np.ndarray, " pairs"],
    distances: Integer[np.ndarray, " distances"],
    m: float = 1.0,
) -> Scores:
    """Return the score of q = k = (1, …, 1) at distances Δ: m²·Σ_i 2·cos(Δ·θ'_i)/√d.

    RoFormer, arXiv 2104.09864, §3.4.3, without its bound. At Δ = 0 it is m²·√d, its maximum. A
    query scale is left out, because it depends on the position and not on the distance.
    """
    weight = 2 * m**2 / np.sqrt(2 * inv_freq.size)
    scores = np.empty(distances.shape)
    at_once = max(1, _ANGLES_AT_ONCE // inv_freq.size)
    for first in range(0, distances.size, at_once):
        block = slice(first, first + at_once)
        scores[block] = weight * np.cos(np.multiply.outer(distances[block], inv_freq)).sum(-1)
    return scores


def logarithmic_decay(
    geometry: RotaryGeometry, distances: Float64[np.ndarray, " distances"]
) -> Scores:
    """Return √d·(1 − (ln Δ + C)/ln b), C = 0.577: the mean of `decay_scores` for 1 ≪ Δ ≪ b.

    It holds for unscaled frequencies θ_i = b^(−2i/d), b > 1. With many pairs the sum approaches
    √d·(Ci(Δ) − Ci(Δ/b))/ln b, where Ci, the cosine integral, tends to 0 for large and to C + ln x
    for small arguments. The score falls by √d·ln 2/ln b per octave: the larger the base, the weaker
    the decay.
    """
    log_base = np.log(geometry.base)
    return np.sqrt(geometry.rotary_dim) * (1 - (np.log(distances) + np.euler_gamma) / log_base)


def first_negative_distance(
    inv_freq: Float64[np.ndarray, " pairs"], limit: int = 2**20
) -> int | None:
    """Return the smallest Δ ≤ limit at which Σ_i cos(Δ·θ'_i) < 0, or None if there is none.

    Up to there an equal key scores higher, on average, than an unrelated one: for independent
    components with mean 0 and variance v, its expected score is 2v·Σ_i cos(Δ·θ'_i), and that of
    another key 0. Men et al., arXiv 2405.14591, derive from it the smallest base for a context
    length. It is not monotonic in the base. Unrotated dimensions, each of which adds v at any
    distance, are left out.
    """
    first = 0
    while first <= limit:
        # a small base has its first negative score early, so the blocks grow
        last = min(2 * first + 1023, limit)
        negative = np.flatnonzero(decay_scores(inv_freq, np.arange(first, last + 1)) < 0)
        if negative.size:
            return first + int(negative[0])
        first = last + 1
    return None


def octaves(length: int) -> list[tuple[int, int]]:
    """Return the first and last distance of each octave below `length`: (1, 1), (2, 3), (4, 7) …"""
    starts = [2**k for k in range(int(length - 1).bit_length())]
    return [(start, min(2 * start, length) - 1) for start in starts]


def mean_and_peak_by_octave(
    scores: Scores,
) -> tuple[Float64[np.ndarray, " octaves"], Float64[np.ndarray, " octaves"]]:
    """Return the mean and the largest |score| of each octave; scores at distances 0 … N − 1."""
    parts = [scores[first : last + 1] for first, last in octaves(scores.size)]
    return np.array([part.mean() for part in parts]), np.array([abs(part).max() for part in parts])


def octave_means(
    scores: Scores, centres: Integer[np.ndarray, " centres"]
) -> Float64[np.ndarray, " centres"]:
    """Return the mean score over the octave around each centre: distances Δ/√2 … Δ·√2.

    scores: at distances 0 … N − 1. centres: Δ ≥ 1, with ⌊Δ·√2⌋ below N. Within an octave every
    pair that rotates several times averages out, whatever its phase.
    """
    half_octave = 2**0.5
    first, last = np.ceil(centres / half_octave), np.floor(centres * half_octave)
    spans = zip(first.astype(int), last.astype(int) + 1, strict=True)
    return np.array([scores[begin:end].mean() for begin, end in spans])
