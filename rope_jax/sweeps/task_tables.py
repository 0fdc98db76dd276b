"""results.md and results.tex: the tasks of a sweep's newest checkpoint, one row per scaling."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rope_jax.evaluation.statistics import Estimate
from rope_jax.evaluation.summary import CheckpointSummary
from rope_jax.evaluation.task_results import TaskRow, TaskTables
from rope_jax.evaluation.task_summary import taken_out
from rope_jax.evaluation.text import effective_text, interval_text, perplexity_text
from rope_jax.runs.latex import escape_latex, format_tabular, latex_value
from rope_jax.runs.markdown import escape_markdown


class TaskTable(NamedTuple):
    """The table of one task, before it is formatted."""

    task: str
    caption: str
    lengths: list[int]
    rows: list[tuple[str, list[tuple[str, str]], str]]
    """Name, (value, interval) by length, effective length."""
    taken_out: list[str]
    """By length; empty for a task without answers, which has no effective length either."""

    @property
    def heading(self) -> list[str]:
        """The names of the columns."""
        last = ["effective"] if self.taken_out else []
        return ["scaling", *(f"{n:,}" for n in self.lengths), *last]


def make_task_tables(checkpoint: CheckpointSummary, tables: TaskTables) -> list[TaskTable]:
    """Return one table per task: the share of exact answers in % by length, or the perplexity."""
    control = taken_out(tables.samples, checkpoint.step)
    rows = [row for row in tables.rows if row.step == checkpoint.step]
    return [
        _table(task, checkpoint, control.get(task, {}))
        if task in checkpoint.tasks
        else _perplexity_table([row for row in rows if row.task == task], checkpoint)
        for task in dict.fromkeys(row.task for row in rows)
    ]


def format_tasks_markdown(checkpoint: CheckpointSummary, tables: TaskTables) -> str:
    """Return the tables as Markdown."""
    parts = []
    for table in make_task_tables(checkpoint, tables):
        heading = table.heading
        blank = [""] * bool(table.taken_out)
        lines = [heading, ["---", *["---:"] * (len(heading) - 1)]]
        for name, cells, effective in table.rows:
            shown = [f"{value} {interval}".rstrip() for value, interval in cells]
            lines.append([escape_markdown(name), *shown, *[effective] * len(blank)])
        if table.taken_out:
            lines.append(["taken out", *table.taken_out, *blank])
        text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
        parts.append(f"## `{table.task}`\n\n{escape_markdown(table.caption)}\n\n{text}")
    return "\n".join(parts)


def format_tasks_latex(checkpoint: CheckpointSummary, tables: TaskTables) -> str:
    """Return one tabular environment per task."""
    parts = []
    for table in make_task_tables(checkpoint, tables):
        blank = [""] * bool(table.taken_out)
        curves = [
            [
                escape_latex(name),
                *(latex_value(*cell, is_best=False) for cell in cells),
                *[escape_latex(effective)] * len(blank),
            ]
            for name, cells, effective in table.rows
        ]
        control = [latex_value(value, "", is_best=False) for value in table.taken_out]
        blocks = [curves, [["taken out", *control, *blank]]] if control else [curves]
        notes = [table.task, table.caption, r"Needs \usepackage{booktabs}."]
        heading = list(map(escape_latex, table.heading))
        parts.append(format_tabular(heading, blocks, left=1, notes=notes))
    return "\n".join(parts)


def _table(task: str, checkpoint: CheckpointSummary, control: Mapping[int, float]) -> TaskTable:
    by_name = checkpoint.tasks[task]
    lengths = sorted({n for summary in by_name.values() for n in summary.exact})
    rows = [
        (name, [_cell(summary.exact[n]) for n in lengths], effective_text(*summary.effective))
        for name, summary in by_name.items()
    ]
    threshold = next(iter(by_name.values())).threshold
    caption = (
        f"Exact answers in %, over all depths, by context length: {checkpoint.run}, step "
        f"{checkpoint.step}, trained at {checkpoint.window:,} tokens. In brackets the 95% "
        "interval over samples. Taken out: the same without what is asked for, the largest of all "
        "rows. Effective: the longest length up to which at least "
        f"{100 * threshold:g}% are exact, with its interval where the ends differ."
    )
    shown = [f"{100 * control[n]:.0f}" if n in control else "" for n in lengths]
    return TaskTable(task, caption, lengths, rows, shown)


def _perplexity_table(rows: Sequence[TaskRow], checkpoint: CheckpointSummary) -> TaskTable:
    """Return the table of a task of which only the NLL counts."""
    lengths = sorted({row.length for row in rows})
    lines = []
    for name in dict.fromkeys(row.name for row in rows):
        cells = []
        for row in sorted((r for r in rows if r.name == name), key=lambda row: row.length):
            estimate = Estimate(value=row.value, low=row.ci_low, high=row.ci_high)
            cells.append((perplexity_text(row.value), interval_text(estimate)))
        lines.append((name, cells, ""))
    caption = (
        f"Perplexity of {rows[0].tokens:,} key tokens, by context length: {checkpoint.run}, step "
        f"{checkpoint.step}, trained at {checkpoint.window:,} tokens. ± half of the 95% interval "
        f"over {rows[0].samples:,} blocks of them."
    )
    return TaskTable(rows[0].task, caption, lengths, lines, [])


def _cell(share: Estimate) -> tuple[str, str]:
    """Return a share and its interval in %; it is often one-sided, so both ends are shown."""
    return f"{100 * share.value:.0f}", f"[{100 * share.low:.0f}, {100 * share.high:.0f}]"
