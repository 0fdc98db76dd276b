"""Take a fit apart: write the strategies with one kind of its numbers alone, and without one kind.

    python results/take_apart.py runs/smollm2 far
    rope-jax sweep runs/smollm2 'scalings=[runs/smollm2/fits/far/without-frequencies.json]' …

What is left out has the values of the fit's start. Nothing is fitted again, so a kind that makes
up for another looks worse without it than it would if the rest were fitted alone.
"""

import argparse
import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from rope_jax.config.fit import FitConfig
from rope_jax.config.load import load
from rope_jax.config.resolve import resolve_run
from rope_jax.config.strategy import write_strategy
from rope_jax.fitting.parameters import Free, Parameters, parameters_of
from rope_jax.fitting.run import checked_start
from rope_jax.runs.directory import RunDirectory

KINDS = {
    "frequencies": {"frequencies"},
    "score": {"attention_factor", "query_scale_s", "query_scale_p"},
    "far_phase": {"far_phase"},
    "far_amplitude": {"far_amplitude"},
}
"""Free parameters by kind; m and the query scale both multiply all logits of a query."""


def fitted(run: RunDirectory, folder: Path) -> tuple[Parameters, Free]:
    """Return what a finished fit learned, and its numbers at the best step."""
    training, config = resolve_run(run.load_config()), load(FitConfig, folder / "fit.yaml")
    step = json.loads((folder / "summary.json").read_text(encoding="utf-8"))["step"]
    stage = training.stage_at(step)
    start = checked_start(training, config, stage)
    parameters = parameters_of(training, config, start, stage)
    names = sorted(parameters.initial())
    with np.load(folder / "state.npz") as state:  # the best numbers are the last of its trees
        count = len([name for name in state if name.startswith("arr_")])
        arrays = (state[f"arr_{i}"] for i in range(count - len(names), count))
        best = {name: jnp.asarray(x) for name, x in zip(names, arrays, strict=True)}
    return parameters, best


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, help="run directory")
    parser.add_argument("fit", help="name of a finished fit")
    arguments = parser.parse_args()
    run = RunDirectory(arguments.run)
    folder = run.fits / arguments.fit
    parameters, best = fitted(run, folder)
    for kind, names in KINDS.items():
        of_kind = names & best.keys()
        for part, kept in (("only", of_kind), ("without", best.keys() - of_kind)):
            free = {name: x if name in kept else jnp.zeros_like(x) for name, x in best.items()}
            file = folder / f"{part}-{kind}.json"
            write_strategy(parameters.strategy(free, {"fit": arguments.fit, part: kind}), file)
            print(file)


if __name__ == "__main__":
    main()
