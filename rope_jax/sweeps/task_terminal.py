"""The tasks of a sweep in the terminal: one table per task."""

from rich.console import Console
from rich.text import Text

from rope_jax.console import Column, print_columns, print_wrapped, table_width
from rope_jax.evaluation.summary import CheckpointSummary
from rope_jax.sweeps.task_tables import TakenOut, TaskTable, task_tables


def print_tasks(console: Console, checkpoint: CheckpointSummary, taken_out: TakenOut) -> None:
    """Print one table per task, with intervals where the console is wide enough."""
    tables = task_tables(checkpoint, taken_out)
    for table in tables:
        print_wrapped(console, f"exact answers in %, by context length; {table.task}", "bold")
        columns = _columns(table, with_intervals=True)
        if table_width(columns, 2) > console.width:
            columns = _columns(table, with_intervals=False)
        gap = 2 if table_width(columns, 2) <= console.width else 1
        print_columns(console, columns, gap=gap)
        console.print()
    if tables:
        threshold = next(iter(checkpoint.tasks[tables[0].task].values())).threshold
        print_wrapped(
            console,
            "in brackets: 95% interval over samples; taken out: the same without what is asked "
            "for, the largest of all scalings; "
            f"effective: longest length up to which at least {100 * threshold:g}% are exact, with "
            "its interval where the ends differ",
            "dim",
        )


def _columns(table: TaskTable, *, with_intervals: bool) -> list[Column]:
    names = [Text(name) for name, _, _ in table.rows]
    columns = [Column("scaling", [*names, Text("taken out")], "left")]
    for place, length in enumerate(table.lengths):
        cells = [
            Text.assemble(cells[place][0], (f" {cells[place][1]}" * with_intervals, "dim"))
            for _, cells, _ in table.rows
        ]
        columns.append(Column(f"{length:,}", [*cells, Text(table.taken_out[place])]))
    effective = [Text(effective) for _, _, effective in table.rows]
    return [*columns, Column("effective", [*effective, Text()])]
