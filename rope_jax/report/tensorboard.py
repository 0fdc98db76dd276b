"""A sweep in TensorBoard: one TensorBoard run per scaling, whose step is the context length.

TensorBoard sorts charts and columns by name, and unticks all runs where there are more than 40.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from tensorboardX.summary import image, text

from rope_jax.config.load import dump
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import TrainingConfig
from rope_jax.report.table import yaml_block
from rope_jax.results.files import SweepTables
from rope_jax.results.rows import Row
from rope_jax.results.summary import CheckpointSummary
from rope_jax.runs.logs import TensorBoardWriter
from rope_jax.tasks import TASKS

# The columns of every scaling of every sweep, measured or not: see `TensorBoardWriter.hparams`.
METRICS = (
    "summary/usable_length",
    "summary/blow_up_at_longest",
    "summary/above_truncation_at_longest",
    *(f"summary/effective_length_{task}" for task in TASKS),
)


def write_events(
    folder: Path,
    sweep: SweepTables,
    images: Mapping[str, UInt8[np.ndarray, "height width 3"]],
    config: SweepConfig,
    training: TrainingConfig,
) -> None:
    """Write event files under `folder`: curves, hyperparameters with their outcome, and figures.

    A scaling's curves are in NAME/: perplexity/PROTOCOL of the newest checkpoint, for instance,
    perplexity/PROTOCOL_at_step_STEP of an earlier one, and by training step
    perplexity_by_step/PROTOCOL/LENGTH. Tasks are exact/TASK and nats/TASK, means over depths.

    images: by title. training: the run's config.
    """
    table, newest = sweep.rows, sweep.checkpoints[0]
    for name in dict.fromkeys(row.name for row in table):
        of_scaling = sorted((row for row in table if row.name == name), key=lambda row: -row.step)
        scalars = [(row.last_position, _values(row, row.step == newest.step)) for row in of_scaling]
        if any(row.step != newest.step for row in table):
            by_step = "perplexity_by_step/{0.protocol}/{0.last_position}"
            scalars += [(row.step, {by_step.format(row): row.ppl}) for row in of_scaling]
        by_depth: dict[tuple[int, str], list[float]] = defaultdict(list)
        for row in sweep.task_rows:
            if (row.name, row.step, row.taken_out) == (name, newest.step, False):
                by_depth[row.length, f"{row.metric}/{row.task}"].append(row.value)
        scalars += [(n, {tag: float(np.mean(values))}) for (n, tag), values in by_depth.items()]
        writer = TensorBoardWriter(folder / name)
        for step, values in scalars:
            writer.scalars(step, values)
        longest = [row for row in of_scaling if row.step == newest.step][-1]
        settings = _settings(longest, config, training, newest.window)
        writer.hparams(settings, _outcome(newest, name, config), METRICS)
        writer.close()
    writer = TensorBoardWriter(folder)
    for title, pixels in images.items():
        writer.add(newest.step, image(f"summary/{title}", pixels, dataformats="HWC"))
    writer.add(newest.step, text("sweep", yaml_block(dump(config))))
    writer.close()


def _values(row: Row, is_newest: bool) -> dict[str, float]:
    if not is_newest:
        return {f"perplexity/{row.protocol}_at_step_{row.step}": row.ppl}
    # the perplexity may overflow, the NLL does not
    values = {f"perplexity/{row.protocol}": row.ppl, f"unit_nats_per_token/{row.protocol}": row.nll}
    return values if row.bpb is None else values | {f"unit_bits_per_byte/{row.protocol}": row.bpb}


def _settings(
    row: Row, config: SweepConfig, training: TrainingConfig, window: int
) -> dict[str, str]:
    """Return hyperparameters as text: TensorBoard would show the seed 0 as 0.0000."""
    base = f"{training.rope.base:g}" if training.model.position.is_rotary else ""
    factor = "auto" if row.auto else "" if row.factor is None else f"{row.factor:g}"
    settings = {"label": row.name, "base": base, "window": f"{window}", "sweep": config.name}
    settings |= {"seed": f"{row.seed}", "run": row.run, "step": f"{row.step}"}
    return settings | {"scaling": row.scaling, "factor": factor, "map": row.map}


def _outcome(newest: CheckpointSummary, name: str, config: SweepConfig) -> dict[str, float]:
    """Return a scaling's `METRICS` as far as they are known; a length of 0: none passes."""
    outcome: dict[str, float] = {}
    if curve := newest.curves.get(name):
        longest = max(curve.blow_up)
        none = 0.0 if curve.usable.is_known else math.nan
        above = curve.above_truncation[longest].value
        known = float(curve.usable.length or none), curve.blow_up[longest].value, above
        outcome = dict(zip(METRICS, known, strict=False))
    for task in config.tasks:
        if summary := newest.tasks.get(task.label, {}).get(name):
            tag = f"summary/effective_length_{task.task}"  # of several of a type, the shortest
            length = float(summary.effective.length or 0)
            outcome[tag] = min(outcome.get(tag, math.inf), length)
    return {tag: value for tag, value in outcome.items() if math.isfinite(value)}
