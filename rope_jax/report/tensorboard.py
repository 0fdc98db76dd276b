"""A sweep in TensorBoard: one TensorBoard run per scaling, whose step is the context length.

TensorBoard sorts charts and columns by name, and unticks all runs where there are more than 40.
"""

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from rope_jax.config.load import dump
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import Config
from rope_jax.report.table import yaml_block
from rope_jax.results.rows import Row
from rope_jax.results.summary import CheckpointSummary, CurveSummary, SweepSummary
from rope_jax.results.tasks import TaskRow
from rope_jax.runs.logs import TensorBoardWriter
from rope_jax.tasks import TASKS

# Groups of charts; those of the other units come after all others.
_UNITS = {
    "perplexity": "perplexity",
    "unit_nats_per_token": "nats per token",
    "unit_bits_per_byte": "bits per byte",
}
# The columns of every scaling of every sweep, measured or not: see `TensorBoardWriter.hparams`.
METRICS = (
    "summary/usable_length",
    "summary/blow_up_at_longest",
    "summary/gain_over_truncation_at_longest",
    *(f"summary/effective_length_{task}" for task in TASKS),
)


def write_events(
    folder: Path,
    table: Sequence[Row],
    summary: SweepSummary,
    images: Mapping[str, UInt8[np.ndarray, "height width 3"]],
    config: SweepConfig,
    training: Config,
    tasks: Sequence[TaskRow] = (),
) -> None:
    """Write event files under `folder`: curves, hyperparameters with their outcome, and figures.

    A scaling's curves are in NAME/: perplexity/PROTOCOL of the newest checkpoint, for instance,
    perplexity/PROTOCOL_at_step_STEP of an earlier one, and by training step, if there are several,
    perplexity_by_step/PROTOCOL/LENGTH. The newest checkpoint's tasks are exact/TASK and nats/TASK,
    means over depths by length.

    images: by title. training: the run's config. table, tasks: of all checkpoints.
    """
    newest = summary.newest
    for name in dict.fromkeys(row.name for row in table):
        own = [row for row in table if row.name == name]
        writer = TensorBoardWriter(folder / name)
        for row in own:
            is_newest = row.step == newest.step
            writer.scalars(row.last_position, _values(row, is_newest=is_newest))
            if summary.earlier:
                writer.scalars(row.step, {_tag_by_step(row): row.ppl})
        for length, values in _task_values(tasks, name, newest.step).items():
            writer.scalars(length, values)
        last = [row for row in own if row.step == newest.step][-1]
        settings = _settings(last, config, training, newest.window)
        outcome = _outcome(newest.curves.get(name)) | _effective(newest, name, config)
        writer.hparams(settings, outcome, METRICS)
        writer.close()
    writer = TensorBoardWriter(folder)
    layout = _layout(table, summary)
    for task in newest.tasks:
        layout.setdefault("tasks, exact answers", {})[task] = [f"^exact/{re.escape(task)}$"]
    for task in dict.fromkeys(row.task for row in tasks):
        layout.setdefault("tasks, nats per token", {})[task] = [f"^nats/{re.escape(task)}$"]
    writer.layout(layout)
    for title, image in images.items():
        writer.image(newest.step, f"summary/{title}", image)
    writer.text(newest.step, "sweep", yaml_block(dump(config)))
    writer.close()


def _layout(table: Sequence[Row], summary: SweepSummary) -> dict[str, dict[str, list[str]]]:
    """Return the "custom scalars" layout: per unit, one chart per protocol with all scalings.

    Tags are regular expressions to TensorBoard.
    """
    charts: dict[str, dict[str, list[str]]] = {}
    newest = [row for row in table if row.step == summary.newest.step]
    for unit, title in _UNITS.items():
        by_protocol = {
            row.protocol: [f"^{tag}$"]
            for row in newest
            for tag in _values(row, is_newest=True)
            if tag.startswith(f"{unit}/")
        }
        charts |= {title: by_protocol} if by_protocol else {}
    earlier = [row for row in table if row.step != summary.newest.step]
    if earlier:
        charts["perplexity by training step"] = {
            f"{row.protocol}, {row.last_position}": [f"^{_tag_by_step(row)}$"] for row in newest
        }
        charts["perplexity of earlier checkpoints"] = {
            f"{row.protocol}, step {row.step}": [f"^{tag}$"]
            for row in sorted(earlier, key=lambda row: -row.step)
            for tag in _values(row, is_newest=False)
        }
    return charts


def _tag_by_step(row: Row) -> str:
    return f"perplexity_by_step/{row.protocol}/{row.last_position}"


def _values(row: Row, *, is_newest: bool) -> dict[str, float]:
    name = row.protocol if is_newest else f"{row.protocol}_at_step_{row.step}"
    values = {f"perplexity/{name}": row.ppl}
    if is_newest:
        # the perplexity may overflow, the NLL does not
        values[f"unit_nats_per_token/{name}"] = row.nll
        if row.bpb is not None:
            values[f"unit_bits_per_byte/{name}"] = row.bpb
    return values


def _task_values(rows: Sequence[TaskRow], name: str, step: int) -> dict[int, dict[str, float]]:
    found: dict[tuple[int, str], list[float]] = defaultdict(list)
    for row in rows:
        if (row.name, row.step, row.taken_out) == (name, step, False):
            found[row.length, f"{row.metric}/{row.task}"].append(row.value)
    means: dict[int, dict[str, float]] = defaultdict(dict)
    for (length, tag), values in found.items():
        means[length][tag] = float(np.mean(values))
    return means


def _effective(newest: CheckpointSummary, name: str, config: SweepConfig) -> dict[str, float]:
    """Return effective lengths by the task's type, of several the shortest; 0: none passes."""
    found: dict[str, float] = {}
    for task in config.tasks:
        summary = newest.tasks.get(task.label, {}).get(name)
        if summary is not None:
            tag = f"summary/effective_length_{task.task}"
            found[tag] = min(found.get(tag, math.inf), float(summary.effective.length or 0))
    return found


def _settings(row: Row, config: SweepConfig, training: Config, window: int) -> dict[str, str]:
    """Return hyperparameters as text: TensorBoard would show the seed 0 as 0.0000."""
    base = f"{training.rope.base:g}" if training.model.position.is_rotary else ""
    factor = "auto" if row.auto else "" if row.factor is None else f"{row.factor:g}"
    return {
        "label": row.name,
        "base": base,
        "window": f"{window}",
        "sweep": config.name,
        "seed": f"{row.seed}",
        "run": row.run,
        "step": f"{row.step}",
        "scaling": row.scaling,
        "factor": factor,
        "map": row.map,
    }


def _outcome(curve: CurveSummary | None) -> dict[str, float]:
    if curve is None:
        return {}
    longest = max(curve.blow_up)
    none = 0.0 if curve.usable.is_known else math.nan
    outcome = {
        "summary/usable_length": float(curve.usable.length or none),
        "summary/blow_up_at_longest": curve.blow_up[longest].value,
        "summary/gain_over_truncation_at_longest": curve.gain_over_truncation[longest].value,
    }
    return {name: value for name, value in outcome.items() if math.isfinite(value)}
