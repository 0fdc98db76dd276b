"""What a terminal shows of comparisons and sweeps: progress, tables, and what explains them."""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from rich.console import Console
from rich.progress import TaskProgressColumn

from rope_jax.comparison.curves import Comparison
from rope_jax.console import print_warning, print_wrapped, progress_bar, time_left
from rope_jax.report.measured import measured_table
from rope_jax.report.table import Table, print_table
from rope_jax.report.tasks import task_tables
from rope_jax.results.files import SweepTables

_SECONDS_TO_FIRST_LINE, _SECONDS_BETWEEN_LINES = 10, 60


class SweepProgress(AbstractContextManager["SweepProgress"]):
    """A progress bar with the time left, over all checkpoints of a sweep."""

    def __init__(self, console: Console, steps: Sequence[int]) -> None:
        self._bar = progress_bar(console, TaskProgressColumn)
        self._task = self._bar.add_task("sweeping", total=None, now="")
        self._console, self._steps = console, steps
        self._next_line = float(_SECONDS_TO_FIRST_LINE)

    def __exit__(self, *error: object) -> None:
        if error[0] is None:  # fill the bar even if the last checkpoint was skipped
            self._bar.update(self._task, total=self._bar.tasks[self._task].completed)
        if self._bar.live.is_started:
            self._bar.stop()

    def of_checkpoint(self, step: int) -> Callable[[str, float, float], None]:
        """Return the `progress` function for the sweep of one checkpoint."""
        before = self._bar.tasks[self._task].completed
        left = sum(other >= step for other in self._steps)

        def update(now: str, done: float, total: float) -> None:
            # assume that the remaining checkpoints take as long as this one
            label = f"step {step}, {now}" if len(self._steps) > 1 else now
            if done < total and not self._bar.live.is_started:
                self._bar.start()
            whole = before + total * left
            self._bar.update(self._task, completed=before + done, total=whole, now=label)
            # lines where the bar is not drawn, such as in a file: after 10 s, then each minute
            task = self._bar.tasks[self._task]
            elapsed = task.elapsed or 0.0
            if self._bar.disable and done < total and elapsed >= self._next_line:
                self._next_line = elapsed + _SECONDS_BETWEEN_LINES
                self._console.print(f"{label}; {task.percentage:.0f}% done{time_left(task)}")

        return update


def warn_of_chance(console: Console, nll: float, vocab_size: int) -> None:
    """Warn if a model's NLL at its window, in nats, is above that of equal probabilities, ln V."""
    chance = math.log(vocab_size)
    if nll > chance:
        print_warning(
            console,
            f"{nll:.2f} nats per token at the window are worse than chance, ln V = {chance:.2f} "
            f"for V = {vocab_size:,}: the tokenizer and the weights may not belong together, or "
            "the model is untrained",
        )


def print_comparison(console: Console, comparison: Comparison) -> None:
    """Print a line per curve of the first protocol, and what explains it."""
    table = measured_table(comparison, comparison.protocols[0])
    _print_tables(console, [table], comparison, file="comparison.md")


def print_sweep(console: Console, comparison: Comparison, sweep: SweepTables) -> None:
    """Print one table per protocol and task with one line per curve, and what explains them.

    comparison: by `compare_checkpoints`. Of several checkpoints, each has a line in a table above
    that of the newest one.
    """
    tables = []
    for protocol in comparison.protocols:
        if len(comparison.newest) < len(comparison.curves):
            tables.append(measured_table(comparison, protocol, every_step=True))
        tables.append(measured_table(comparison, protocol))
    tables += task_tables(sweep, comparison.how.labels)
    _print_tables(console, tables, comparison, file="results.md")


def _print_tables(
    console: Console, tables: Sequence[Table], comparison: Comparison, *, file: str
) -> None:
    notes: dict[str, None] = {}
    for number, table in enumerate(tables):
        if number:
            console.print()
        notes |= dict.fromkeys(print_table(console, table, file=file))
    print_wrapped(console, "; ".join(notes), "dim")
    for note in comparison.notes:
        print_wrapped(console, note, "yellow")
