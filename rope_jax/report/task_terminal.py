"""The tasks of a sweep in the terminal: one table per task."""

from rich.console import Console
from rich.text import Text

from rope_jax.console import Column, print_columns, print_wrapped, table_width
from rope_jax.report.task_tables import TaskTable, make_task_tables
from rope_jax.results.summary import CheckpointSummary
from rope_jax.results.tasks import TaskTables


def print_tasks(console: Console, checkpoint: CheckpointSummary, tables: TaskTables) -> None:
    """Print one table per task, with intervals where the console is wide enough."""
    for table in make_task_tables(checkpoint, tables):
        quantity = "exact answers in %" if table.below else "perplexity of key tokens"
        print_wrapped(console, f"{quantity}, by context length; {table.task}", "bold")
        columns = _columns(table, with_intervals=True)
        if table_width(columns, 2) > console.width:
            columns = _columns(table, with_intervals=False)
        gap = 2 if table_width(columns, 2) <= console.width else 1
        print_columns(console, columns, gap=gap)
        console.print()
    for by_name in list(checkpoint.tasks.values())[:1]:
        threshold = next(iter(by_name.values())).threshold
        print_wrapped(
            console,
            "in brackets: 95% interval over samples; taken out: the same without what is asked "
            "for, the largest of all scalings; effective: longest length up to which at least "
            f"{100 * threshold:g}% are exact, with its interval where the ends differ; usable: by "
            "perplexity",
            "dim",
        )


def _columns(table: TaskTable, *, with_intervals: bool) -> list[Column]:
    names = [name for name, _, _ in table.rows]
    last = [name for name, _ in table.below]
    columns = [Column("scaling", [Text(name) for name in (*names, *last)], "left")]
    for place, length in enumerate(table.lengths):
        cells = [
            Text.assemble(cells[place][0], (f" {cells[place][1]}" * with_intervals, "dim"))
            for _, cells, _ in table.rows
        ]
        below = [Text(values[place]) for _, values in table.below]
        columns.append(Column(f"{length:,}", [*cells, *below]))
    for place, heading in enumerate(table.last):
        reach = [Text(found[place]) for _, _, found in table.rows]
        columns.append(Column(heading, [*reach, *[Text()] * len(last)]))
    return columns
