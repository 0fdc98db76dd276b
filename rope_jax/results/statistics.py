"""Means over documents and their 95% intervals.

Tokens of one document are not independent, so whole documents are resampled; where they are too
few, distant blocks of them (see `protocols.base`), which these functions treat as documents.
Where several seeds were trained, the interval includes the spread between seeds.

Intervals are bootstrap-t intervals (Efron 1982; Hall 1988): resampling gives the distribution of
the studentized mean. In simulations of 20 and of 64 documents of equal weight they cover 95% where
the rates are normal or lognormal(0.45), and 93% where a few documents dominate, lognormal(0.9);
where sizes differ greatly as well, lognormal(0.8), 92 to 94% and 89 to 92%. A percentile bootstrap
covers 92% and 86% in the first two cases over 20 documents; BCa covers about as much.

Shapes: D documents.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rope_jax.protocols.base import RELIABLE_UNITS

_UNBOUNDED = 1e30
# Resampled documents at a time, 32 MiB; the result does not depend on it but for rounding.
_MAX_DRAWN = 2**22


class Sums(NamedTuple):
    """Sums by document, [D], for one (scaling, protocol, length)."""

    nll: NDArray[Any]
    """Summed nats of the scored tokens, or of windows' means, as the protocol says; float64."""
    weight: NDArray[Any]
    """How many tokens were scored, or windows."""
    bytes: NDArray[Any] | None = None
    """Bytes of text of the scored tokens, or sums of windows' means; None: not known."""

    def mean(self) -> float:
        """Return the mean in nats per token, Σ nll / Σ weight."""
        return float(self.nll.sum() / self.weight.sum())


class UsableLength(NamedTuple):
    """How long a context a scaling can use."""

    length: int | None
    """The longest tested length that passes, as all shorter ones do; None if the window fails."""
    is_last: bool
    """Whether it is the longest tested length: read it as "at least"."""
    is_known: bool
    """False where the next length has no interval, so whether it passes is unknown, and where
    there are too few units for any interval to be trusted: then the values alone decide."""


class Estimate(NamedTuple):
    """A value and its 95% interval, whose ends are nan where there is none."""

    value: float
    low: float
    high: float

    @property
    def at_least(self) -> float:
        """The lower end of the interval; an infinite value is its own bound."""
        return self.value if math.isinf(self.value) else self.low

    @property
    def at_most(self) -> float:
        """The upper end of the interval; an infinite value is its own bound."""
        return self.value if math.isinf(self.value) else self.high

    def negated(self) -> "Estimate":
        """Return the estimate of −value."""
        return Estimate(value=0 - self.value, low=0 - self.high, high=0 - self.low)  # 0 has no sign

    def mapped(self, rising: Callable[[float], float]) -> "Estimate":
        """Return the estimate of rising(value); `rising` must be an increasing function."""
        return Estimate(value=rising(self.value), low=rising(self.low), high=rising(self.high))


def mean_nll(sums: Sums, *, resamples: int, seed: int) -> Estimate:
    """Return `sums.mean()` with its interval."""
    return _ratio(sums.nll, sums.weight, resamples, seed)


def bits_per_byte(seeds: Sequence[Sums], *, resamples: int, seed: int) -> Estimate | None:
    """Return Σ nll / Σ bytes in bits, as `pooled_mean` does; None: bytes are unknown or 0."""
    known = [Sums(s.nll, s.bytes) for s in seeds if s.bytes is not None and s.bytes.all()]
    if len(known) < len(seeds):
        return None
    nats = pooled_mean(known, resamples=resamples, seed=seed)
    return nats.mapped(lambda value: value / math.log(2))


def paired_difference(one: Sums, other: Sums, *, resamples: int, seed: int) -> Estimate:
    """Return mean(one) − mean(other) over the same scored tokens, paired by document."""
    return mean_nll(difference(one, other), resamples=resamples, seed=seed)


def accuracy_interval(
    exact: NDArray[np.int64], answers: NDArray[np.int64], *, resamples: int, seed: int
) -> Estimate:
    """Return the share of exact answers, Σ exact / Σ answers, with its interval over samples.

    exact, answers: by sample. With one answer per sample it is Wilson's interval (JASA 1927), else
    the bootstrap over samples. Where (nearly) all samples agree, so that there is none, it is
    Wilson's with as many trials as samples, rounded outward: shares vary less than yes or no.
    """
    right, asked, trials = int(exact.sum()), int(answers.sum()), len(exact)
    value = right / asked
    if trials > 1 and answers.max() > 1 and np.ptp(exact / answers) > 0:
        share = mean_nll(Sums(exact, answers), resamples=resamples, seed=seed)
        if math.isfinite(share.low) and math.isfinite(share.high):
            low, high = max(0.0, float(share.low)), min(1.0, float(share.high))
            return Estimate(value=value, low=low, high=high)
    from scipy import stats  # takes longer to import than jax

    # in whole numbers: 0.29 · 100 is less than 29
    whole = right * trials // asked, -(-right * trials // asked)
    least, most = (stats.binomtest(n, trials).proportion_ci(method="wilson") for n in whole)
    return Estimate(value=value, low=float(least.low), high=float(most.high))


