"""A sweep in TensorBoard: a run a scaling, whose step is the context length."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rope_jax.evaluation.results import Row
from rope_jax.runs.logs import TensorBoardWriter

_UNITS = {"nll": "nats a token", "perplexity": "perplexity", "bits_per_byte": "bits a byte"}


def write_events(
    folder: Path,
    table: Sequence[Row],
    about: dict[str, Any],
    images: Mapping[str, np.ndarray],
    settings: str,
) -> None:
    """Event files under `folder`: curves, hyperparameters with what they gave, and the figures.

    The newest checkpoint's curve is in NAME/, an earlier one's in NAME/step-STEP/. Where there are
    several, NAME/ also has what they gave at each length, by training step.
    about: what `summary` returned of the newest, and under "earlier" of the others; images: uint8
    [height, width, 3]; settings: the sweep's YAML.
    """
    for name in dict.fromkeys(row.name for row in table):
        for of_step in (about, *about["earlier"]):
            place = folder / name
            if of_step is not about:
                place /= f"step-{of_step['step']}"
            own = [row for row in table if (row.name, row.step) == (name, of_step["step"])]
            writer = TensorBoardWriter(place)
            for row in own:
                writer.scalars(row.last_position, _values(row))
            writer.hparams(_settings(own[-1]), _outcome(of_step["curves"].get(name)))
            if of_step is about and about["earlier"]:
                for row in table:
                    if row.name == name:
                        writer.scalars(row.step, {_by_step(row): row.ppl})
            writer.close()
    writer = TensorBoardWriter(folder)
    writer.layout(_layout(table, bool(about["earlier"])))
    for title, image in images.items():
        writer.image(title, image)
    writer.text("sweep", f"```yaml\n{settings}```")
    writer.close()


def _layout(table: Sequence[Row], by_step: bool) -> dict[str, dict[str, list[str]]]:
    """Under "custom scalars": all scalings on one chart, a chart a protocol, the units apart."""
    protocols = list(dict.fromkeys(row.protocol for row in table))
    units = _values(table[0])
    charts = {
        _UNITS[unit]: {protocol: [f"{unit}/{protocol}"] for protocol in protocols}
        for unit in _UNITS
        if any(tag.startswith(f"{unit}/") for tag in units)
    }
    if by_step:
        tags = dict.fromkeys(map(_by_step, table))
        charts["perplexity, by training step"] = {
            tag.removeprefix("perplexity_by_step/").replace("/", ", "): [tag] for tag in tags
        }
    return charts


def _by_step(row: Row) -> str:
    """The tag of what a checkpoint gave at one length; its step is the training step."""
    return f"perplexity_by_step/{row.protocol}/{row.last_position}"


def _values(row: Row) -> dict[str, float]:
    # perplexity may be infinite, NLL is not
    values = {f"nll/{row.protocol}": row.nll, f"perplexity/{row.protocol}": row.ppl}
    if row.bpb is not None:
        values[f"bits_per_byte/{row.protocol}"] = row.bpb
    return values


def _settings(row: Row) -> dict[str, str | float]:
    """What tells one curve from another in the table of hyperparameters."""
    factor = "auto" if row.auto else "" if row.factor is None else f"{row.factor:g}"
    return {
        "scaling": row.scaling,
        "factor": factor,
        "run": row.run,
        "step": row.step,
        "seed": row.seed,
    }


def _outcome(curve: dict[str, Any] | None) -> dict[str, float]:
    """What the scaling gave: nothing where the window was not measured by same_tokens."""
    if curve is None:
        return {}
    longest = max(curve["blow_up"])
    none = 0 if curve["usable_length_is_known"] else math.nan
    found = {
        "usable_length": curve["usable_length"] or none,
        "blow_up_at_longest": curve["blow_up"][longest]["value"],
        "gain_over_truncation_at_longest": curve["gain_over_truncation_nats"][longest]["value"],
    }
    return {f"summary/{name}": value for name, value in found.items() if math.isfinite(value)}
