"""Time the step of a fit, with values per layer or per head, beside a training step.

    make demo
    python benchmarks/fits.py runs/demo [--length 1024] [--tokens 4096]

Both read windows of the run's training texts with the run's weights, on which no time depends. The
training step is that of train.py on the same number of tokens: forward, backward, clipping, AdamW.
A fit scores the targets beyond the window, the training step all. The steps take turns; the ratio
is the median over rounds, each fit beside the training step before it.

What is learned: the frequencies of plain attention; query scales, and phases and amplitudes of far
keys (ReRoPE); and by default of rope-jax fit also a bias by distance, which is added to the
logits.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rope_jax.config.fit import FitConfig
from rope_jax.console import plain_console
from rope_jax.data.batches import Batch
from rope_jax.devices.hardware import compiled
from rope_jax.devices.malloc import keep_freed_memory
from rope_jax.fitting.fitter import Fit, first_state
from rope_jax.fitting.run import checked_start
from rope_jax.runs.directory import RunDirectory
from rope_jax.session import open_run
from rope_jax.sweeps.model import EvalModel, load_model
from rope_jax.training.optimizer import optimizer
from rope_jax.training.step import TrainState, make_train_step

FAR = ("query_scale", "far_phase", "far_amplitude")
LEARNED: dict[str, dict[str, Any]] = {
    "frequencies": {"learn": ("frequencies",), "start": {"type": "yarn", "factor": 4}},
    "far keys": {"learn": FAR},
    "far keys and bias": {"learn": (*FAR, "bias")},
}


def training_step(loaded: EvalModel, params: Any, length: int, count: int) -> Any:
    """Return a function that takes a training step, and waits for it."""
    config = loaded.training
    adamw = optimizer(config)
    scaling = config.trained_at(0).scaling
    positions = np.arange(length, dtype=np.int32)[None]
    rotary = config.rotary_layers.rotary(scaling, positions)
    text = max(loaded.corpus.train.texts(), key=len)[: length + 1].astype(np.int32)
    tokens = np.tile(text, (count, 1))
    batch = Batch(
        tokens=tokens[:, :-1],
        targets=tokens[:, 1:],
        segment_ids=np.zeros((count, length), np.int32),
        positions=np.tile(positions, (count, 1)),
        weights=np.ones((count, length), np.float32),
    )
    state = TrainState(params, jax.jit(adamw.init)(params))
    program = compiled(make_train_step(loaded.model, adamw), state, batch, rotary)

    def step() -> None:
        nonlocal state
        state, _ = jax.block_until_ready(program(state, batch, rotary))

    return step


def fit_step(loaded: EvalModel, params: Any, step: int, config: FitConfig) -> tuple[Any, int]:
    """Return a function that takes and awaits a step of a fit, and how many numbers are fitted."""
    start = checked_start(loaded.training, config, loaded.training.stage_at(step))
    take_step = Fit(Path(), config, loaded, params, step, start).make_step()
    state = first_state(take_step)
    free, opt_state, number = state.free, state.opt_state, 0

    def next_step() -> None:
        nonlocal free, opt_state, number
        number += 1
        free, opt_state, _ = jax.block_until_ready(take_step(free, opt_state, number))

    return next_step, take_step.parameters.count


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("run", type=Path, help="a run directory, such as runs/demo")
    parser.add_argument("--length", type=int, default=1024, help="tokens per window")
    parser.add_argument("--tokens", type=int, default=4096, help="tokens per step")
    parser.add_argument("--rounds", type=int, default=9, help="steps of each kind")
    arguments = parser.parse_args()
    keep_freed_memory()
    run = RunDirectory(arguments.run)
    with open_run(run, run.load_config(), plain_console(), out_of_memory="no memory") as session:
        loaded = load_model(session, split=None)
        step, params = loaded.one_checkpoint(None)
    steps, counts = {}, {}
    for name, settings in LEARNED.items():
        for per in ("model", "layer", "head"):
            given = {"length": arguments.length, "batch_tokens": arguments.tokens, "per": per}
            config = FitConfig.model_validate(given | settings)
            key = f"{name} | {per}"
            steps[key], counts[key] = fit_step(loaded, params, step, config)
    count = max(1, arguments.tokens // arguments.length)
    # last, because its step takes the weights' memory for its own
    train = training_step(loaded, jax.tree.map(np.asarray, params), arguments.length, count)

    def seconds(step: Any) -> float:
        began = time.perf_counter()
        step()
        return time.perf_counter() - began

    pairs: dict[str, list[tuple[float, float]]] = {key: [] for key in steps}
    for index in range(arguments.rounds + 1):  # the first round compiles
        for key, fit in steps.items():
            pair = seconds(train), seconds(fit)
            if index:
                pairs[key].append(pair)
    base = np.median([pair[0] for own in pairs.values() for pair in own])
    print(f"training step of {count} × {arguments.length:,} tokens: {1e3 * base:.0f} ms\n")
    print("| learned | per | numbers | ratio to a training step (quartiles) |")
    print("|---|---|---|---|")
    for key, own in pairs.items():
        low, middle, high = np.quantile([fit / train for train, fit in own], (0.25, 0.5, 0.75))
        print(f"| {key} | {counts[key]:,} | **{middle:.2f}** ({low:.2f} to {high:.2f}) |")


if __name__ == "__main__":
    main()
