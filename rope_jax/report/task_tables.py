"""results.md and results.tex: the tasks of a sweep's newest checkpoint, one row per scaling."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rope_jax.plots.tasks import share_text
from rope_jax.report.latex import escape_latex, format_tabular, latex_value
from rope_jax.report.markdown import escape_markdown
from rope_jax.report.text import effective_text, interval_text, perplexity_text, usable_text
from rope_jax.results.statistics import Estimate
from rope_jax.results.summary import CheckpointSummary
from rope_jax.results.tasks import TaskRow, TaskTables, taken_out


class TaskTable(NamedTuple):
    """The table of one task, before it is formatted."""

    task: str
    caption: str
    lengths: list[int]
    rows: list[tuple[str, list[tuple[str, str]], list[str]]]
    """Name, (value, interval) by length, effective length and usable length."""
    below: list[tuple[str, list[str]]]
    """The rows to compare with: without what is asked for, and chance; none for a task without
    answers, which has no effective length either."""

    @property
    def heading(self) -> list[str]:
        """The names of the columns."""
        return ["scaling", *(f"{n:,}" for n in self.lengths), *self.last]

    @property
    def last(self) -> list[str]:
        """The names of the last columns: how long a context is used, and is harmless."""
        return ["effective", "usable"] if self.below else []


def make_task_tables(checkpoint: CheckpointSummary, tables: TaskTables) -> list[TaskTable]:
    """Return one table per task: the share of exact answers in % by length, or the perplexity."""
    control = taken_out(tables.samples, checkpoint.step)
    rows = [row for row in tables.rows if row.step == checkpoint.step]
    return [
        _table(own, checkpoint, control.get(task, {}))
        if task in checkpoint.tasks
        else _perplexity_table(own, checkpoint)
        for task in dict.fromkeys(row.task for row in rows)
        if (own := [row for row in rows if row.task == task])
    ]


def format_tasks_markdown(checkpoint: CheckpointSummary, tables: TaskTables) -> str:
    """Return the tables as Markdown."""
    parts = []
    for table in make_task_tables(checkpoint, tables):
        heading = table.heading
        blank = [""] * len(table.last)
        lines = [heading, ["---", *["---:"] * (len(heading) - 1)]]
        for name, cells, reach in table.rows:
            shown = [f"{value} {interval}".rstrip() for value, interval in cells]
            lines.append([escape_markdown(name), *shown, *reach])
        lines += [[name, *shown, *blank] for name, shown in table.below]
        text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
        parts.append(f"## `{table.task}`\n\n{escape_markdown(table.caption)}\n\n{text}")
    return "\n".join(parts)


def format_tasks_latex(checkpoint: CheckpointSummary, tables: TaskTables) -> str:
    """Return one tabular environment per task."""
    parts = []
    for table in make_task_tables(checkpoint, tables):
        blank = [""] * len(table.last)
        curves = [
            [
                escape_latex(name),
                *(latex_value(*cell, is_best=False) for cell in cells),
                *map(escape_latex, reach),
            ]
            for name, cells, reach in table.rows
        ]
        below = [
            [name, *(latex_value(value, "", is_best=False) for value in values), *blank]
            for name, values in table.below
        ]
        blocks = [curves, below] if below else [curves]
        notes = [table.task, table.caption, r"Needs \usepackage{booktabs}."]
        heading = list(map(escape_latex, table.heading))
        parts.append(format_tabular(heading, blocks, left=1, notes=notes))
    return "\n".join(parts)


def _table(
    rows: Sequence[TaskRow], checkpoint: CheckpointSummary, control: Mapping[int, float]
) -> TaskTable:
    """Return the table of a task with answers. rows: of this task."""
    task = rows[0].task
    by_name = checkpoint.tasks[task]
    lengths = sorted({n for summary in by_name.values() for n in summary.exact})
    lines = [
        (name, [_cell(summary.exact[n]) for n in lengths], _reach(name, task, checkpoint))
        for name, summary in by_name.items()
    ]
    threshold = next(iter(by_name.values())).threshold
    caption = (
        f"Exact answers in %, over all depths, by context length: {checkpoint.run}, step "
        f"{checkpoint.step}, trained at {checkpoint.window:,} tokens. In brackets the 95% "
        "interval over samples. Taken out: the same without what is asked for, the largest of all "
        "rows. Effective: the longest length up to which at least "
        f"{100 * threshold:g}% are exact, with its interval where the ends differ. Usable: by "
        "perplexity."
    )
    below = [("taken out", [share_text(control[n]) if n in control else "" for n in lengths])]
    chance = next((row.chance for row in rows if row.chance is not None), None)
    if chance is not None:
        below.append(("chance", [share_text(chance)] * len(lengths)))
    return TaskTable(task, caption, lengths, lines, below)


def _perplexity_table(rows: Sequence[TaskRow], checkpoint: CheckpointSummary) -> TaskTable:
    """Return the table of a task of which only the NLL counts."""
    lengths = sorted({row.length for row in rows})
    lines: list[tuple[str, list[tuple[str, str]], list[str]]] = []
    for name in dict.fromkeys(row.name for row in rows):
        cells = []
        for row in sorted((r for r in rows if r.name == name), key=lambda row: row.length):
            estimate = Estimate(value=row.value, low=row.ci_low, high=row.ci_high)
            cells.append((perplexity_text(row.value), interval_text(estimate)))
        lines.append((name, cells, []))
    caption = (
        f"Perplexity of {rows[0].tokens:,} key tokens, by context length: {checkpoint.run}, step "
        f"{checkpoint.step}, trained at {checkpoint.window:,} tokens. ± half of the 95% interval "
        f"over {rows[0].samples:,} blocks of them."
    )
    return TaskTable(rows[0].task, caption, lengths, lines, [])


def _reach(name: str, task: str, checkpoint: CheckpointSummary) -> list[str]:
    """Return a scaling's effective length and its usable length, if that is known."""
    curve = checkpoint.curves.get(name)
    usable = "" if curve is None else usable_text(**curve.usable._asdict())
    return [effective_text(*checkpoint.tasks[task][name].effective), usable]


def _cell(share: Estimate) -> tuple[str, str]:
    """Return a share and its interval in %; it is often one-sided, so both ends are shown."""
    return share_text(share.value), f"[{share_text(share.low)}, {share_text(share.high)}]"
