"""The outcome of a fit: start, fitted and truncation on the same validation targets."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from rope_jax.console import Column, print_columns, print_wrapped
from rope_jax.evaluation import SweepResult
from rope_jax.results.statistics import Estimate, paired_difference
from rope_jax.runs.tables import format_csv


class FitRow(NamedTuple):
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
    baseline, config, rows = result.baseline, result.config, []
    assert baseline is not None  # the window is among the lengths
    for m in [baseline, *(m for m in result.measurements if m.entry != "trained")]:
        name, above = "truncation", None
        if m is not baseline:
            name = m.entry
            how = {"resamples": config.resamples, "seed": config.seed}
            above = paired_difference(m.sums, baseline.sums, **how)
        rows.append(FitRow(name, m.length, float(m.sums.mean()), above, m.tokens, result.documents))
    return rows


def as_csv(rows: Sequence[FitRow]) -> str:
    """Return rows as CSV."""
    header = ("name", "length", "nll", "above_truncation", "ci_low", "ci_high")
    cells = []
    for name, length, nll, above, *counts in rows:
        difference = (None,) * 3 if above is None else (above.value, above.low, above.high)
        cells.append((name, length, nll, *difference, *counts))
    return format_csv((*header, "tokens", "documents"), cells)


def print_table(console: Console, rows: Sequence[FitRow], window: int, learned: int) -> None:
    """Print start, fitted and truncation on the validation split, by length."""
    is_known = any(r.above_truncation and not math.isnan(r.above_truncation.high) for r in rows)
    interval = "± half of the 95% interval" if is_known else "no interval: too few documents"
    print_wrapped(
        console,
        f"nats per token on {rows[0].tokens:,} validation tokens of {rows[0].documents} documents",
        "bold",
    )
    names = list(dict.fromkeys(row.name for row in rows))
    cells = {(row.name, row.length): _cell(row) for row in rows}
    columns = [Column("", [Text(name) for name in names], "left")]
    for length in sorted({row.length for row in rows}):
        columns.append(Column(f"{length:,}", [Text(cells.get((n, length), "")) for n in names]))
    print_columns(console, columns)
    print_wrapped(
        console,
        f"in brackets: above truncation, which is `trained` at its window, {window:,} tokens; "
        f"{interval}",
        "dim",
    )
    console.print(f"{learned:,} numbers were learned; every weight stayed as it was")


def _cell(row: FitRow) -> str:
    """Return the NLL, and in brackets its difference with half of the interval, if there is one."""
    above = row.above_truncation
    if above is None:
        return f"{row.nll:.4f}"
    half = "" if math.isnan(above.high) else f" ±{(above.high - above.low) / 2:.4f}"
    return f"{row.nll:.4f} ({above.value:+.4f}{half})"
