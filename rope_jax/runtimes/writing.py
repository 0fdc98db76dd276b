"""settings.md, settings.json and strategy.json: what to set after a sweep or a fit."""

import csv
import json
import math
import re
import shlex
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from rope_jax.checkpoints.exporting import original_files, run_sources
from rope_jax.checkpoints.files import CONFIG
from rope_jax.config.entries import SweepEntry
from rope_jax.config.strategy import Strategy, read_strategy, write_strategy
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import TrainingConfig
from rope_jax.console import print_overview
from rope_jax.protocols import BASELINE
from rope_jax.report.measured import difference_cell, units_text
from rope_jax.report.table import escape_markdown
from rope_jax.results.files import SweepTables
from rope_jax.results.rows import Row
from rope_jax.results.statistics import Estimate
from rope_jax.results.summary import CheckpointSummary
from rope_jax.runs.directory import RunDirectory
from rope_jax.runs.logs import finite
from rope_jax.runtimes.settings import Rotation, Runtime, frequencies, runtime_settings
from rope_jax.sealed import write_text

STRATEGY = "strategy.json"


class Measured(NamedTuple):
    """A scaling at a length; losses in nats per token.

    above_truncation: the loss minus nll_at_window, on the same tokens; None: it is not known.
    protocol: with its sample, in words.
    """

    entry: str
    strategy: Strategy
    length: int
    window: int
    nll: float
    nll_at_window: float | None
    above_truncation: Estimate | None
    protocol: str
    notes: tuple[str, ...] = ()

    @property
    def loss(self) -> str:
        """The loss, and how far it is above truncation, with the interval of that."""
        text, above = f"{self.nll:.3f} nats per token", self.above_truncation
        if above is None or self.length <= self.window:
            return text
        return " ".join([f"{text},", *filter(None, difference_cell(above)[:2]), "above truncation"])

    @property
    def verdict(self) -> str:
        """Whether to read a whole text with these settings, or only its end without them."""
        above, window = self.above_truncation, f"{self.window:,} tokens"
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
    newest, longest = tables.checkpoints[0], max(row.length for row in tables.rows)
    wanted = newest.step, longest, protocol
    rows = [row for row in tables.rows if (row.step, row.length, row.protocol) == wanted]
    rows.sort(key=lambda row: (math.isnan(row.nll), row.nll))
    made = [_of_sweep(row, entries[row.name], training, newest) for row in rows]
    runtimes = [_runtimes(run, training, measured) for measured in made]
    usable = (i for i, each in enumerate(runtimes) if any(x.settings for x in each))
    best = next(usable, 0)
    measured = made[best]
    if best:
        better = ", ".join(each.entry for each in made[:best])
        notes = *measured.notes, f"Better, but in no runtime: {better}."
        measured = measured._replace(notes=notes)
    folder = run.evals / config.name
    write_strategy(measured.strategy, folder / STRATEGY)
    _write(folder, run, training, measured, runtimes[best], console)


def _of_sweep(
    row: Row, entry: SweepEntry, training: TrainingConfig, newest: CheckpointSummary
) -> Measured:
    length, trained, curve = row.length, training.trained_at(row.step), newest.curves.get(row.name)
    strategy = Strategy(
        scaling=entry.at(length, trained),
        map=entry.map_at(length, trained),
        made_by={"run": row.run, "step": row.step, "entry": row.name, "length": [length]},
    )
    fixed = f"at that of {length:,} tokens, {row.factor}, for which shorter texts pay"
    sample = f"{row.tokens:,} tokens in {units_text(row.units, row.documents)}"
    return Measured(
        entry=row.name,
        strategy=strategy,
        length=length,
        window=trained.window,
        nll=row.nll,
        nll_at_window=newest.nll_at_window,
        above_truncation=None if curve is None else curve.above_truncation.get(length),
        protocol=f"{row.protocol}; {row.split} split, {sample}",
        notes=(f"The factor is fixed {fixed}, unlike `auto`.",) if row.auto else (),
    )


