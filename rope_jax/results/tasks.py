"""The tidy rows of tasks.csv and samples.csv, and how long a context each scaling uses."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from rope_jax.results.statistics import Estimate, exact_interval

MetricName = Literal["nats", "exact"]


class TaskRow(NamedTuple):
    """One metric of one task at one length and depth; its 95% interval is [ci_low, ci_high].

    nats: the mean NLL of the answers' tokens. exact: the share of answers with all tokens right.
    """

    name: str
    """The curve's."""
    scaling: str
    map: str
    """The position map with its settings at this length, as `PositionMap.label`; "" without one."""
    factor: float | None
    auto: bool
    """Whether the factor follows from the length."""
    task: str
    """The task's name in the sweep."""
    kind_of_task: str
    """Its type."""
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
    """exact: what guessing gives."""
    samples: int
    answers: int
    tokens: int
    """How many targets are scored."""
    targets: str
    """Hash of the samples: equal ones mean that values can be compared."""
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
    """How many of the `answers` are exact."""
    answers: int
    """0 for a task of which only the NLL counts."""


class TaskTables(NamedTuple):
    """The tables of a sweep's tasks; empty without tasks."""

    rows: Sequence[TaskRow]
    samples: Sequence[SampleRow]


NO_TASKS = TaskTables((), ())


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


def taken_out(rows: Sequence[SampleRow], step: int) -> dict[str, dict[int, float]]:
    """Return the share that is exact without what is asked for, by task and length: the largest."""
    sums: dict[tuple[str, int, str], list[int]] = {}
    for row in rows:
        if row.taken_out and row.step == step:
            found = sums.setdefault((row.task, row.length, row.name), [0, 0])
            found[0] += row.exact
            found[1] += row.answers
    largest: dict[str, dict[int, float]] = {}
    for (task, length, _), (exact, answers) in sums.items():
        by_length = largest.setdefault(task, {})
        by_length[length] = max(by_length.get(length, 0.0), exact / answers)
    return largest


def summarize_tasks(
    rows: Sequence[SampleRow], threshold: float, *, resamples: int, seed: int
) -> dict[str, dict[str, TaskSummary]]:
    """Summarize each task of a checkpoint, by its name and then by scaling.

    rows: of one checkpoint. A sample is the same at every depth, so its depths are one unit of the
    interval. threshold: the smallest share of exact answers up to the effective length.
    """
    found: dict[str, dict[str, dict[int, dict[int, list[int]]]]] = {}
    for row in rows:
        if row.answers and not row.taken_out:
            by_length = found.setdefault(row.task, {}).setdefault(row.name, {})
            sums = by_length.setdefault(row.length, {}).setdefault(row.sample, [0, 0])
            sums[0] += row.exact
            sums[1] += row.answers
    summaries: dict[str, dict[str, TaskSummary]] = {}
    for task, by_name in found.items():
        for name, lengths in by_name.items():
            exact: dict[int, Estimate] = {}
            for length, samples in lengths.items():
                right, asked = np.array(list(samples.values())).T
                exact[length] = exact_interval(right, asked, resamples=resamples, seed=seed)
            summary = TaskSummary(exact, effective_length(exact, threshold), threshold)
            summaries.setdefault(task, {})[name] = summary
    return summaries


def effective_length(exact: Mapping[int, Estimate], threshold: float) -> EffectiveLength:
    """Return the longest length such that at it and all shorter ones it is ≥ threshold."""

    def longest(shares: Mapping[int, float]) -> int | None:
        passed = None
        for length in sorted(shares):
            if not shares[length] >= threshold:
                break
            passed = length
        return passed

    length = longest({n: share.value for n, share in exact.items()})
    return EffectiveLength(
        length=length,
        at_least=longest({n: share.low for n, share in exact.items()}),
        at_most=longest({n: share.high for n, share in exact.items()}),
        is_last=length == max(exact),
    )
