"""Terminal output of a fit: an overview, a progress bar with one line for each check, a table."""

import math
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.progress import MofNCompleteColumn
from rich.text import Text

from rope_jax.console import (
    Column,
    describe_duration,
    print_columns,
    print_wrapped,
    progress_bar,
)
from rope_jax.fitting.results import FitRow
from rope_jax.results.statistics import Estimate


class FitProgress:
    """Shows progress while entered: a bar in a terminal, and one line for each check."""

    def __init__(self, console: Console, total: int, done: int, title: str) -> None:
        self._console, self._total = console, total
        self._bar = progress_bar(console, MofNCompleteColumn())
        self._bar.disable = not console.is_terminal  # it cannot be redrawn there
        self._task = self._bar.add_task(title, total=total, completed=done, now="")

    def __enter__(self) -> "FitProgress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

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
    differences = [row.above_truncation for row in rows if row.above_truncation]
    is_known = any(not math.isnan(difference.high) for difference in differences)
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
        found = [by_place.get((name, length)) for name in names]
        cells = [Text("" if row is None else _cell(row)) for row in found]
        columns.append(Column(f"{length:,}", cells))
    print_columns(console, columns)
    print_wrapped(
        console,
        f"in brackets: above truncation, which is `trained` at its window, {window:,} tokens; "
        f"{interval}",
        "dim",
    )
    console.print(f"{learned:,} numbers were learned; every weight stayed as it was")


def _cell(row: FitRow) -> str:
    if row.above_truncation is None:
        return f"{row.nll:.4f}"
    return f"{row.nll:.4f} ({signed(row.above_truncation)})"


def signed(estimate: Estimate) -> str:
    """Return a difference with half of its interval, such as "+0.0100 ±0.0040".

    With too few documents there is no interval.
    """
    half = (estimate.high - estimate.low) / 2
    return f"{estimate.value:+.4f}" + ("" if math.isnan(half) else f" ±{half:.4f}")