def write_fit_settings(
    run: RunDirectory, training: TrainingConfig, folder: Path, console: Console
) -> None:
    """Write and print the settings of a finished fit, at its longest length."""
    strategy = read_strategy(str(folder / STRATEGY))
    with (folder / "results.csv").open(encoding="utf-8") as file:
        truncation, *_, row = csv.DictReader(file)  # the last is of what was fitted
    above = Estimate(*(float(row[key]) for key in ("above_truncation", "ci_low", "ci_high")))
    sample = f"{int(row['tokens']):,} tokens in {units_text(0, int(row['documents']))}"
    measured = Measured(
        entry=f"fit {folder.name}",
        strategy=strategy,
        length=int(row["length"]),
        window=training.trained_at(strategy.made_by["step"]).window,
        nll=float(row["nll"]),
        nll_at_window=float(truncation["nll"]),
        above_truncation=above,
        protocol=f"{BASELINE}; validation split, {sample}",
    )
    _write(folder, run, training, measured, _runtimes(run, training, measured), console)


def _runtimes(run: RunDirectory, training: TrainingConfig, measured: Measured) -> Sequence[Runtime]:
    """Return the settings, in the family that a run was imported from, if it was."""
    model_type = original_files(run_sources(run, training)).get(CONFIG, {}).get("model_type")
    strategy, trained = measured.strategy, training.trained_at(measured.strategy.made_by["step"])
    return runtime_settings(training, strategy, trained, measured.length, model_type)


def _write(
    folder: Path,
    run: RunDirectory,
    training: TrainingConfig,
    measured: Measured,
    runtimes: Sequence[Runtime],
    console: Console,
) -> None:
    text, verdict = folder / "settings.md", measured.verdict
    title = f"{measured.entry}, up to {measured.length:,} tokens"
    command = shlex.join(["rope-jax", "export", str(run.path)])
    strategy = shlex.quote(f"strategy={folder / STRATEGY}")
    weights = (
        f"## Weights\n\n`{command} MODEL {strategy}` writes a folder with the settings of "
        f"transformers, `{command} NEW.gguf {strategy}` a GGUF file for which llama.cpp needs only "
        "`-c`. The flags above are for a file of the model as it was trained."
    )
    facts = {"entry": f"{title}: {measured.loss}"}
    if any(runtime.settings for runtime in runtimes):
        facts |= {runtime.name: _in_short(runtime) for runtime in runtimes}
    else:
        verdict = "no runtime can express these; settings.json has their frequencies"
        facts["runtimes"], weights = f"each {runtimes[0].note}", ""  # for the same reason
    sections = [
        f"# Settings of {escape_markdown(f'{training.name}: {title}')}",
        f"**{verdict[:1].upper()}{verdict[1:]}.**",
        f"{measured.loss} ({measured.protocol}).",
        *measured.notes,
        *(part for runtime in runtimes for part in _section(runtime)),
        weights,
    ]
    write_text(text, "\n\n".join(sections).rstrip() + "\n")
    content = {
        **measured._asdict(),
        "verdict": verdict,
        "strategy": measured.strategy.model_dump(mode="json", exclude_none=True),
        "above_truncation": measured.above_truncation and measured.above_truncation._asdict(),
        "frequencies": _frequencies(training, measured),
        "runtimes": {x.name: {"settings": x.settings, "note": x.note} for x in runtimes},
    }
    write_text(folder / "settings.json", json.dumps(finite(content), indent=1) + "\n")
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


def _frequencies(training: TrainingConfig, measured: Measured) -> list[dict[str, Any]]:
    """Return θ' in radians per token and m, with the layers that have them."""
    rotary, kinds = training.rotary_layers, defaultdict[Rotation, list[int]](list)
    for layer in range(rotary.count):
        kinds[rotary.for_layer(layer, measured.strategy.scaling)].append(layer)
    made = [(kind, frequencies(kind, measured.length)) for kind in kinds]
    return [
        {"layers": kinds[kind], **vars(kind[0]), "inv_freq": theta.tolist(), "attention_factor": m}
        for kind, (theta, m) in made
    ]
