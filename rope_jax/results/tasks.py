"""The tidy rows of tasks.csv and samples.csv, and how long a context each scaling uses."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from rope_jax.results.statistics import Estimate, accuracy_interval

MetricName = Literal["nats", "exact"]


class TaskRow(NamedTuple):
    """One metric of one task at one length and depth; its 95% interval is [ci_low, ci_high].

    nats: the mean NLL of the answers' tokens. exact: the share of answers with all tokens right.
    """

    name: str
    scaling: str
    map: str
    factor: float | None
    auto: bool
    task: str
    kind_of_task: str
    length: int
    depth: float | None
    """Where what is asked for lies, 0 at the start; None: the task has no depth, or taken_out."""
    distance: int | None
    """How many tokens before a target is the one that has to be found; None: it varies."""
    taken_out: bool
    """Whether what is asked for was replaced by other text."""
    metric: MetricName
    value: float
    ci_low: float
    ci_high: float
    chance: float | None
    """The share that guessing gets exact."""
    samples: int
    answers: int
    tokens: int
    targets: str
    """Hash of the samples; values can be compared where it is equal."""
    step: int
    run: str
    seed: int
    corpus: str
    split: str
    bos: str
    seconds: float

    @property
    def kind(self) -> str:
        """What a figure's colour stands for: the map's type, or the scaling's without a map."""
        return self.map.partition("+")[0] or self.scaling


class SampleRow(NamedTuple):
    """One sample's share of a measurement."""

    name: str
    task: str
    length: int
    depth: float | None
    taken_out: bool
    step: int
    sample: int
    nll: float
    """Nats, summed over `tokens` targets."""
    tokens: int
    exact: int
    answers: int
    """0 for a task of which only the NLL counts."""


class EffectiveLength(NamedTuple):
    """The longest tested length up to which enough answers are exact; None: not the shortest."""

    length: int | None
    """By the shares of exact answers."""
    at_least: int | None
    """By the lower ends of their intervals: what the data establish."""
    at_most: int | None
    """By the upper ends: what the data do not refute."""
    is_last: bool
    """Whether `length` is the longest tested: read it as "at least"."""


class TaskSummary(NamedTuple):
    """One task with one scaling."""

    exact: Mapping[int, Estimate]
    """By length, the share of exact answers over all depths."""
    effective: EffectiveLength
    threshold: float
    """The smallest share of exact answers up to the effective length."""


def ablated_shares(rows: Sequence[SampleRow], step: int) -> dict[str, dict[int, float]]:
    """Return the share that is exact without what is asked for, by task and length: the largest."""
    ablated = [row for row in rows if row.taken_out and row.step == step]
    largest: dict[str, dict[int, float]] = defaultdict(dict)
    sums = _summed(ablated, lambda row: (row.task, row.length, row.name))
    for (task, length, _), (exact, answers) in sums.items():
        largest[task][length] = max(largest[task].get(length, 0.0), exact / answers)
    return largest


def summarize_tasks(
    rows: Sequence[SampleRow], threshold: float, *, resamples: int, seed: int
) -> dict[str, dict[str, TaskSummary]]:
    """Summarize each task of a checkpoint, by its name and then by scaling.

    A sample is the same at every depth, so its depths are one unit of the interval. threshold: the
    smallest share of exact answers up to the effective length.
    """
    answered = [row for row in rows if row.answers and not row.taken_out]
    sums = _summed(answered, lambda row: (row.task, row.name, row.length, row.sample))
    samples: dict[tuple[str, str], dict[int, list[tuple[int, int]]]] = {}
    for (task, name, length, _), counts in sums.items():
        samples.setdefault((task, name), {}).setdefault(length, []).append(counts)
    summaries: dict[str, dict[str, TaskSummary]] = {}
    for (task, name), by_length in samples.items():
        exact: dict[int, Estimate] = {}
        for length, of_samples in by_length.items():
            right, asked = np.array(of_samples).T
            exact[length] = accuracy_interval(right, asked, resamples=resamples, seed=seed)
        summary = TaskSummary(exact, effective_length(exact, threshold), threshold)
        summaries.setdefault(task, {})[name] = summary
    return summaries


def _summed(
    rows: Sequence[SampleRow], key: Callable[[SampleRow], tuple[Any, ...]]
) -> dict[tuple[Any, ...], tuple[int, int]]:
    """Return how many answers are exact, and how many there are, over rows of the same key."""
    sums: dict[tuple[Any, ...], tuple[int, int]] = {}
    for row in rows:
        exact, answers = sums.get(key(row), (0, 0))
        sums[key(row)] = exact + row.exact, answers + row.answers
    return sums


def effective_length(exact: Mapping[int, Estimate], threshold: float) -> EffectiveLength:
    """Return the longest length such that at it and all shorter ones it is ≥ threshold."""

    def longest(shares: Mapping[int, float]) -> int | None:
        passed = itertools.takewhile(lambda n: shares[n] >= threshold, sorted(shares))
        return max(passed, default=None)

    length = longest({n: share.value for n, share in exact.items()})
    return EffectiveLength(
        length=length,
        at_least=longest({n: share.low for n, share in exact.items()}),
        at_most=longest({n: share.high for n, share in exact.items()}),
        is_last=length == max(exact),
    )
