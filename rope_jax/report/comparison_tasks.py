"""The tasks of the compared sweeps: heat maps for the page, and tables of effective lengths."""

import math
from collections.abc import Sequence
from typing import Any

from rope_jax.comparison.sweeps import Sweep
from rope_jax.errors import printable
from rope_jax.report.markdown import escape_markdown
from rope_jax.report.text import effective_text
from rope_jax.results.tasks import TaskRow

TAKEN_OUT = "taken out"


def task_maps(sweeps: Sequence[Sweep]) -> list[dict[str, Any]]:
    """Return one heat map per sweep and task, of the newest checkpoint, ready for JSON.

    A task with depths has a panel per scaling; of any other, the scalings are the rows of one.
    """
    maps = []
    for sweep in sweeps:
        step = max(sweep.windows)
        rows = [row for row in sweep.tasks if row.step == step and row.metric == "exact"]
        for task in dict.fromkeys(row.task for row in rows):
            own = [row for row in rows if row.task == task]
            names = list(dict.fromkeys(row.name for row in own))
            lengths = sorted({row.length for row in own})
            by_name = {name: [row for row in own if row.name == name] for name in names}
            if any(row.depth is not None for row in own):
                panels = [_panel(name, by_name[name], lengths, sweep, task) for name in names]
            else:
                panels = [_panel_of_scalings(by_name, lengths, sweep, task)]
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


def format_effective_lengths(sweeps: Sequence[Sweep]) -> str:
    """Return a Markdown section with the effective length of each scaling; "" without tasks."""
    parts = []
    for sweep in sweeps:
        if not sweep.effective:
            continue
        tasks = list(sweep.effective)
        names = list(dict.fromkeys(name for found in sweep.effective.values() for name in found))
        lines = [["scaling", *tasks], ["---", *["---:"] * len(tasks)]]
        for name in names:
            found = [sweep.effective[task].get(name) for task in tasks]
            shown = ["" if one is None else effective_text(*one) for one in found]
            lines.append([escape_markdown(name), *shown])
        table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
        parts.append(f"## {escape_markdown(sweep.label)}: effective lengths by task\n\n{table}")
    return "\n".join(parts)


def _panel(
    name: str, rows: Sequence[TaskRow], lengths: Sequence[int], sweep: Sweep, task: str
) -> dict[str, Any]:
    depths = sorted({row.depth for row in rows if row.depth is not None})
    by_label = {f"{100 * depth:g}%": [r for r in rows if r.depth == depth] for depth in depths}
    if control := [row for row in rows if row.taken_out]:
        by_label[TAKEN_OUT] = control
    return {"title": _title(name, sweep, task)} | _cells(by_label, lengths)


def _panel_of_scalings(
    by_name: dict[str, list[TaskRow]], lengths: Sequence[int], sweep: Sweep, task: str
) -> dict[str, Any]:
    by_label = {}
    for name, rows in by_name.items():
        by_label[_title(name, sweep, task)] = [row for row in rows if not row.taken_out]
    control = [row for rows in by_name.values() for row in rows if row.taken_out]
    if control:  # the largest of all scalings: none should be trusted with less
        by_label[TAKEN_OUT] = sorted(control, key=lambda row: row.value)
    return {"title": ""} | _cells(by_label, lengths)


def _title(name: str, sweep: Sweep, task: str) -> str:
    found = sweep.effective.get(task, {}).get(name)
    return printable(name) if found is None else f"{printable(name)}: {effective_text(*found)}"


def _cells(by_label: dict[str, list[TaskRow]], lengths: Sequence[int]) -> dict[str, Any]:
    """Return the values and intervals of a panel's rows, by length; None: not measured."""
    found = [{row.length: row for row in rows} for rows in by_label.values()]
    ends = {"values": "value", "low": "ci_low", "high": "ci_high"}
    return {"rows": list(by_label)} | {
        key: [[_percent(row.get(n), field) for n in lengths] for row in found]
        for key, field in ends.items()
    }


def _percent(row: TaskRow | None, field: str) -> float | None:
    value = math.nan if row is None else 100 * getattr(row, field)
    return value if math.isfinite(value) else None
