"""settings.md, settings.json and strategy.json: what to set after a sweep or a fit."""

import csv
import json
import math
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from rope_jax.checkpoints.exporting import original_files, run_sources
from rope_jax.checkpoints.files import CONFIG
from rope_jax.config.entries import SweepEntry
from rope_jax.config.strategy import Strategy, read_strategy, write_strategy
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import TrainingConfig
from rope_jax.console import print_overview
from rope_jax.protocols import BASELINE, PROTOCOLS
from rope_jax.report.measured import difference_cell, units_text
from rope_jax.report.table import escape_markdown
from rope_jax.results.files import SweepTables
from rope_jax.results.rows import Row
from rope_jax.results.statistics import Estimate
from rope_jax.results.summary import CheckpointSummary
from rope_jax.runs.directory import RunDirectory
from rope_jax.runs.logs import finite
from rope_jax.runtimes.settings import Runtime, frequencies, runtime_settings
from rope_jax.sealed import write_text

STRATEGY = "strategy.json"


@dataclass
class Measured:
    """A scaling at a length, and what to set for it; losses in nats per token.

    above_truncation: the loss minus nll_at_window, on the same tokens; None: it is not known.
    """

    entry: str
    strategy: Strategy
    length: int
    window: int
    nll: float
    nll_at_window: float | None
    above_truncation: Estimate | None
    protocol: str
    runtimes: Sequence[Runtime]
    notes: Sequence[str] = ()

    @property
    def can_be_used(self) -> bool:
        return any(runtime.settings for runtime in self.runtimes)

    @property
    def title(self) -> str:
        return f"{self.entry}, up to {self.length:,} tokens"

    @property
    def loss(self) -> str:
        """The loss, and how far it is above truncation, with the interval of that."""
        text, above = f"{self.nll:.3f} nats per token", self.above_truncation
        if above is None or self.length <= self.window:
            return text
        cell = difference_cell(above)
        return f"{text}, {cell.value} {cell.interval} above truncation".replace("  ", " ")

    @property
    def verdict(self) -> str:
        """Whether to read a whole text with these settings, or only its end without them."""
        above, window = self.above_truncation, f"{self.window:,} tokens"
        if not self.can_be_used:
            return "no runtime can express these; settings.json has their frequencies"
        if above is None or self.nll_at_window is None:
            return f"not compared with truncation, as the window, {window}, was not measured"
        if self.length <= self.window:
            return f"nothing was measured past the window, {window}"
        truncation = f"the last {window} alone, {self.nll_at_window:.3f}"
        if above.at_most < 0:
            return f"better than {truncation}"
        if above.value < 0:
            return f"not known to be better than {truncation}"
        return f"nothing that a runtime can express is below truncation: rather keep {truncation}"


def write_sweep_settings(
    run: RunDirectory,
    training: TrainingConfig,
    config: SweepConfig,
    tables: SweepTables,
    console: Console,
) -> None:
    """Write and print the settings of a sweep's best entry that a runtime can express.

    That has the lowest NLL at the longest length, of the newest checkpoint.
    """
    entries = {entry.label: entry for entry in config.scalings}
    protocol = BASELINE if BASELINE in config.protocols else config.protocols[0]
    wanted = tables.checkpoints[0].step, max(row.length for row in tables.rows), protocol
    rows = [row for row in tables.rows if (row.step, row.length, row.protocol) == wanted]
    model_type = _model_type(run, training)
    made = [
        _of_sweep(row, entries[row.name], training, tables.checkpoints[0], model_type)
        for row in sorted(rows, key=lambda row: (math.isnan(row.nll), row.nll))
    ]
    best = next((each for each in made if each.can_be_used), made[0])
    if better := [each.entry for each in made[: made.index(best)]]:
        best.notes = [*best.notes, f"Better, but in no runtime: {', '.join(better)}."]
    folder = run.evals / config.name
    write_strategy(best.strategy, folder / STRATEGY)
    _write(folder, run, training, best, console)


def _of_sweep(
    row: Row,
    entry: SweepEntry,
    training: TrainingConfig,
    newest: CheckpointSummary,
    model_type: str | None,
) -> Measured:
    length, trained, curve = row.length, training.trained_at(row.step), newest.curves.get(row.name)
    strategy = Strategy(
        scaling=entry.at(length, trained),
        map=entry.map_at(length, trained),
        made_by={"run": row.run, "step": row.step, "entry": row.name, "length": [length]},
    )
    fixed = (
        f"The factor is fixed at that of {length:,} tokens, {row.factor}, for which shorter texts "
        "pay: the sweep's `auto` follows each length, so its losses at shorter lengths are not "
        "those of these settings."
    )
    how = PROTOCOLS[row.protocol]
    caption = ", ".join(filter(None, (how.caption.format(stride=row.stride), how.scored)))
    sample = f"{row.tokens:,} tokens in {units_text(row.units, row.documents)}"
    return Measured(
        entry=row.name,
        strategy=strategy,
        length=length,
        window=trained.window,
        nll=row.nll,
        nll_at_window=newest.nll_at_window,
        above_truncation=None if curve is None else curve.above_truncation.get(length),
        protocol=f"{row.protocol}, by {caption}; {row.split} split, {sample}",
        runtimes=runtime_settings(training, strategy, trained, length, model_type),
        notes=[fixed] if row.auto else [],
    )


