"""The result of a sweep, before statistics, the rows of its tables and its summary."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rope_jax.config.entries import Trained, own_entry
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.tasks import SweepTask
from rope_jax.positions.maps import PositionMap, first_changed_distance
from rope_jax.protocols import BASELINE
from rope_jax.protocols.base import RELIABLE_UNITS, UnitKind
from rope_jax.results.rows import DocumentRow, Origin, Row
from rope_jax.results.statistics import (
    Estimate,
    Sums,
    accuracy_interval,
    bits_per_byte,
    established_length,
    mean_nll,
    paired_difference,
    perplexity,
    usable_length,
)
from rope_jax.results.summary import CheckpointSummary, CurveSummary
from rope_jax.results.tasks import MetricName, SampleRow, TaskRow, summarize_tasks
from rope_jax.rope import Scaling

if TYPE_CHECKING:
    import pandas

NO_ORIGIN = Origin(run="", step=0, seed=0, corpus="")
"""Of a model without a run's folder."""


@dataclass(frozen=True)
class _Measured:
    """One entry at one length, before statistics; targets: a hash of what is scored."""

    entry: str
    scaling: Scaling
    map: PositionMap | None
    length: int
    sums: Sums
    targets: str
    seconds: float


@dataclass(frozen=True)
class Measurement(_Measured):
    """One row of the results, before statistics."""

    protocol: str
    first_position: int
    """The lowest position of a scored target; the highest is `length`."""
    stride: int | None
    """How far apart a document's windows start, in tokens; None: at random places."""
    unit_documents: NDArray[np.int64]
    """The index of each unit's document among those of the sweep."""
    tokens: int


@dataclass(frozen=True)
class TaskMeasurement(_Measured):
    """One task at one depth. Units are samples, whose answers' tokens are scored."""

    task: SweepTask
    depth: float | None
    ablated: bool
    num_correct: NDArray[np.int64]
    """How many answers of each sample are exact."""
    answers: NDArray[np.int64]
    """How many answers each sample has."""


@dataclass(frozen=True)
class SweepResult:
    """All measurements of one sweep of one model."""

    config: SweepConfig
    window: int
    longest: int
    documents: int
    unit_kind: UnitKind
    """What intervals resample: documents or, where those are too few, blocks of them."""
    measurements: list[Measurement]
    baseline: Measurement | None
    """`trained` at the window with same_tokens, whether or not it is among the measurements; None
    unless the window is among the lengths and same_tokens among the protocols."""
    compilations: int
    task_measurements: list[TaskMeasurement] = field(default_factory=list)

    @property
    def resampling(self) -> dict[str, int]:
        return {"resamples": self.config.resamples, "seed": self.config.seed}

    def to_frame(self) -> "pandas.DataFrame":
        """Return one row per measurement, with the columns of results.csv but those about a run.

        nll and its 95% interval, ci_low and ci_high, are in nats per token; bpb and its interval,
        bpb_low and bpb_high, in bits per byte, without values unless the sweep got `token_bytes`.
        """
        import pandas  # half a second, and only needed here

        table = rows(self, NO_ORIGIN)
        of_a_run = [*Origin._fields, "split"]
        frame = pandas.DataFrame(table, columns=list(Row._fields)).drop(columns=of_a_run)
        # Without a type of its own, a column of nothing but None could not be computed with.
        floats = dict.fromkeys(("factor", "bpb", "bpb_low", "bpb_high"), "float64")
        return frame.astype({**floats, "stride": "Int64"})

    def _repr_html_(self) -> str:
        """Return the perplexities by length, which a notebook shows."""
        table = self.to_frame().pivot_table("ppl", ["protocol", "name"], "length", sort=False)
        return f"<p>perplexity</p>{table.to_html(na_rep='', float_format='{:,.3f}'.format)}"


def rows(result: SweepResult, origin: Origin) -> list[Row]:
    """Return one row per measurement, in the order of the measurements."""
    how = result.resampling
    table = []
    for m in result.measurements:
        nll, bits = mean_nll(m.sums, **how), bits_per_byte([m.sums], **how) or (None, None, None)
        table.append(
            Row(
                **_shared_columns(result, origin, m),
                protocol=m.protocol,
                first_position=m.first_position,
                last_position=m.length,
                nll=nll.value,
                ppl=perplexity(nll.value),
                bpb=bits[0],
                bpb_low=bits[1],
                bpb_high=bits[2],
                metric="nats",
                value=nll.value,
                ci_low=nll.low,
                ci_high=nll.high,
                reliable=len(m.sums.nll) >= RELIABLE_UNITS,
                tokens=m.tokens,
                documents=result.documents,
                units=len(m.sums.nll),
                stride=m.stride,
            )
        )
    return table


def document_rows(result: SweepResult, origin: Origin) -> list[DocumentRow]:
    """Return the sums by unit behind the intervals; they let runs be paired and pooled.

    Documents are numbered within the sweep; sweeps whose `targets` are equal number them alike. The
    baseline is included even if no curve of the sweep contains it.
    """
    made = {(m.entry, m.protocol, m.length): m for m in result.measurements}
    if baseline := result.baseline:
        made.setdefault((baseline.entry, baseline.protocol, baseline.length), baseline)
    return [
        DocumentRow(
            name=m.entry,
            protocol=m.protocol,
            length=m.length,
            step=origin.step,
            document=int(m.unit_documents[number]),
            unit=number,
            nll=nll,
            weight=weight,
            bytes=None if m.sums.bytes is None else m.sums.bytes[number],
        )
        for m in made.values()
        for number, (nll, weight) in enumerate(zip(m.sums.nll, m.sums.weight, strict=True))
    ]