def pooled_mean(seeds: Sequence[Sums], *, resamples: int, seed: int) -> Estimate:
    """Return the mean over the documents of several seeds (runs that differ in nothing else).

    The interval combines two as for a sum of independent terms (MOVER: Zou & Donner, Statistics
    in Medicine 2008): the interval over documents of the seeds' average, and Student's t
    over the seeds' means, which is wide for few seeds (12.7 standard errors for two). For one seed
    this is `mean_nll`, which says nothing about other seeds.
    """
    return _widened(mean_nll(_average(seeds), resamples=resamples, seed=seed), seeds)


def pooled_difference(
    ones: Sequence[Sums], others: Sequence[Sums], *, resamples: int, seed: int
) -> Estimate:
    """Return mean(ones) − mean(others) of runs with different seeds, paired by document only.

    The interval is as in `pooled_mean`, with Welch's degrees of freedom. Where either side has a
    single seed it leaves out the spread between seeds. (For the same runs on both sides, pooling
    their `difference` gives a narrower interval.)
    """
    one, other = _average(ones), _average(others)
    documents = paired_difference(one, other, resamples=resamples, seed=seed)
    return _widened(documents, ones, others)


def difference(one: Sums, other: Sums) -> Sums:
    """Return one − other by document, over the same scored tokens."""
    if not np.array_equal(one.weight, other.weight):
        raise ValueError("weight: a paired difference needs the same scored tokens on both sides")
    with np.errstate(invalid="ignore"):  # inf − inf is nan, which means unknown
        return Sums(one.nll - other.nll, one.weight)


def _average(seeds: Sequence[Sums]) -> Sums:
    if any(not np.array_equal(seeds[0].weight, other.weight) for other in seeds[1:]):
        raise ValueError("weight: seeds can be pooled only over the same scored tokens")
    return Sums(np.mean([sums.nll for sums in seeds], axis=0), seeds[0].weight)


def _spread(seeds: Sequence[Sums]) -> tuple[float, int]:
    """Return (variance of the seeds' mean, degrees of freedom); (0, 0) for one seed: unknown."""
    if len(seeds) < 2:
        return 0.0, 0
    with np.errstate(invalid="ignore"):
        variance = np.var([sums.mean() for sums in seeds], ddof=1) / len(seeds)
    return float(variance), len(seeds) - 1


def _widened(documents: Estimate, *groups: Sequence[Sums]) -> Estimate:
    """Combine an interval over documents with Student's t over the seeds of independent means."""
    spreads = [_spread(seeds) for seeds in groups]
    variance = sum(v for v, _ in spreads)
    half = 0.0
    if variance != 0 and all(freedom for _, freedom in spreads):  # all are known
        from scipy.special import stdtrit  # a third of a second, and most sweeps have one seed

        freedom = variance**2 / sum(v**2 / f for v, f in spreads)  # Welch and Satterthwaite
        half = float(stdtrit(freedom, 0.975) * np.sqrt(variance))
    value, low, high = documents
    below, above = np.hypot(value - low, half), np.hypot(high - value, half)
    return Estimate(value=value, low=float(value - below), high=float(value + above))


def established_length(
    losses: Mapping[int, Estimate], window: int, tolerance: float, *, units: int
) -> UsableLength:
    """Return `usable_length` by the upper ends of intervals over so many units.

    With fewer than `RELIABLE_UNITS` the values decide instead, and the length is not known.
    losses: by tested length, the paired difference from `trained` at the window, in nats.
    """
    if units < RELIABLE_UNITS:
        usable = usable_length({n: loss.value for n, loss in losses.items()}, window, tolerance)
        return usable._replace(is_last=False, is_known=False)
    return usable_length({n: loss.at_most for n, loss in losses.items()}, window, tolerance)