def write_fit_settings(
    run: RunDirectory, training: TrainingConfig, folder: Path, console: Console
) -> None:
    """Write and print the settings of a finished fit, at its longest length."""
    strategy = read_strategy(str(folder / STRATEGY))
    trained = training.trained_at(strategy.made_by["step"])
    with (folder / "results.csv").open(encoding="utf-8") as file:
        truncation, *_, row = csv.DictReader(file)  # the last is of what was fitted
    length, model_type = int(row["length"]), _model_type(run, training)
    sample = f"{int(row['tokens']):,} tokens in {units_text(0, int(row['documents']))}"
    measured = Measured(
        entry=f"fit {folder.name}",
        strategy=strategy,
        length=length,
        window=trained.window,
        nll=float(row["nll"]),
        nll_at_window=float(truncation["nll"]),
        above_truncation=Estimate(
            float(row["above_truncation"]), float(row["ci_low"]), float(row["ci_high"])
        ),
        protocol=f"{BASELINE}; validation split, {sample}",
        runtimes=runtime_settings(training, strategy, trained, length, model_type),
    )
    _write(folder, run, training, measured, console)


def _model_type(run: RunDirectory, training: TrainingConfig) -> str | None:
    """Return the family that a run was imported from, None if it was not."""
    config = original_files(run_sources(run, training)).get(CONFIG, {})
    return config.get("model_type")


def _write(
    folder: Path,
    run: RunDirectory,
    training: TrainingConfig,
    measured: Measured,
    console: Console,
) -> None:
    text, verdict, runtimes = folder / "settings.md", measured.verdict, measured.runtimes
    sections = [
        f"# Settings of {escape_markdown(f'{training.name}: {measured.title}')}",
        f"**{verdict[:1].upper()}{verdict[1:]}.**",
        f"{measured.loss} ({measured.protocol}).",
        *measured.notes,
        *(part for runtime in runtimes for part in _section(runtime)),
    ]
    facts = {"entry": f"{measured.title}: {measured.loss}"}
    if measured.can_be_used:
        command = shlex.join(["rope-jax", "export", str(run.path)])
        strategy = shlex.quote(f"strategy={folder / STRATEGY}")
        sections += [
            "## Weights",
            f"`{command} MODEL {strategy}` writes a folder with the settings of transformers, "
            f"`{command} NEW.gguf {strategy}` a GGUF file for which llama.cpp needs only `-c`. "
            "The flags above are for a file of the model as it was trained.",
        ]
        facts |= {runtime.name: _in_short(runtime) for runtime in runtimes}
    else:  # for the same reason
        facts["runtimes"] = f"each {runtimes[0].note}"
    write_text(text, "\n\n".join(sections) + "\n")
    content = json.dumps(finite(_content(training, measured)), indent=1)
    write_text(folder / "settings.json", content + "\n")
    print_overview(console, f"settings: {verdict}", facts | {"more": str(text)})


def _section(runtime: Runtime) -> Iterator[str]:
    yield f"## {runtime.name}"
    if runtime.settings:
        yield f"```{'json' if runtime.name == 'transformers' else 'sh'}\n{runtime.pasted}\n```"
    if runtime.note:
        yield f"{runtime.name} {runtime.note}."


def _in_short(runtime: Runtime) -> str:
    """Return what a terminal shows: what is set, or why nothing can be."""
    if not runtime.settings:
        return f"none: it {runtime.note}"
    if runtime.name == "transformers":  # lists of numbers are counted
        text = json.dumps(runtime.settings["rope_parameters"])
        return re.sub(r"\[[^][]*\]", lambda x: f"[{x[0].count(',') + 1} numbers]", text)
    if runtime.name == "vLLM":
        return f"--hf-overrides with these, --max-model-len {runtime.settings['--max-model-len']}"
    return runtime.pasted.partition(".gguf ")[2]


def _content(training: TrainingConfig, measured: Measured) -> dict[str, Any]:
    """Return the content of settings.json; frequencies in radians per token."""
    rotary, kinds, made = training.rotary_layers, dict[Any, list[int]](), []
    for layer in range(rotary.count):
        kinds.setdefault(rotary.for_layer(layer, measured.strategy.scaling), []).append(layer)
    for rotation, layers in kinds.items():
        inv_freq, m = frequencies(rotation, measured.length)
        numbers = {"inv_freq": inv_freq.tolist(), "attention_factor": m}
        made.append({"layers": layers, **vars(rotation[0]), **numbers})
    above = measured.above_truncation
    return vars(measured) | {
        "verdict": measured.verdict,
        "strategy": measured.strategy.model_dump(mode="json", exclude_none=True),
        "above_truncation": above and above._asdict(),
        "frequencies": made,
        "runtimes": {x.name: {"settings": x.settings, "note": x.note} for x in measured.runtimes},
    }
