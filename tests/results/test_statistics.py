"""Means, their intervals, and the usable length."""

import math

import numpy as np
import pytest
from scipy import stats

from rope_jax.results.statistics import (
    Estimate,
    Sums,
    accuracy_interval,
    mean_nll,
    paired_difference,
    pooled_difference,
    pooled_mean,
    usable_length,
)

# Σ nll / Σ tokens over infinitely many documents drawn by `skewed`
TRUTH = 1.5


def skewed(random, *shape):
    """Draw (nll, tokens) of documents of very different sizes, some much harder than others."""
    tokens = np.round(random.lognormal(5, 0.5, shape)) + 1
    return tokens * (1 + 0.5 * random.standard_exponential(shape)), tokens


@pytest.mark.parametrize("documents", [8, 64])
def test_intervals_are_those_of_scipy_with_the_same_resamples(documents):
    nll, tokens = skewed(np.random.default_rng(documents), documents)
    value = nll.sum() / tokens.sum()

    def error(n, d, ratio):
        squares = ((n - ratio[..., None] * d) ** 2).sum(-1)
        return np.sqrt(squares * documents / (documents - 1)) / d.sum(-1)

    def studentized(n, d, axis):
        assert axis == -1
        ratio = n.sum(-1) / d.sum(-1)
        return (ratio - value) / error(n, d, ratio)

    low, high = stats.bootstrap(
        (nll, tokens),
        studentized,
        n_resamples=2000,
        paired=True,
        vectorized=True,
        method="percentile",
        random_state=np.random.default_rng(5),
    ).confidence_interval
    own = error(nll, tokens, np.array(value))
    found = mean_nll(Sums(nll, tokens), resamples=2000, seed=5)
    # weighted by tokens
    assert found.value == pytest.approx(np.average(nll / tokens, weights=tokens), rel=1e-12)
    assert (found.low, found.high) == pytest.approx((value - high * own, value - low * own), 1e-9)
    # it depends only on the seed
    assert found == mean_nll(Sums(nll, tokens), resamples=2000, seed=5)
    other = mean_nll(Sums(nll, tokens), resamples=2000, seed=6)
    assert found.value == other.value
    assert (found.low, found.high) != (other.low, other.high)


def test_a_share_of_single_answers_has_wilsons_interval_as_scipy_computes_it():
    for right in range(31):
        exact = np.arange(30) < right
        found = accuracy_interval(
            exact.astype(np.int64), np.ones(30, np.int64), resamples=9, seed=0
        )
        assert found[1:] == stats.binomtest(right, 30).proportion_ci(method="wilson")


def test_a_paired_difference_is_the_difference_of_the_means():
    random = np.random.default_rng(2)
    nll, tokens = skewed(random, 64)
    one, other = Sums(nll + 0.25 * tokens, tokens), Sums(nll, tokens)
    means = [mean_nll(sums, resamples=200, seed=0) for sums in (one, other)]
    found = paired_difference(one, other, resamples=200, seed=0)
    assert found.value == pytest.approx(means[0].value - means[1].value, rel=1e-9)
    # What the two have in common cancels document by document; here, a constant remains.
    assert found == pytest.approx((0.25, 0.25, 0.25), rel=1e-9)
    assert means[0].high - means[0].low > 0.05
    back = paired_difference(other, one, resamples=200, seed=0)
    assert back == pytest.approx((-0.25, -0.25, -0.25), rel=1e-9)


