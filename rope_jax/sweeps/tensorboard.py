"""A sweep in TensorBoard: one TensorBoard run per scaling, whose step is the context length."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from rope_jax.evaluation.results import Row
from rope_jax.evaluation.summary import CheckpointSummary, CurveSummary, SweepSummary
from rope_jax.runs.logs import TensorBoardWriter
from rope_jax.runs.markdown import yaml_block

_UNITS = {"nll": "nats per token", "perplexity": "perplexity", "bits_per_byte": "bits per byte"}


def write_events(
    folder: Path,
    table: Sequence[Row],
    summary: SweepSummary,
    images: Mapping[str, UInt8[np.ndarray, "height width 3"]],
    settings: str,
) -> None:
    """Write event files under `folder`: curves, hyperparameters with their outcome, and figures.

    The newest checkpoint's curve is in NAME/, an earlier one's in NAME/step-STEP/. If there are
    several, NAME/ also has the perplexity at each length by training step.

    images: by title; settings: the sweep's YAML.
    """
    for name in dict.fromkeys(row.name for row in table):
        own = [row for row in table if row.name == name]
        writer = TensorBoardWriter(folder / name)
        _write_curve(writer, own, summary.newest)
        if summary.earlier:
            for row in own:
                writer.scalars(row.step, {_tag_by_step(row): row.ppl})
        writer.close()
        for checkpoint in summary.earlier:
            writer = TensorBoardWriter(folder / name / f"step-{checkpoint.step}")
            _write_curve(writer, own, checkpoint)
            writer.close()
    writer = TensorBoardWriter(folder)
    writer.layout(_layout(table, by_step=bool(summary.earlier)))
    for title, image in images.items():
        writer.image(title, image)
    writer.text("sweep", yaml_block(settings))
    writer.close()


def _write_curve(
    writer: TensorBoardWriter, rows: Sequence[Row], checkpoint: CheckpointSummary
) -> None:
    """Write one checkpoint's points of a curve, and its row in the table of hyperparameters."""
    own = [row for row in rows if row.step == checkpoint.step]
    for row in own:
        writer.scalars(row.last_position, _values(row))
    writer.hparams(_settings(own[-1]), _outcome(checkpoint.curves.get(own[-1].name)))


def _layout(table: Sequence[Row], *, by_step: bool) -> dict[str, dict[str, list[str]]]:
    """Return the "custom scalars" layout: per unit, one chart per protocol with all scalings."""
    protocols = list(dict.fromkeys(row.protocol for row in table))
    units = _values(table[0])
    charts = {
        _UNITS[unit]: {protocol: [f"{unit}/{protocol}"] for protocol in protocols}
        for unit in _UNITS
        if any(tag.startswith(f"{unit}/") for tag in units)
    }
    if by_step:
        tags = dict.fromkeys(map(_tag_by_step, table))
        charts["perplexity, by training step"] = {
            tag.removeprefix("perplexity_by_step/").replace("/", ", "): [tag] for tag in tags
        }
    return charts


def _tag_by_step(row: Row) -> str:
    """Return the tag of the perplexity at one length, whose step is the training step."""
    return f"perplexity_by_step/{row.protocol}/{row.last_position}"


def _values(row: Row) -> dict[str, float]:
    # the perplexity may overflow, the NLL does not
    values = {f"nll/{row.protocol}": row.nll, f"perplexity/{row.protocol}": row.ppl}
    if row.bpb is not None:
        values[f"bits_per_byte/{row.protocol}"] = row.bpb
    return values


def _settings(row: Row) -> dict[str, str | float]:
    """Return what distinguishes curves in the table of hyperparameters."""
    factor = "auto" if row.auto else "" if row.factor is None else f"{row.factor:g}"
    return {
        "scaling": row.scaling,
        "map": row.map,
        "factor": factor,
        "run": row.run,
        "step": row.step,
        "seed": row.seed,
    }


def _outcome(curve: CurveSummary | None) -> dict[str, float]:
    """Return what a scaling achieved; empty if there is no baseline to compare it with."""
    if curve is None:
        return {}
    longest = max(curve.blow_up)
    none = 0.0 if curve.usable.is_known else math.nan
    outcome = {
        "usable_length": float(curve.usable.length or none),
        "blow_up_at_longest": curve.blow_up[longest].value,
        "gain_over_truncation_at_longest": curve.gain_over_truncation[longest].value,
    }
    return {f"summary/{name}": value for name, value in outcome.items() if math.isfinite(value)}
