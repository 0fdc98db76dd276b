"""Time the training step, and its memory, under every remat policy.

    python benchmarks/remat.py                                    # 8 windows of 512 tokens
    python benchmarks/remat.py --windows 1 --length 16384 --rounds 3 --layers scanned

A complete step of the demo's model, as train.py runs it, in float32. The programs take turns. The
ratio is the median over rounds of the time to that of `none` with the same layers, which is called
just before, so that other load on the machine affects both. Memory is what the compiler reserves
for intermediate results.
"""

import argparse
import time
from typing import Any, get_args

import numpy as np

from rope_jax.config.model import RematName
from rope_jax.config.training import TrainingConfig
from rope_jax.data.batches import Batch
from rope_jax.devices.malloc import keep_freed_memory

POLICIES: tuple[RematName, ...] = get_args(RematName)
VOCABULARY = 257


class Step:
    """A compiled training step, and what it trains.

    model: the fields of `model` that differ from the demo's.
    """

    def __init__(self, model: dict[str, Any], windows: int, length: int) -> None:
        from rope_jax.config.resolve import resolve_run
        from rope_jax.devices.mesh import Placement
        from rope_jax.training.program import Program

        config = TrainingConfig.model_validate(
            {
                "name": "benchmark",
                "model": model,
                "optim": {"warmup_steps": 0},
                "stages": [{"steps": 10**6, "seq_len": length, "batch_size": windows}],
            }
        )
        program = Program(resolve_run(config), VOCABULARY, Placement(config.mesh))
        self._stage, self._state = program.stages[0], program.fresh_state()
        tokens = np.random.default_rng(0).integers(0, 256, (windows, length + 1), np.int32)
        self._batch = Batch(
            tokens=tokens[:, :-1],
            targets=tokens[:, 1:],
            segment_ids=np.zeros((windows, length), np.int32),
            positions=np.tile(np.arange(length, dtype=np.int32), (windows, 1)),
            weights=np.ones((windows, length), np.float32),
        )
        memory = self._stage.compiled_step.memory_analysis()
        assert memory is not None  # CPU, GPU and TPU all report it
        self.temporary_mib = memory.temp_size_in_bytes / 2**20

    def seconds(self) -> float:
        """Train one step."""
        import jax

        start = time.perf_counter()
        self._state, _ = jax.block_until_ready(self._stage.train_step(self._state, self._batch))
        return time.perf_counter() - start


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--windows", type=int, default=8, help="windows in a batch")
    parser.add_argument("--length", type=int, default=512, help="tokens in a window")
    parser.add_argument("--attention", default="auto", help="backend")
    parser.add_argument(
        "--layers", nargs="+", default=["unrolled", "scanned"], help="how layers run"
    )
    parser.add_argument("--rounds", type=int, default=9, help="steps of each program")
    given = parser.parse_args()
    keep_freed_memory()  # as train.py does, before it imports JAX
    steps = {
        (layers, remat): Step(
            {"attention": given.attention, "layers": layers, "remat": remat},
            given.windows,
            given.length,
        )
        for layers in given.layers
        for remat in POLICIES
    }
    pairs: dict[Any, list[tuple[float, float]]] = {name: [] for name in steps}
    for index in range(given.rounds + 1):  # the first round warms up
        for (layers, remat), step in steps.items():
            pair = steps[layers, "none"].seconds(), step.seconds()
            if index:
                pairs[layers, remat].append(pair)
    print(f"{given.windows} × {given.length:,} tokens, {given.attention}, {given.rounds} rounds")
    for (layers, remat), step in steps.items():
        base, own = np.array(pairs[layers, remat]).T
        low, middle, high = np.quantile(own / base, [0.25, 0.5, 0.75])
        print(
            f"{layers:9} {remat:10} {1e3 * np.median(own):9.1f} ms  {middle:5.2f} ({low:.2f} to "
            f"{high:.2f}) × none  {step.temporary_mib:7.1f} MiB"
        )


if __name__ == "__main__":
    main()
