"""Terminal output of a fit: an overview, a progress bar with one line for each check, a table."""

import math
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.text import Text

from rope_jax.console import (
    Column,
    describe_duration,
    print_columns,
    print_wrapped,
)
from rope_jax.fitting.results import FitRow
from rope_jax.training.terminal import StepProgress


class FitProgress(StepProgress):
    """Progress of a fit: a bar in a terminal, and one line for each check."""

    def stepped(self, step: int, loss: float) -> None:
        """Show a step's loss."""
        self._bar.update(self._task, completed=step, now=f"loss {loss:.3f}")

    def checked(self, step: int, nll: Mapping[int, float], *, is_best: bool) -> None:
        """Print one line for a check on the validation split."""
        values = ", ".join(f"{value:.4f} at {length:,}" for length, value in nll.items())
        best = "  (best so far)" if is_best and step else ""
        left = self._bar.tasks[self._task].time_remaining if self._bar.disable else None
        # in a few lines a minute it would be noise
        time_left = f"  {describe_duration(float(left))} left" if left and left >= 60 else ""
        self._console.print(f"step {step:>4}/{self._total}  validation {values}{best}{time_left}")


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
    by_place = {(row.name, row.length): row for row in rows}
    columns = [Column("", [Text(name) for name in names], "left")]
    for length in sorted({row.length for row in rows}):
        cells = [Text(_cell(by_place.get((name, length)))) for name in names]
        columns.append(Column(f"{length:,}", cells))
    print_columns(console, columns)
    print_wrapped(
        console,
        f"in brackets: above truncation, which is `trained` at its window, {window:,} tokens; "
        f"{interval}",
        "dim",
    )
    console.print(f"{learned:,} numbers were learned; every weight stayed as it was")


def _cell(row: FitRow | None) -> str:
    """Return the NLL, and in brackets its difference with half of the interval, if there is one."""
    if row is None:
        return ""
    if row.above_truncation is None:
        return f"{row.nll:.4f}"
    value, low, high = (
        row.above_truncation.value,
        row.above_truncation.low,
        row.above_truncation.high,
    )
    half = "" if math.isnan(high) else f" ±{(high - low) / 2:.4f}"
    return f"{row.nll:.4f} ({value:+.4f}{half})"
