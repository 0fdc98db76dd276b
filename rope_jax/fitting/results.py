"""The outcome of a fit: start, fitted and truncation on the same validation targets."""

import csv
import io
from dataclasses import dataclass

from rope_jax.evaluation import SweepResult
from rope_jax.evaluation.results import Measurement
from rope_jax.results.statistics import Estimate, paired_difference


@dataclass(frozen=True)
class FitRow:
    """The NLL of one strategy at one length, nats per token."""

    name: str
    length: int
    nll: float
    above_truncation: Estimate | None
    """NLL minus that of `trained` at the window, on the same targets; None for that itself."""
    tokens: int
    documents: int


def fit_rows(result: SweepResult) -> list[FitRow]:
    """Return the rows of a sweep that has a baseline, truncation first."""
    baseline = result.baseline
    if baseline is None:
        raise ValueError("lengths: the window is not among them")
    return [
        _row("truncation", result, baseline, None),
        *(
            _row(m.entry, result, m, _above(result, m, baseline))
            for m in result.measurements
            if m.entry != "trained"
        ),
    ]


def as_csv(rows: list[FitRow]) -> str:
    """Return rows as CSV."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    header = ("name", "length", "nll", "above_truncation", "ci_low", "ci_high")
    writer.writerow((*header, "tokens", "documents"))
    for row in rows:
        above = row.above_truncation
        difference = ("", "", "") if above is None else (above.value, above.low, above.high)
        writer.writerow((row.name, row.length, row.nll, *difference, row.tokens, row.documents))
    return out.getvalue()


def _row(name: str, result: SweepResult, m: Measurement, above: Estimate | None) -> FitRow:
    return FitRow(name, m.length, float(m.sums.mean()), above, m.tokens, result.documents)


def _above(result: SweepResult, m: Measurement, baseline: Measurement) -> Estimate:
    config = result.config
    return paired_difference(m.sums, baseline.sums, resamples=config.resamples, seed=config.seed)
