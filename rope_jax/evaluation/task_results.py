"""The tables of a sweep's tasks: one tidy row per measurement and metric, and one per sample."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from rope_jax.evaluation.results import Origin
from rope_jax.evaluation.statistics import Estimate, exact_interval, mean_nll
from rope_jax.evaluation.sweep import SweepResult, TaskMeasurement

Metric = Literal["nats", "exact"]


class TaskRow(NamedTuple):
    """One metric of one task at one length and depth; its 95% interval is [ci_low, ci_high].

    nats: the mean NLL of the answers' tokens. exact: the share of the answers of which every token
    is the model's first choice.
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
    metric: Metric
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
            taken_out=m.cell.taken_out,
            step=origin.step,
            sample=number,
            nll=float(m.sums.nll[number]),
            tokens=int(m.sums.weight[number]),
            exact=int(m.exact[number]),
            answers=int(m.answers[number]) if m.task.has_answers else 0,
        )
        for m in result.task_measurements
        for number in range(len(m.exact))
    ]


def _rows(result: SweepResult, origin: Origin, m: TaskMeasurement) -> Iterator[TaskRow]:
    config = result.config
    how: Any = {"resamples": config.resamples, "seed": config.seed}
    nats = mean_nll(m.sums, **how)
    exact = exact_interval(m.exact, m.answers, **how)
    entry = next(entry for entry in config.scalings if entry.label == m.entry)
    by_metric: dict[Metric, Estimate] = {"nats": nats, "exact": exact}
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
            taken_out=m.cell.taken_out,
            metric=metric,
            value=found.value,
            ci_low=found.low,
            ci_high=found.high,
            chance=m.task.chance if metric == "exact" else None,
            samples=len(m.exact),
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
