"""results.md and results.tex: the tasks of a sweep's newest checkpoint, one row per scaling."""

from collections.abc import Mapping
from typing import NamedTuple

from rope_jax.evaluation.statistics import Estimate
from rope_jax.evaluation.summary import CheckpointSummary
from rope_jax.evaluation.text import effective_text
from rope_jax.runs.latex import escape_latex, format_tabular, latex_value
from rope_jax.runs.markdown import escape_markdown

# By task and length, the share of exact answers without what is asked for.
TakenOut = Mapping[str, Mapping[int, float]]


class TaskTable(NamedTuple):
    """The table of one task, before it is formatted."""

    task: str
    caption: str
    lengths: list[int]
    rows: list[tuple[str, list[tuple[str, str]], str]]
    """Name, (value, interval) by length, effective length."""
    taken_out: list[str]


def task_tables(checkpoint: CheckpointSummary, taken_out: TakenOut) -> list[TaskTable]:
    """Return one table per task: the share of exact answers in %, by length."""
    return [_table(task, checkpoint, taken_out.get(task, {})) for task in checkpoint.tasks]


def format_tasks_markdown(checkpoint: CheckpointSummary, taken_out: TakenOut) -> str:
    """Return the tables as Markdown."""
    parts = []
    for table in task_tables(checkpoint, taken_out):
        heading = ["scaling", *(f"{n:,}" for n in table.lengths), "effective"]
        lines = [heading, ["---", *["---:"] * (len(heading) - 1)]]
        for name, cells, effective in table.rows:
            shown = [f"{value} {interval}".rstrip() for value, interval in cells]
            lines.append([escape_markdown(name), *shown, effective])
        lines.append(["taken out", *table.taken_out, ""])
        text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
        parts.append(f"## `{table.task}`\n\n{escape_markdown(table.caption)}\n\n{text}")
    return "\n".join(parts)


def format_tasks_latex(checkpoint: CheckpointSummary, taken_out: TakenOut) -> str:
    """Return one tabular environment per task."""
    parts = []
    for table in task_tables(checkpoint, taken_out):
        curves = [
            [escape_latex(name), *(latex_value(*cell, is_best=False) for cell in cells),
             escape_latex(effective)]
            for name, cells, effective in table.rows
        ]  # fmt: skip
        control = ["taken out", *(latex_value(v, "", is_best=False) for v in table.taken_out), ""]
        heading = ["scaling", *(f"{n:,}" for n in table.lengths), "effective"]
        notes = [table.task, table.caption, r"Needs \usepackage{booktabs}."]
        blocks = [curves, [control]]
        parts.append(format_tabular([*map(escape_latex, heading)], blocks, left=1, notes=notes))
    return "\n".join(parts)


def _table(task: str, checkpoint: CheckpointSummary, taken_out: Mapping[int, float]) -> TaskTable:
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
    shown = [f"{100 * taken_out[n]:.0f}" if n in taken_out else "" for n in lengths]
    return TaskTable(task, caption, lengths, rows, shown)


def _cell(share: Estimate) -> tuple[str, str]:
    """Return a share and its interval in %; it is often one-sided, so both ends are shown."""
    return f"{100 * share.value:.0f}", f"[{100 * share.low:.0f}, {100 * share.high:.0f}]"
