"""Kill commands at random moments: what was trained or measured in the end is the same."""

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attacks.bench import NAME, Bench


def attack(bench: Bench, chance: random.Random, count: int) -> Iterator[tuple[str, str | None]]:
    """Kill training and sweeps; yield for each kill what was done and what went wrong."""
    for index in range(count):
        script = "eval_ppl.py" if index % 4 == 3 else "train.py"
        if script == "train.py" and index % 4 == 0:
            runs = f"killed{index}"
        moment = _kill(bench, chance, script, "whole" if script == "eval_ppl.py" else runs)
        problem = None
        if script == "eval_ppl.py" or index % 4 == 2 or index == count - 1:
            problem = check_end(bench, script, runs)
        yield f"{script} killed {moment}", problem


def check_end(bench: Bench, script: str, runs: str) -> str | None:
    """Let a disturbed command run to its end, and compare the result with the undisturbed one."""
    if script == "eval_ppl.py":
        return check_sweep(bench)
    outcome = bench.finish(bench.start(script, *bench.commands(runs)[script]))
    return outcome.problem(0) or different_runs(bench.whole, bench.folder / runs / NAME)


def check_sweep(bench: Bench) -> str | None:
    """Sweep the undisturbed run again to the end, and compare the results."""
    expected = bench.sweep_rows(bench.whole)
    outcome = bench.finish(bench.start("eval_ppl.py", *bench.commands("whole")["eval_ppl.py"]))
    if problem := outcome.problem(0):
        return problem
    left = [path.name for path in (bench.whole / "evals").iterdir() if path.name[0] != "."]
    if bench.sweep_rows(bench.whole) != expected or left != ["swept"]:
        return f"the sweep's results differ, or other files remain: {left}"
    return None


def different_runs(one: Path, other: Path) -> str | None:
    """Return in what two finished runs differ, bit by bit; None if in nothing."""
    pairs = list(zip(_state(one), _state(other), strict=True))
    same = {
        "the state": all(a.tobytes() == b.tobytes() for a, b in pairs),
        "metrics.jsonl": _bytes(one, "metrics.jsonl") == _bytes(other, "metrics.jsonl"),
        "TensorBoard's curves": _curves(one) == _curves(other),
    }
    different = [name for name, equal in same.items() if not equal]
    return f"the run differs in {', '.join(different)}" if different else None


def same_state(one: Path, other: Path) -> bool:
    """Whether two finished runs have the same parameters and optimizer state, bit by bit."""
    pairs = zip(_state(one), _state(other), strict=True)
    return all(a.tobytes() == b.tobytes() for a, b in pairs)


def _kill(bench: Bench, chance: random.Random, script: str, runs: str) -> str:
    """Start a command and kill it at a random moment, or in a save; return when that was."""
    checkpoints = bench.folder / runs / NAME / "checkpoints"
    in_save = script == "train.py" and chance.random() < 0.4
    saves_to_pass = chance.randrange(4)
    deadline = time.perf_counter() + chance.uniform(0, bench.seconds[script])
    saving = False
    process = bench.start(script, *bench.commands(runs)[script])
    while process.poll() is None:
        now_saving = any(checkpoints.glob("*tmp*"))
        saves_to_pass -= now_saving and not saving
        saving = now_saving
        if saving and saves_to_pass < 0 if in_save else time.perf_counter() > deadline:
            break
        time.sleep(0.0005)
    ended = process.poll() is not None
    process.kill()
    process.communicate()
    return "after its end" if ended else "in a save" if saving else "at a random moment"


def _state(path: Path) -> list[Any]:
    import jax
    import numpy as np

    from rope_jax.config.devices import MeshConfig
    from rope_jax.config.load import load
    from rope_jax.config.training import Config
    from rope_jax.devices.mesh import Placement
    from rope_jax.errors import UserError
    from rope_jax.model.decoder import language_model
    from rope_jax.model.resolve import resolve_run
    from rope_jax.runs.directory import RunDirectory
    from rope_jax.training.checkpoints import Checkpoints
    from rope_jax.training.optimizer import optimizer
    from rope_jax.training.step import fresh_state

    def refuse(warning: str) -> None:
        raise UserError(warning)

    config = load(Config, path / "config.yaml")
    tokenizer = RunDirectory(path).open_tokenizer(config)
    model = language_model(resolve_run(config), tokenizer.vocab_size)
    abstract = jax.eval_shape(lambda: fresh_state(model, optimizer(config), 0))
    abstract = Placement(MeshConfig()).shard_state(abstract)
    checkpoints = Checkpoints(path / "checkpoints")
    restored = checkpoints.restore_newest(abstract, warn=refuse)
    checkpoints.close()
    return [np.asarray(leaf) for leaf in jax.tree.leaves(restored)]


def _curves(path: Path) -> dict[str, list[tuple[int, float]]]:
    import logging

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it warns about every resumption
    events = EventAccumulator(str(path), size_guidance={"scalars": 0})
    events.Reload()
    tags = [tag for tag in events.Tags()["scalars"] if not tag.startswith("throughput")]
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in tags}


def _bytes(path: Path, name: str) -> bytes:
    return (path / name).read_bytes()
