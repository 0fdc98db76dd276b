"""Kill training and sweeps repeatedly; they must end like runs that were never killed.

    python scripts/kill_test.py            # a hundred kills, about twenty minutes
    python scripts/kill_test.py --kills 3

A tiny run is trained once without interruption. Then the same command is started repeatedly and
killed by SIGKILL, at a random moment or while a checkpoint is being written. Once a run has
finished despite the kills, its parameters, optimizer state, metrics.jsonl and TensorBoard curves
are compared bit by bit with those of the uninterrupted run, and the next run begins. The last tenth
of the kills goes to sweeps, whose results are compared except for the seconds they took.
"""

import argparse
import collections
import csv
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAME = "killed"
CONFIG = f"""
name: {NAME}
log_every_steps: 1
model: {{hidden_size: 32, intermediate_size: 48, num_hidden_layers: 1, num_attention_heads: 2}}
optim: {{warmup_steps: 5}}
stages:
  - {{steps: 30, seq_len: 32, batch_size: 4}}
  - {{steps: 30, seq_len: 64, batch_size: 2, scaling: {{type: pi, factor: 2}}}}
validation: {{every_steps: 10, batches: 2}}
checkpoint: {{every_steps: 5, keep: 2}}
data:
  type: text
  files: [texts/*.txt]
  validation_fraction: 0.2
  test_fraction: 0.4
  cache_dir: cache
"""
SWEEP = ["name=swept", "lengths=[16,64,128]", "scalings=[trained,none]", "resamples=200"]