def usable_length(upper_bounds: Mapping[int, float], window: int, tolerance: float) -> UsableLength:
    """Return the largest tested n ≥ window such that all tested lengths from the window to n pass.

    upper_bounds: by tested length, the 95% upper bound of the paired difference from `trained` at
    the window, in nats. A length passes if its bound is at most `tolerance`; nan does not pass.
    """
    tested = sorted(length for length in upper_bounds if length >= window)
    passed = list(itertools.takewhile(lambda n: upper_bounds[n] <= tolerance, tested))
    stopped = len(passed) < len(tested)
    is_known = not math.isnan(upper_bounds[tested[len(passed)]]) if stopped else bool(tested)
    length = max(passed, default=None)
    return UsableLength(length=length, is_last=bool(tested) and not stopped, is_known=is_known)


def perplexity(nll: float) -> float:
    """Return exp(nll); inf where that is too large for a float."""
    return math.exp(nll) if nll < 700 else math.inf if nll > 0 else math.nan


def _ratio(
    numerator: NDArray[Any], denominator: NDArray[Any], resamples: int, seed: int
) -> Estimate:
    """Return θ = Σ n / Σ d with a bootstrap-t interval over documents.

    The interval is [θ − q₀.₉₇₅ s, θ − q₀.₀₂₅ s] with s = √(D/(D−1) Σ(n − θd)²) / Σ d, the standard
    error of a ratio, and q the quantiles of (θ* − θ)/s* over resamples. Its ends are nan if
    there are too few documents: with three, one resample in nine repeats a single document, and
    its s* is 0.
    """
    numerator, denominator = numerator.astype(np.float64), denominator.astype(np.float64)
    value = float(numerator.sum() / denominator.sum())
    unknown = Estimate(value=value, low=math.nan, high=math.nan)
    if len(numerator) < 2 or not np.isfinite(value):
        return unknown
    ratios = numerator / denominator
    size = np.abs(ratios).max()
    if np.ptp(ratios) <= 1e-12 * size:  # all documents agree, so no resample differs
        return Estimate(value=value, low=value, high=value)

    residuals = numerator - value * denominator
    columns = residuals, denominator, residuals**2, residuals * denominator, denominator**2
    matrix, studentized = np.stack(columns, axis=1), []
    is_small = len(numerator) * resamples <= _MAX_DRAWN
    for counts in (_drawn if is_small else _draw)(len(numerator), resamples, seed):
        # by resample: Σ r, Σ d, Σ r², Σ rd, Σ d², where r = n − θd
        r, d, rr, rd, dd = (counts @ matrix).T
        shift = r / d  # θ* − θ
        squares = rr - 2 * shift * rd + shift**2 * dd  # Σ (n − θ*d)²
        # nearly equal documents: what is left of the difference is rounding, so add up the squares
        close = np.flatnonzero(squares <= 1e-6 * rr)
        squares[close] = (counts[close] * (residuals - shift[close, None] * denominator) ** 2).sum(
            1
        )
        error = _standard_error(squares, d, len(numerator))
        # a resample of a single document has no error but rounding, so its t is unbounded
        alone = error <= 1e-12 * size
        unbounded = np.sign(shift) * _UNBOUNDED
        studentized.append(np.where(alone, unbounded, shift / np.where(alone, 1, error)))
    low, high = np.quantile(np.concatenate(studentized), (0.025, 0.975))
    if not (abs(low) <= _UNBOUNDED / 1e9 and abs(high) <= _UNBOUNDED / 1e9):  # nan: neither
        return unknown
    error = _standard_error((residuals**2).sum(), denominator.sum(), len(numerator))
    return Estimate(value=value, low=float(value - high * error), high=float(value - low * error))


def _standard_error(squares: Any, weight: Any, documents: int) -> Any:
    """Return s = √(D/(D−1) Σ(n − θd)²) / Σ d."""
    return np.sqrt(squares * documents / (documents - 1)) / weight


def _draw(documents: int, resamples: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """Yield how often each document is in each resample: float64 [·, D], in parts."""
    rng, most = np.random.default_rng(seed), max(1, _MAX_DRAWN // documents)
    for begin in range(0, resamples, most):
        count = min(most, resamples - begin)
        drawn = rng.integers(0, documents, (count, documents))
        drawn += np.arange(count)[:, None] * documents
        flat = np.bincount(drawn.ravel(), minlength=count * documents)
        yield flat.reshape(count, documents).astype(np.float64)


# A comparison has thousands of intervals over the same number of documents.
@functools.lru_cache(maxsize=4)
def _drawn(documents: int, resamples: int, seed: int) -> list[NDArray[np.float64]]:
    return list(_draw(documents, resamples, seed))
