"""Means and intervals over documents.

Tokens of one document are not independent, so documents are what is resampled. D documents.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

RELIABLE_DOCUMENTS = 20


class Sums(NamedTuple):
    """Of one (scaling, protocol, length): nats and scored tokens of each document."""

    nll: NDArray[Any]
    """float64 [D]"""
    tokens: NDArray[Any]
    """[D]"""

    def mean(self) -> float:
        """Nats a token, weighted by tokens: Σ nll / Σ tokens."""
        return float(self.nll.sum() / self.tokens.sum())


class Estimate(NamedTuple):
    """A figure and its 95% interval."""

    value: float
    low: float
    high: float


def mean_nll(sums: Sums, *, resamples: int, seed: int) -> Estimate:
    """`sums.mean()` and its interval."""
    return _ratio(sums.nll, sums.tokens, resamples, seed)


def paired_difference(one: Sums, other: Sums, *, resamples: int, seed: int) -> Estimate:
    """mean(one) − mean(other) over the same scored tokens, document by document."""
    if not np.array_equal(one.tokens, other.tokens):
        raise ValueError("tokens: a paired difference needs the same scored tokens on both sides")
    with np.errstate(invalid="ignore"):  # inf less inf is nan: unknown, and said so
        return _ratio(one.nll - other.nll, one.tokens, resamples, seed)


def usable_length(
    upper_bounds: dict[int, float], window: int, tolerance: float
) -> tuple[int | None, bool]:
    """(usable length, whether it is the last one tested: then read it as "at least").

    upper_bounds: by tested length, the 95% upper bound of the paired difference from `trained`
    at the window, in nats. The usable length is the largest tested n ≥ window such that n and
    every tested length from the window to n stay within `tolerance`; None where the window
    itself does not.
    """
    tested = sorted(length for length in upper_bounds if length >= window)
    usable = None
    for length in tested:
        if not upper_bounds[length] <= tolerance:  # also true of nan
            break
        usable = length
    return usable, bool(tested) and usable == tested[-1]


def _ratio(
    numerator: NDArray[Any], denominator: NDArray[Any], resamples: int, seed: int
) -> Estimate:
    """Σ numerator / Σ denominator, with a percentile bootstrap over documents."""
    value = float(numerator.sum() / denominator.sum())
    if len(numerator) < 2 or not np.isfinite(value):
        return Estimate(value, float("nan"), float("nan"))
    result = stats.bootstrap(
        (numerator, denominator),
        lambda n, d, axis: n.sum(axis) / d.sum(axis),
        paired=True,
        vectorized=True,
        n_resamples=resamples,
        method="percentile",
        rng=np.random.default_rng(seed),
    )
    interval = result.confidence_interval
    return Estimate(value, float(interval.low), float(interval.high))
