"""What the harness measured of a run: rows, their table, and TensorBoard."""

import statistics
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

from rope_jax.console import short_number
from rope_jax.report.table import Cell, Line, Table
from rope_jax.results.files import format_csv
from rope_jax.runs.logs import TensorBoardWriter
from rope_jax.sealed import write_text


class HarnessRow(NamedTuple):
    """A metric of a task, with one scaling at one length."""

    task: str
    metric: str
    scaling: str
    length: int
    step: int
    value: float
    standard_error: float | None
    """The harness's, or that of a mean; None: it is no mean."""
    samples: int
    seconds: float
    """Of the task with all its metrics; answers of an earlier run take none."""


def result_rows(results: Mapping[str, Any], *about: Any) -> list[HarnessRow]:
    """Return the metrics of all tasks, and of groups that have any.

    RULER names a metric by the length of its texts; here it is "score".
    results: of `lm_eval.simple_evaluate`. about: scaling, length, step and seconds.
    """
    (scaling, length, step, seconds), rows = about, []
    for task, of_task in results["results"].items():
        samples = results["samples"].get(task, [])
        for key, value in of_task.items():
            metric, _, kind = key.partition(",")
            other_length = metric.isdecimal() and int(metric) != length
            if not kind or metric.endswith("_stderr") or other_length:
                continue
            error = of_task.get(f"{metric}_stderr,{kind}")
            if not isinstance(error, Real):
                error = _error_of_mean(
                    [x.get(metric) for x in samples if x["filter"] == kind], value
                )
            name = "score" if metric.isdecimal() else metric
            name += "" if kind == "none" else f",{kind}"
            count = of_task["sample_len"]
            rows.append(HarnessRow(task, name, scaling, length, step, value, error, count, seconds))
    return rows


def _error_of_mean(values: Sequence[object], mean: float) -> float | None:
    """Return s / √n, if these are several numbers with this mean."""
    floats = [float(x) for x in values if isinstance(x, Real)]
    if len(floats) < max(2, len(values)) or abs(statistics.fmean(floats) - mean) > 1e-9:
        return None
    return statistics.stdev(floats) / len(floats) ** 0.5


def write_rows(folder: Path, rows: Sequence[HarnessRow]) -> None:
    """Write results.csv, and event files: a TensorBoard run per scaling, whose step is n."""
    write_text(folder / "results.csv", format_csv(HarnessRow._fields, rows))
    for scaling in {row.scaling for row in rows}:
        writer = TensorBoardWriter(folder / scaling)
        for row in (row for row in rows if row.scaling == scaling):
            writer.scalars(row.length, {f"{row.task}/{row.metric}": row.value})
        writer.close()


def harness_table(rows: Sequence[HarnessRow], name: str) -> Table:
    """Return a table with a line for each task, metric and scaling, and a column per length."""
    lengths, missing = sorted({row.length for row in rows}), Cell("–")
    cells: dict[str, dict[str, dict[int, Cell]]] = {}
    for row in rows:
        value = f"{row.value:.3f}" if abs(row.value) < 100 else short_number(row.value)
        error = "" if row.standard_error is None else f"±{row.standard_error:.3f}"
        of_metric = cells.setdefault(f"{row.task}, {row.metric}", {})
        of_metric.setdefault(row.scaling, {})[row.length] = Cell(value, error)
    samples = {row.samples for row in rows}
    return Table(
        title=name,
        about=f"tasks of lm-evaluation-harness, at most {max(samples):,} samples, by length",
        labels=("task", "scaling"),
        columns=tuple(f"{n:,}" for n in lengths),
        lines=[
            Line((metric, scaling), [by_length.get(n, missing) for n in lengths])
            for metric, of_metric in cells.items()
            for scaling, by_length in of_metric.items()
        ],
        intervals="± standard error",
    )
