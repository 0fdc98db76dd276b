"""How long a context each scaling uses, by task: mean over depths and effective length."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rope_jax.evaluation.statistics import Estimate, exact_interval
from rope_jax.evaluation.task_results import SampleRow


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
    """Return the share of exact answers without what is asked for, by task and length.

    It is the largest of all scalings: none of them should be trusted with less.
    """
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

    rows: of one checkpoint. Those whose needle was taken out are left aside. A sample is the same
    at every depth, so its depths are one unit of the interval.
    threshold: the smallest share of exact answers, at every length up to the effective one.
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
    """Return the longest length such that at it and all shorter ones the share is high enough.

    exact: by tested length. A length passes if its share is at least `threshold`.
    """

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
