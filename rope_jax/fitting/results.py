"""The outcome of a fit: start, fitted and truncation on the same validation targets."""

from dataclasses import dataclass

from rope_jax.evaluation import SweepResult
from rope_jax.results.statistics import Estimate, paired_difference
from rope_jax.runs.tables import format_csv


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
    baseline, config = result.baseline, result.config
    if baseline is None:
        raise ValueError("lengths: the window is not among them")
    rows = []
    for measured in [baseline, *(m for m in result.measurements if m.entry != "trained")]:
        above = None
        if measured is not baseline:
            above = paired_difference(
                measured.sums, baseline.sums, resamples=config.resamples, seed=config.seed
            )
        name = "truncation" if measured is baseline else measured.entry
        nll = float(measured.sums.mean())
        rows.append(FitRow(name, measured.length, nll, above, measured.tokens, result.documents))
    return rows


def as_csv(rows: list[FitRow]) -> str:
    """Return rows as CSV."""
    header = ("name", "length", "nll", "above_truncation", "ci_low", "ci_high")
    cells = []
    for row in rows:
        above = row.above_truncation
        difference = (None,) * 3 if above is None else (above.value, above.low, above.high)
        cells.append((row.name, row.length, row.nll, *difference, row.tokens, row.documents))
    return format_csv((*header, "tokens", "documents"), cells)
