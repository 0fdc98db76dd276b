"""Means and intervals over documents.

Tokens of one document are not independent, so documents are what is resampled. D documents.

Intervals are BCa bootstrap intervals (Efron 1987: corrected for bias and skewness), at a level that
makes up for a bootstrap's being too narrow in small samples: its standard error has D where D − 1
belongs, and its quantiles are a normal's where a t's belong (Hesterberg, The American Statistician
69(4), 2015). Over 64 documents with differences of a lognormal's 0.45 they cover 93 to 94%, over 20
of them 94 to 95%; a plain percentile bootstrap 92 to 93%. Where a few documents outweigh the others
(a lognormal's 0.9) they cover 90%, and nothing that knows the sample alone does much better.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

RELIABLE_DOCUMENTS = 20


class Sums(NamedTuple):
    """Of one (scaling, protocol, length): nats of each document, and what they are to count."""

    nll: NDArray[Any]
    """float64 [D], over scored tokens; yarn_compat: over windows, each one's mean"""
    weight: NDArray[Any]
    """[D], how many they are"""

    def mean(self) -> float:
        """Nats a token: Σ nll / Σ weight."""
        return float(self.nll.sum() / self.weight.sum())


class Estimate(NamedTuple):
    """A figure and its 95% interval."""

    value: float
    low: float
    high: float


def mean_nll(sums: Sums, *, resamples: int, seed: int) -> Estimate:
    """`sums.mean()` and its interval."""
    return _ratio(sums.nll, sums.weight, resamples, seed)


def paired_difference(one: Sums, other: Sums, *, resamples: int, seed: int) -> Estimate:
    """mean(one) − mean(other) over the same scored tokens, document by document."""
    if not np.array_equal(one.weight, other.weight):
        raise ValueError("weight: a paired difference needs the same scored tokens on both sides")
    with np.errstate(invalid="ignore"):  # inf less inf is nan: unknown, and said so
        return _ratio(one.nll - other.nll, one.weight, resamples, seed)


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
    """Σ numerator / Σ denominator, with a bootstrap over documents."""
    value = float(numerator.sum() / denominator.sum())
    documents = len(numerator)
    if documents < 2 or not np.isfinite(value):
        return Estimate(value, float("nan"), float("nan"))
    ratios = numerator / denominator
    if np.ptp(ratios) <= 1e-12 * np.abs(ratios).max():  # all documents agree: no resample differs
        return Estimate(value, value, value)
    interval = stats.bootstrap(
        (numerator, denominator),
        lambda n, d, axis: n.sum(axis) / d.sum(axis),
        paired=True,
        vectorized=True,
        n_resamples=resamples,
        confidence_level=_expanded(0.95, documents),
        method="BCa",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Estimate(value, float(interval.low), float(interval.high))


def _expanded(level: float, documents: int) -> float:
    """The level whose normal quantile is √(D/(D−1)) times the t quantile of `level`."""
    t = stats.t.ppf((1 + level) / 2, documents - 1) * math.sqrt(documents / (documents - 1))
    return float(2 * stats.norm.cdf(t) - 1)
