"""How fast batches are built, against how fast training steps use them.

    make demo
    python benchmarks/batches.py runs/demo

Builds batches of the demo's corpus as the training loop does, and runs training steps of the
demo's model as `benchmarks/train_step.py` does, in turns. Prints the tokens per second of both, and
the median and quartiles of the rounds' ratios.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import train_step
from workers import Side

from rope_jax.data.batches import training_batch
from rope_jax.data.storage import open_corpus
from rope_jax.runs.directory import RunDirectory

SHAPES = ((16, 128), (32, 128), (8, 512), (2, 4096))


def seconds(work: Callable[[int], object], times: int) -> float:
    """Return the seconds of work(0), work(1), …"""
    began = time.perf_counter()
    for index in range(times):
        work(index)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="a run directory, such as runs/demo")
    parser.add_argument("--rounds", type=int, default=9, help="turns per side (default: 9)")
    arguments = parser.parse_args()
    run = RunDirectory(arguments.run)
    config = run.load_config()
    split = open_corpus(config.data, run.open_tokenizer(config)).train
    print("| windows | T | batches, tokens/s | steps, tokens/s | ratio (quartiles) |")
    print("|---|---|---|---|---|")
    for windows, length in SHAPES:
        side = train_step.ours(train_step.Shape(config.model.hidden_size, length, windows))

        def build(index: int, windows: int = windows, length: int = length) -> object:
            return training_batch(
                split, seed=0, stage=0, step=index, seq_len=length, batch_size=windows
            )

        def step(_: int, side: Side = side) -> object:
            return side.step()

        build(0), step(0), step(1)
        pairs = np.array(
            [(seconds(build, 50) / 50, seconds(step, 3) / 3) for _ in range(arguments.rounds)]
        )
        tokens = windows * length / np.median(pairs, axis=0)
        low, ratio, high = np.quantile(pairs[:, 1] / pairs[:, 0], (0.25, 0.5, 0.75))
        print(
            f"| {windows} | {length} | {tokens[0]:,.0f} | {tokens[1]:,.0f} "
            f"| **{ratio:.0f}** ({low:.0f} to {high:.0f}) |",
            flush=True,
        )


if __name__ == "__main__":
    main()
