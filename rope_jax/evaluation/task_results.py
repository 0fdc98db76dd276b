"""The tables of a sweep's tasks: one tidy row per measurement and metric, and one per sample."""

from collections.abc import Iterable, Iterator
from typing import Any

from rope_jax.evaluation.results import SweepResult, TaskMeasurement
from rope_jax.results.rows import Origin
from rope_jax.results.statistics import Estimate, exact_interval, mean_nll
from rope_jax.results.tasks import MetricName, SampleRow, TaskRow, TaskTables


def task_tables(results: Iterable[tuple[SweepResult, Origin]]) -> TaskTables:
    """Return the tables of several checkpoints."""
    found = list(results)
    return TaskTables(
        rows=[row for result, origin in found for row in task_rows(result, origin)],
        samples=[row for result, origin in found for row in sample_rows(result, origin)],
    )


def task_rows(result: SweepResult, origin: Origin) -> list[TaskRow]:
    """Return two rows per measurement of a task, nats and exact, in the order of measurements."""
    return [
        row
        for measurement in result.task_measurements
        for row in _rows(result, origin, measurement)
    ]


def sample_rows(result: SweepResult, origin: Origin) -> list[SampleRow]:
    """Return the results by sample behind the intervals."""
    return [
        SampleRow(
            name=m.entry,
            task=m.task.label,
            length=m.length,
            depth=m.cell.depth,
            taken_out=m.cell.ablated,
            step=origin.step,
            sample=number,
            nll=float(m.sums.nll[number]),
            tokens=int(m.sums.weight[number]),
            exact=int(m.num_correct[number]),
            answers=int(m.answers[number]) if m.task.has_answers else 0,
        )
        for m in result.task_measurements
        for number in range(len(m.num_correct))
    ]


def _rows(result: SweepResult, origin: Origin, m: TaskMeasurement) -> Iterator[TaskRow]:
    config = result.config
    how: Any = {"resamples": config.resamples, "seed": config.seed}
    nats = mean_nll(m.sums, **how)
    exact = exact_interval(m.num_correct, m.answers, **how)
    entry = next(entry for entry in config.scalings if entry.label == m.entry)
    by_metric: dict[MetricName, Estimate] = {"nats": nats, "exact": exact}
    if not m.task.has_answers:
        del by_metric["exact"]
    for metric, found in by_metric.items():
        yield TaskRow(
            name=m.entry,
            scaling=m.scaling.type,
            map=m.map.label if m.map else "",
            factor=getattr(m.scaling, "factor", None),
            auto=entry.factor_is_auto,
            task=m.task.label,
            kind_of_task=m.task.task,
            length=m.length,
            depth=m.cell.depth,
            distance=m.task.distance(m.length),
            taken_out=m.cell.ablated,
            metric=metric,
            value=found.value,
            ci_low=found.low,
            ci_high=found.high,
            chance=m.task.chance if metric == "exact" else None,
            samples=len(m.num_correct),
            answers=int(m.answers.sum()),
            tokens=int(m.sums.weight.sum()),
            targets=m.targets,
            step=origin.step,
            run=origin.run,
            seed=origin.seed,
            corpus=origin.corpus,
            split=config.split,
            bos=config.bos,
            seconds=round(m.seconds, 4),
        )