def task_rows(result: SweepResult, origin: Origin) -> list[TaskRow]:
    """Return two rows per measurement of a task, nats and exact, in the order of measurements."""
    table = []
    for m in result.task_measurements:
        by_metric: dict[MetricName, Estimate] = {"nats": mean_nll(m.sums, **result.resampling)}
        if m.task.has_answers:
            by_metric["exact"] = accuracy_interval(m.num_correct, m.answers, **result.resampling)
        table += [
            TaskRow(
                **_shared_columns(result, origin, m),
                task=m.task.label,
                kind_of_task=m.task.task,
                depth=m.depth,
                distance=m.task.distance(m.length),
                taken_out=m.ablated,
                metric=metric,
                value=estimate.value,
                ci_low=estimate.low,
                ci_high=estimate.high,
                chance=m.task.chance if metric == "exact" else None,
                samples=len(m.num_correct),
                answers=int(m.answers.sum()),
                tokens=int(m.sums.weight.sum()),
            )
            for metric, estimate in by_metric.items()
        ]
    return table


def sample_rows(result: SweepResult, origin: Origin) -> list[SampleRow]:
    """Return the results by sample behind the intervals of tasks."""
    return [
        SampleRow(
            name=m.entry,
            task=m.task.label,
            length=m.length,
            depth=m.depth,
            taken_out=m.ablated,
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


def _shared_columns(result: SweepResult, origin: Origin, m: _Measured) -> dict[str, Any]:
    entry = next(entry for entry in result.config.scalings if entry.label == m.entry)
    return {
        "name": m.entry,
        "scaling": entry.type if entry.over == "trained" else m.scaling.type,
        "map": m.map.label if m.map else "",
        "factor": getattr(m.scaling, "factor", None),
        "auto": entry.factor_is_auto,
        "length": m.length,
        **origin._asdict(),
        "split": result.config.split,
        "targets": m.targets,
        "bos": result.config.bos,
        "seconds": round(m.seconds, 4),
    }


def summarize(result: SweepResult, origin: Origin) -> CheckpointSummary:
    nll = bits = None
    curves = {}
    if baseline := result.baseline:
        nll = baseline.sums.mean()
        bits = bits_per_byte([baseline.sums], **result.resampling)
        window, entries = result.window, result.config.scalings
        own = Trained(window, baseline.scaling, baseline.map, train_length=window)
        trained = _same_tokens(result, own_entry(entries, own))
        for entry in entries:
            curves[entry.label] = _curve(result, entry.label, baseline, trained)
    counts = [len(m.sums.nll) for m in result.measurements]
    return CheckpointSummary(
        run=origin.run,
        step=origin.step,
        window=result.window,
        nll_at_window=nll,
        perplexity_at_window=None if nll is None else perplexity(nll),
        bpb_at_window=None if bits is None else bits.value,
        tolerance=result.config.tolerance,
        documents=result.documents,
        unit_kind=result.unit_kind if max(counts) > result.documents else "documents",
        units=min(counts),
        compilations=result.compilations,
        curves=curves,
        tasks=summarize_tasks(
            sample_rows(result, origin), result.config.threshold, **result.resampling
        ),
        borders=_borders(result),
    )


def _borders(result: SweepResult) -> dict[str, int]:
    borders: dict[str, int] = {}
    for m in sorted(result.task_measurements, key=lambda m: m.length):
        bands = () if m.map is None else m.map.bands(result.window, m.length)
        if bands and (border := first_changed_distance(bands, m.length)) is not None:
            borders[m.entry] = border
    return borders


def _curve(
    result: SweepResult, name: str, baseline: Measurement, trained: Mapping[int, Measurement]
) -> CurveSummary:
    """Compare an entry's curve with the baseline, and with `trained`: its measurements by length.

    All differences are of the same scored tokens, and paired by document.
    """
    curve, how = _same_tokens(result, name), result.resampling
    losses = {n: paired_difference(m.sums, baseline.sums, **how) for n, m in curve.items()}
    window, tolerance = result.window, result.config.tolerance
    units = min((len(m.sums.nll) for m in curve.values()), default=0)
    return CurveSummary(
        usable=established_length(losses, window, tolerance, units=units),
        usable_at_most=usable_length({n: d.at_least for n, d in losses.items()}, window, tolerance),
        blow_up={n: loss.mapped(perplexity) for n, loss in losses.items()},
        above_truncation=losses,
        difference_from_trained={
            n: paired_difference(m.sums, trained[n].sums, **how)
            for n, m in curve.items()
            if n in trained
        },
    )


def _same_tokens(result: SweepResult, name: str | None) -> dict[int, Measurement]:
    """Return an entry's measurements of the same tokens, by length."""
    return {m.length: m for m in result.measurements if m.entry == name and m.protocol == BASELINE}
