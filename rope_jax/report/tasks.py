"""What is shown of tasks: tables, figures, and the heat maps of a comparison's page."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console

from rope_jax.comparison.sweeps import Sweep
from rope_jax.config.presentation import FigureWidth
from rope_jax.console import print_wrapped
from rope_jax.errors import printable
from rope_jax.plots.tasks import TAKEN_OUT, Rows, draw_distances, draw_heat, heat_panels, share_text
from rope_jax.report.measured import loss_cell
from rope_jax.report.table import Cell, Line, Table
from rope_jax.report.terminal import print_table
from rope_jax.report.text import effective_text, usable_text
from rope_jax.results.statistics import Estimate
from rope_jax.results.summary import CheckpointSummary
from rope_jax.results.tasks import TaskRow, TaskSummary, TaskTables, taken_out


def task_tables(checkpoint: CheckpointSummary, tables: TaskTables) -> list[Table]:
    """Return one table per task: the share of exact answers in % by length, or the perplexity."""
    control = taken_out(tables.samples, checkpoint.step)
    by_task: dict[str, list[TaskRow]] = {}
    for row in tables.rows:
        if row.step == checkpoint.step:
            by_task.setdefault(row.task, []).append(row)
    return [
        _table(own, checkpoint, control.get(task, {}))
        if task in checkpoint.tasks
        else _perplexity_table(own, checkpoint)
        for task, own in by_task.items()
    ]


def _table(
    rows: Sequence[TaskRow], checkpoint: CheckpointSummary, control: Mapping[int, float]
) -> Table:
    task = rows[0].task
    by_name = checkpoint.tasks[task]
    lengths = sorted({n for summary in by_name.values() for n in summary.exact})
    lines = []
    for name, summary in by_name.items():
        curve = checkpoint.curves.get(name)
        # an interval is often one-sided, so both ends are shown
        shares = [tuple(map(share_text, summary.exact[n])) for n in lengths]
        cells = [Cell(value, f"[{low}, {high}]") for value, low, high in shares]
        reach = (
            effective_text(*summary.effective),
            usable_text(None if curve is None else curve.usable),
        )
        lines.append(Line((name,), [*cells, *map(Cell, reach)]))
    caption = (
        f"Exact answers in %, over all depths, by context length: {checkpoint.run}, step "
        f"{checkpoint.step}, trained at {checkpoint.window:,} tokens. {_explanation(by_name)}"
    )
    known = [share_text(control[n]) if n in control else "" for n in lengths]
    below = {TAKEN_OUT: known}
    chance = next((row.chance for row in rows if row.chance is not None), None)
    if chance is not None:
        below["chance"] = [share_text(chance)] * len(lengths)
    return Table(
        title=task,
        caption=caption,
        labels=("scaling",),
        columns=(*(f"{n:,}" for n in lengths), "effective", "usable"),
        lines=lines,
        below=[Line((name,), [*map(Cell, (*values, "", ""))]) for name, values in below.items()],
    )


def _perplexity_table(rows: Sequence[TaskRow], checkpoint: CheckpointSummary) -> Table:
    lengths = sorted({row.length for row in rows})
    lines = []
    for name in dict.fromkeys(row.name for row in rows):
        own = sorted((row for row in rows if row.name == name), key=lambda row: row.length)
        cells = [loss_cell(Estimate(row.value, row.ci_low, row.ci_high)) for row in own]
        lines.append(Line((name,), cells))
    caption = (
        f"Perplexity of {rows[0].tokens:,} key tokens, by context length: {checkpoint.run}, step "
        f"{checkpoint.step}, trained at {checkpoint.window:,} tokens. ± half of the 95% interval "
        f"over {rows[0].samples:,} blocks of them."
    )
    return Table(rows[0].task, caption, ("scaling",), tuple(f"{n:,}" for n in lengths), lines)


def print_tasks(console: Console, checkpoint: CheckpointSummary, tables: TaskTables) -> None:
    """Print one table per task, with intervals where the console is wide enough."""
    for table in task_tables(checkpoint, tables):
        quantity = "exact answers in %" if table.below else "perplexity of key tokens"
        print_wrapped(console, f"{quantity}, by context length; {table.title}", "bold")
        print_table(console, table, file="tasks.csv")
        console.print()
    if checkpoint.tasks:
        print_wrapped(console, _explanation(next(iter(checkpoint.tasks.values()))), "dim")


def _explanation(by_name: Mapping[str, TaskSummary]) -> str:
    return (
        "In brackets the 95% interval over samples. Taken out: the same without what is asked for, "
        "the largest of all rows. Effective: the longest length up to which at least "
        f"{100 * next(iter(by_name.values())).threshold:g}% are exact, with its interval where "
        "the ends differ. Usable: by perplexity."
    )


def draw_tasks(
    rows: Sequence[TaskRow], checkpoint: CheckpointSummary, *, width: FigureWidth
) -> dict[str, Figure]:
    """Draw each task of a checkpoint: over distance if it has one, else by length and depth."""
    figures: dict[str, Figure] = {}
    for task in dict.fromkeys(row.task for row in rows):
        own = [row for row in rows if row.task == task]
        title = (
            f"{task}: {checkpoint.run}, step {checkpoint.step}, trained at {checkpoint.window:,} "
            f"tokens; {own[0].split} split, {own[0].samples:,} samples"
        )
        shown: dict[str, Any] = {"window": checkpoint.window, "title": title, "width": width}
        if own[0].distance is not None or task not in checkpoint.tasks:
            figure = draw_distances(own, borders=checkpoint.borders, **shown)
        else:
            found = checkpoint.tasks[task]
            effective = {name: effective_text(*found[name].effective) for name in found}
            figure = draw_heat(own, effective=effective, **shown)
        figures[f"{task}.png"] = figure
    return figures


def effective_tables(sweeps: Sequence[Sweep]) -> Iterator[Table]:
    """Yield a table of effective lengths for each sweep with tasks."""
    for sweep in sweeps:
        names = dict.fromkeys(name for found in sweep.effective.values() for name in found)
        lines = []
        for name in names:
            found = [by_name.get(name) for by_name in sweep.effective.values()]
            cells = [Cell("" if one is None else effective_text(*one)) for one in found]
            lines.append(Line((name,), cells))
        if lines:
            yield Table(
                title=sweep.label,
                caption="Effective lengths by task.",
                labels=("scaling",),
                columns=tuple(sweep.effective),
                lines=lines,
            )


def task_maps(sweeps: Sequence[Sweep]) -> list[dict[str, Any]]:
    """Return one heat map per sweep and task, of the newest checkpoint, for the page."""
    maps = []
    for sweep in sweeps:
        step = max(sweep.windows)
        rows = [row for row in sweep.tasks if row.step == step and row.metric == "exact"]
        for task in dict.fromkeys(row.task for row in rows):
            own = [row for row in rows if row.task == task]
            lengths = sorted({row.length for row in own})
            labels = {row.name: printable(row.name) for row in own}
            for name, effective in sweep.effective.get(task, {}).items():
                labels[name] = f"{printable(name)}: {effective_text(*effective)}"
            unit = "%" if any(row.depth is not None for row in own) else ""
            panels = [
                {
                    "title": title,
                    "rows": [label if label == TAKEN_OUT else label + unit for label in rows],
                    "values": _percent(rows, lengths, "value"),
                    "low": _percent(rows, lengths, "ci_low"),
                    "high": _percent(rows, lengths, "ci_high"),
                }
                for title, rows in heat_panels(own, labels).items()
            ]
            maps.append(
                {
                    "title": f"{printable(sweep.label)}, step {step:,}: {task}",
                    "window": sweep.windows[step],
                    "chance": own[0].chance,
                    "samples": own[0].samples,
                    "lengths": lengths,
                    "panels": panels,
                }
            )
    return maps


def _percent(rows: Rows, lengths: Sequence[int], column: str) -> list[list[float]]:
    """Return a column of a panel's rows in %, by row and length; nan: not measured."""
    return [
        [100 * getattr(cells[n], column) if n in cells else math.nan for n in lengths]
        for cells in rows.values()
    ]
