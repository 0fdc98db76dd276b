"""How long a command takes to answer: --help, the first training step of the demo, an import.

    python benchmarks/start.py [--model MODEL]

The time from the start of the process until it ends (--help), or until it prints its first step:
with all our caches empty, with the corpus but no compiled programs, and with both. Prints the
median seconds of the rounds, each of which begins with empty caches in a temporary folder. One
round before them, which does not count, has Python compile what it imports.

--model: also import this checkpoint (a folder or a GGUF file), and sweep it twice: the time of the
import, and from the start of each sweep until it begins to measure. The
first sweep tokenizes the texts and compiles.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from workers import watch

ROOT = Path(__file__).parents[1]
COMMANDS = ("train", "sweep", "fit", "compare", "plan")
STEPS = ("log_every_steps=1", "stages.0.steps=1", "optim.warmup_steps=0")


def _environment() -> dict[str, str]:
    """Return this process's environment without what would keep Python or JAX from caching."""
    disabling = ("COMPILATION_CACHE", "PYTHONDONTWRITEBYTECODE")
    return {k: v for k, v in os.environ.items() if not any(name in k for name in disabling)}


def answer(command: str) -> float:
    """Return the seconds until a command has answered --help."""
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "rope_jax", command, "--help"],
        cwd=ROOT,
        env=_environment(),
        check=True,
        capture_output=True,
    )
    return time.perf_counter() - began


def first_step(cache: Path) -> float:
    """Return the seconds until train.py has printed the demo's first step."""
    with tempfile.TemporaryDirectory() as runs:
        command = [sys.executable, "train.py", "configs/demo.yaml", f"runs_dir={runs}", *STEPS]
        environment = _environment() | {"XDG_CACHE_HOME": str(cache), "PYTHONUNBUFFERED": "1"}
        began = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        seconds = None
        for line in process.stdout:
            if seconds is None and line.startswith("step 1/"):
                seconds = time.perf_counter() - began
        if process.wait() or seconds is None:
            raise SystemExit("train.py printed no first step")
    return seconds


def imported(model: str) -> list[float]:
    """Return the seconds of an import, and until a first and a second sweep measure something."""
    with tempfile.TemporaryDirectory() as folder:
        environment = _environment() | {"XDG_CACHE_HOME": f"{folder}/cache"}
        command = [sys.executable, "-m", "rope_jax", "import", model, f"runs_dir={folder}"]
        command.append("name=model")
        (seconds,) = watch(command, environment=environment)
        sweep = [sys.executable, "eval_ppl.py", f"{folder}/model", "scalings=[none]"]
        sweep += ["lengths=[2048]", "max_documents=1", "max_blocks=1", "--again"]
        begun = [watch(sweep, r"length 2,048", environment=environment)[0] for _ in range(2)]
    return [seconds, *begun]


def measure() -> list[float]:
    """Return the seconds of every command's --help, and of the three first steps."""
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        steps = [first_step(cache)]
        shutil.rmtree(cache / "rope_jax" / "compiled")
        steps += [first_step(cache), first_step(cache)]
    return [*map(answer, COMMANDS), *steps]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a checkpoint to import")
    parser.add_argument("--rounds", type=int, default=3, help="how often (default: 3)")
    arguments = parser.parse_args()
    measure()
    seconds = np.median([measure() for _ in range(arguments.rounds)], axis=0)
    steps = ("empty caches", "a corpus, but no programs", "a corpus and programs")
    names = [f"rope-jax {command} --help" for command in COMMANDS]
    names += [f"first step with {caches}" for caches in steps]
    print("| | s |")
    print("|---|---|")
    if arguments.model is not None:
        rounds = [imported(str(Path(arguments.model).resolve())) for _ in range(arguments.rounds)]
        seconds = np.concatenate([seconds, np.median(rounds, axis=0)])
        names += ["an import", "until a first sweep measures", "until a second sweep measures"]
    for name, found in zip(names, seconds, strict=True):
        print(f"| {name} | {found:.2f} |")


if __name__ == "__main__":
    main()