def test_differences_and_seeds_need_the_same_tokens():
    one, other = Sums(np.ones(2), np.array([3, 4])), Sums(np.ones(2), np.array([4, 3]))
    with pytest.raises(ValueError, match="same scored tokens"):
        paired_difference(one, other, resamples=10, seed=0)
    with pytest.raises(ValueError, match="weight: seeds can be pooled only over the same"):
        pooled_mean([one, other], resamples=10, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize(("documents", "alike"), [(20, True), (64, False)])
def test_95_percent_intervals_cover_the_truth_about_95_percent_of_the_time(documents, alike):
    below = above = 0
    samples = 400
    for nll, tokens in zip(*skewed(np.random.default_rng(4), samples, documents), strict=True):
        sums = Sums(nll / tokens, np.ones(documents)) if alike else Sums(nll, tokens)
        found = mean_nll(sums, resamples=800, seed=0)
        below += found.high < TRUTH
        above += found.low > TRUTH
    # A share's own standard error is 1.2%. A percentile bootstrap covers 89% over 20 documents.
    covered = 1 - (below + above) / samples
    assert 0.91 <= covered <= 0.98
    # and misses on both sides
    assert min(below, above) >= 0.1 * (below + above)


def test_too_few_documents_and_infinite_ones_have_no_interval():
    for nll, weight, value in (
        ([6.0], [4], 1.5),
        ([6.0, 2.0], [4, 4], 1.0),  # half of the resamples are of one document: no spread
        ([6.0, 0.0], [4, 0], 1.5),  # a quarter are of the second alone, whose ratio is 0 / 0
        ([1.0, np.inf, 2.0], [4, 4, 4], np.inf),
    ):
        with np.errstate(invalid="ignore", divide="ignore"):
            found = mean_nll(Sums(np.array(nll), np.array(weight)), resamples=100, seed=0)
        assert found.value == value
        assert np.isnan([found.low, found.high]).all()


def test_five_documents_are_enough_for_an_interval_if_a_poor_one_and_equal_ones_for_a_point():
    five = Sums(np.array([6.0, 2.0, 3.0, 5.0, 4.0]), np.full(5, 4))
    found = mean_nll(five, resamples=1000, seed=0)
    assert found.value == 1.0
    assert 0 < found.low < 0.75
    assert 1.25 < found.high < 2
    equal = mean_nll(Sums(np.array([2.0, 4.0, 6.0]), np.array([1, 2, 3])), resamples=10, seed=0)
    assert equal == (2.0, 2.0, 2.0)


def test_an_infinity_stays_visible_in_a_difference():
    infinite = Sums(np.array([1.0, np.inf, 2.0]), np.array([4, 4, 4]))
    finite = Sums(np.array([1.0, 1.0, 2.0]), np.array([4, 4, 4]))
    assert paired_difference(infinite, finite, resamples=10, seed=0).value == math.inf
    assert paired_difference(finite, infinite, resamples=10, seed=0).value == -math.inf
    # infinity minus infinity is unknown
    assert all(map(math.isnan, paired_difference(infinite, infinite, resamples=10, seed=0)))


def seeds_of(random, shifts, documents=20, weight=32.0):
    """Draw for each seed the documents' levels, the seed's shift, and a residual."""
    level = random.lognormal(0, 0.45, documents)
    return [
        Sums((level + s + random.normal(0, 0.1, documents)) * weight, np.full(documents, weight))
        for s in shifts
    ]


def test_seeds_widen_the_interval_by_students_t():
    seeds = seeds_of(np.random.default_rng(0), [-0.5, 0.0, 0.6])
    one = mean_nll(seeds[0], resamples=100, seed=0)
    assert pooled_mean(seeds[:1], resamples=100, seed=0) == one
    means = [sums.mean() for sums in seeds]
    average = Sums(np.mean([sums.nll for sums in seeds], axis=0), seeds[0].weight)
    value, low, high = mean_nll(average, resamples=100, seed=0)
    found = pooled_mean(seeds, resamples=100, seed=0)
    half = 4.30265273 * np.std(means, ddof=1) / math.sqrt(3)  # t of 2 degrees of freedom
    assert found.value == pytest.approx(np.mean(means))
    assert found.high - found.value == pytest.approx(math.hypot(half, high - value))
    assert found.value - found.low == pytest.approx(math.hypot(half, value - low))


def test_a_difference_of_two_groups_has_welchs_degrees_of_freedom():
    random = np.random.default_rng(0)
    ones, others = seeds_of(random, [-0.5, 0.0, 0.6]), seeds_of(random, [0.1, 0.2])
    for sums in (*ones, *others):  # documents take no part: what is left is Welch's t test
        sums.nll[:] = sums.mean() * sums.weight
    found = pooled_difference(ones, others, resamples=100, seed=0)
    means = [[sums.mean() for sums in group] for group in (ones, others)]
    welch = stats.ttest_ind(*means, equal_var=False).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((welch.low, welch.high))


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.0, 0.3])
def test_pooled_intervals_cover_the_truth(spread):
    """The truth is the mean over all documents and seeds; 20 documents, 3 seeds are drawn."""
    random, samples, covered = np.random.default_rng(5), 400, 0
    for _ in range(samples):
        seeds = seeds_of(random, random.normal(0, spread, 3))
        found = pooled_mean(seeds, resamples=400, seed=0)
        covered += found.low <= math.exp(0.45**2 / 2) <= found.high
    # A share's own standard error is 1.1%. Intervals over documents alone would cover
    # 72% where seeds vary as much as documents do. Adding the two parts in quadrature makes the
    # interval a little too wide.
    assert 0.93 <= covered / samples <= 0.99


NAN = math.nan


def test_the_usable_length_ends_before_the_first_failure():
    for upper_bounds, usable in (
        # stays within the tolerance of 0.02 to the last length tested
        ({16: 0.0, 32: 0.01, 64: -0.3}, (64, True)),
        # at most: the tolerance itself passes
        ({16: 0.0, 32: 0.02, 64: 0.0201}, (32, False)),
        # a recovery past a failure does not count
        ({16: 0.0, 32: 0.03, 64: 0.0, 128: -1.0}, (16, False)),
        # the window itself fails, as for a scaling that harms it
        ({16: 0.03, 32: 0.0}, (None, False)),
        # unknown is not within
        ({16: 0.0, 32: NAN, 64: 0.0}, (16, False)),
        ({16: 0.0, 32: math.inf}, (16, False)),
        # lengths below the window neither help nor harm
        ({4: 9.0, 8: 9.0, 16: 0.0, 32: 0.0}, (32, True)),
        ({4: 0.0, 8: 0.0}, (None, False)),
        ({16: 0.0}, (16, True)),
        ({}, (None, False)),
        # in whatever order they were tested
        ({64: 0.5, 16: 0.0, 32: 0.0}, (32, False)),
    ):
        found = usable_length(upper_bounds, window=16, tolerance=0.02)
        assert found[:2] == usable
        tested = [n for n in sorted(upper_bounds) if n >= 16]
        stopped_by = next((b for n in tested if not (b := upper_bounds[n]) <= 0.02), 0.0)
        assert found.is_known == (bool(tested) and not math.isnan(stopped_by))


def test_an_estimate_of_zero_stays_zero_when_negated():
    assert repr(Estimate(0.0, -1.0, 0.0).negated()) == repr(Estimate(0.0, 0.0, 1.0))


def test_resampling_in_parts_gives_the_same_interval(monkeypatch):
    # the parts bound the memory for many documents
    random = np.random.default_rng(3)
    sums = Sums(random.lognormal(0, 0.5, 77), random.integers(1, 9, 77))
    whole = mean_nll(sums, resamples=999, seed=5)
    for drawn in (1, 77 * 998):
        monkeypatch.setattr("rope_jax.results.statistics._MAX_DRAWN", drawn)
        assert mean_nll(sums, resamples=999, seed=5) == whole
