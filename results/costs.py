"""Show what runs and fits took: numbers trained, tokens, seconds; from the files in their folders.

    python results/costs.py runs/demo runs/extend-yarn-4x
    python results/costs.py runs/* --output costs.csv

Prints one row for each run and for each of its fits, and writes the same to a CSV file.
"""

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from rope_jax.config.fit import FitConfig
from rope_jax.config.load import load
from rope_jax.config.resolve import language_model, resolve_run
from rope_jax.config.training import TrainingConfig
from rope_jax.devices.window_memory import parameter_count
from rope_jax.runs.directory import RunDirectory


class Cost(NamedTuple):
    """The cost of a training run, or of a fit if it has a name.

    numbers: how many were trained: all weights, or those of the fit.
    tokens:  read by training steps, not by checks.
    seconds: of training steps alone; of a fit with compilation and checks.
    """

    run: str
    fit: str
    numbers: int
    steps: int
    tokens: int
    seconds: float


def costs_of(run: RunDirectory) -> Iterator[Cost]:
    """Yield what the training of a run took, unless it was imported, and each finished fit."""
    config = run.load_config()
    if config.imported is None:
        yield _training(run, config)
    for file in sorted(run.fits.glob("*/summary.json")):
        yield _fit(run, config, file)


def _training(run: RunDirectory, config: TrainingConfig) -> Cost:
    steps, tokens, seconds = 0, 0, 0.0
    speeds = {
        line["step"]: line["throughput/tokens_per_second"] for line in _lines(run.throughput_file)
    }
    for line in _lines(run.metrics_file):
        if "train/tokens" in line:
            more = line["train/tokens"] - tokens
            # a line without its speed means that the process was killed between the two
            seconds += more / speeds.get(line["step"], math.nan)
            steps, tokens = line["step"], line["train/tokens"]
    vocab_size = run.open_tokenizer(config).vocab_size
    numbers = parameter_count(language_model(resolve_run(config), vocab_size))
    return Cost(run.path.name, "", numbers, steps, tokens, seconds)


def _fit(run: RunDirectory, training: TrainingConfig, file: Path) -> Cost:
    config = load(FitConfig, file.parent / "fit.yaml")
    summary = json.loads(file.read_text(encoding="utf-8"))
    steps = int(summary["checks"][-1]["step"])
    window = training.stages[training.stage_at(summary["step"])].seq_len
    lengths = [config.length[step % len(config.length)] for step in range(steps)]
    lengths += [window] * (steps if config.keep_short else 0)
    tokens = sum(max(1, config.batch_tokens // n) * n for n in lengths)
    numbers, seconds = summary["numbers"], 60 * summary["minutes"]
    return Cost(run.path.name, file.parent.name, numbers, steps, tokens, seconds)


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    return map(json.loads, file.read_text(encoding="utf-8").splitlines())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, help="run directories")
    parser.add_argument("--output", type=Path, help="CSV file to write")
    arguments = parser.parse_args()
    costs = pd.DataFrame(
        [cost for run in arguments.runs for cost in costs_of(RunDirectory(run))],
        columns=Cost._fields,
    )
    print(costs.to_string(index=False))
    if arguments.output is not None:
        costs.to_csv(arguments.output, index=False)


if __name__ == "__main__":
    main()