class Bench:
    """A scratch folder in which the two commands are run and killed."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.random = folder, random.Random(seed)
        self.killed: collections.Counter[str] = collections.Counter()
        (folder / "run.yaml").write_text(CONFIG)
        (folder / "texts").mkdir()
        for index in range(12):
            words = self.random.choices(["rope ", "turns ", "slow ", "fast ", "pair\n"], k=150)
            (folder / "texts" / f"{index}.txt").write_text("".join(words))

    def start(self, script: str, *arguments: str) -> subprocess.Popen:
        """Start one of the commands, redirecting its output to a file."""
        environment = os.environ | {"JAX_PLATFORMS": "cpu"}
        with (self.folder / "output.txt").open("wb") as output:
            return subprocess.Popen(
                [sys.executable, str(ROOT / script), *arguments],
                cwd=self.folder,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def train(self, runs: str) -> subprocess.Popen:
        """Start or resume the run in `runs`."""
        return self.start("train.py", "run.yaml", f"runs_dir={runs}")

    def wait(self, process: subprocess.Popen) -> float:
        """Wait for a command to end and return the seconds waited; exit if it failed."""
        start = time.perf_counter()
        if process.wait():
            sys.exit("the command failed:\n" + (self.folder / "output.txt").read_text())
        return time.perf_counter() - start

    def kill(self, process: subprocess.Popen, runs: str, seconds: float) -> bool:
        """Kill training at a random moment or in a save; return False if it ended first.

        seconds: the latest random moment.
        """
        checkpoints = self.folder / runs / NAME / "checkpoints"
        during_save = self.random.random() < 0.5
        deadline = time.perf_counter() + self.random.uniform(0, seconds)
        saves_to_pass = self.random.randrange(4)
        saving = False
        while process.poll() is None:
            now_saving = any(checkpoints.glob("*tmp*"))
            saves_to_pass -= now_saving and not saving
            saving = now_saving
            if saving and saves_to_pass < 0 if during_save else time.perf_counter() > deadline:
                break
            time.sleep(0.0005)
        if process.poll() is None:
            has_started = (self.folder / runs / NAME / "metrics.jsonl").exists()
            process.kill()
            process.wait()
            moment = "in a save" if saving else "in training" if has_started else "starting"
            self.killed[moment] += 1
            return True
        self.wait(process)  # exits unless it succeeded
        return False


def differences(one: Path, other: Path) -> list[str]:
    """Return the names of what differs between two finished runs."""
    import logging

    import jax
    import numpy as np
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from rope_jax.config.devices import MeshConfig
    from rope_jax.config.load import load
    from rope_jax.config.training import Config
    from rope_jax.data.tokenizer import ByteTokenizer
    from rope_jax.devices.mesh import Placement
    from rope_jax.model.decoder import LanguageModel
    from rope_jax.training.checkpoints import Checkpoints
    from rope_jax.training.optimizer import optimizer
    from rope_jax.training.step import fresh_state

    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it warns about every resumption

    def state(path: Path) -> list[np.ndarray]:
        config = load(Config, path / "config.yaml")
        model = LanguageModel(config.model, ByteTokenizer.vocab_size)
        abstract = jax.eval_shape(lambda: fresh_state(model, optimizer(config), 0))
        abstract = Placement(MeshConfig()).shard_state(abstract)
        checkpoints = Checkpoints(path / "checkpoints")
        restored = checkpoints.restore_newest(abstract, warn=sys.exit)
        checkpoints.close()
        return [np.asarray(leaf) for leaf in jax.tree.leaves(restored)]

    def curves(path: Path) -> dict[str, list[tuple[int, float]]]:
        events = EventAccumulator(str(path), size_guidance={"scalars": 0})
        events.Reload()
        tags = [tag for tag in events.Tags()["scalars"] if not tag.startswith("throughput")]
        return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in tags}

    pairs = list(zip(state(one), state(other), strict=True))
    return [
        name
        for name, same in {
            "the state": all(a.tobytes() == b.tobytes() for a, b in pairs),
            "metrics.jsonl": _bytes(one, "metrics.jsonl") == _bytes(other, "metrics.jsonl"),
            "TensorBoard's curves": curves(one) == curves(other),
        }.items()
        if not same
    ]


def _bytes(path: Path, name: str) -> bytes:
    return (path / name).read_bytes()


def sweep_rows(folder: Path) -> list[dict[str, str]]:
    """Read results.csv without its `seconds` column."""
    with (folder / "results.csv").open(newline="") as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


def kill_runs(bench: Bench, kills: int) -> int:
    """Kill training `kills` times; return the number of runs that finished despite it."""
    bench.wait(bench.train("whole"))
    seconds = bench.wait(bench.train("again"))  # this time with compiled programs cached
    if different := differences(bench.folder / "whole" / NAME, bench.folder / "again" / NAME):
        sys.exit(f"two uninterrupted runs differ in {', '.join(different)}")
    print(f"an uninterrupted run takes {seconds:.1f} s", flush=True)
    finished = 0
    while bench.killed.total() < kills:
        runs = f"runs{finished}"
        # Kill the run until it ends by itself or no kills are left; then let it finish.
        while bench.killed.total() < kills and bench.kill(bench.train(runs), runs, seconds):
            pass
        bench.wait(bench.train(runs))
        if different := differences(bench.folder / "whole" / NAME, bench.folder / runs / NAME):
            sys.exit(
                f"after {bench.killed.total()} kills, {runs} differs in {', '.join(different)}"
            )
        finished += 1
        print(f"{bench.killed.total()} kills, {finished} runs bit-identical", flush=True)
    return finished


def kill_sweeps(bench: Bench, kills: int) -> None:
    """Kill sweeps of the uninterrupted run; exit if their results change."""
    arguments = ("eval_ppl.py", f"whole/{NAME}", *SWEEP)
    evals = bench.folder / "whole" / NAME / "evals"
    seconds = bench.wait(bench.start(*arguments))
    expected = sweep_rows(evals / "swept")
    for _ in range(kills):
        process = bench.start(*arguments)
        time.sleep(bench.random.uniform(0, seconds))
        process.kill()
        process.wait()
        bench.killed["in a sweep"] += 1
        if sweep_rows(evals / "swept") != expected:
            sys.exit("a killed sweep damaged the results of the sweep before it")
    bench.wait(bench.start(*arguments))
    left = sorted(path.name for path in evals.iterdir() if not path.name.startswith("."))
    if sweep_rows(evals / "swept") != expected or left != ["swept"]:
        sys.exit(f"after {kills} kills, the sweep's results differ or other files remain: {left}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100, help="number of kills (default 100)")
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the random moments (default 0)"
    )
    arguments = parser.parse_args()
    sweep_kills = arguments.kills // 10
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), arguments.seed)
        finished = kill_runs(bench, arguments.kills - sweep_kills)
        if sweep_kills:
            kill_sweeps(bench, sweep_kills)
    where = ", ".join(f"{count} {place}" for place, count in sorted(bench.killed.items()))
    print(f"{bench.killed.total()} kills survived ({where}); {finished} runs, all bit-identical")


if __name__ == "__main__":
    main()
