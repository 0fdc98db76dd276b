"""Ctrl-C and SIGTERM at random moments: one line, within seconds, and nothing is lost."""

import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from attacks.bench import Bench, Outcome
from attacks.kills import check_end

# The grace of rope_jax.stopping, and what a busy machine may add to it.
SECONDS = 5 + 5
# phase: (script, variables)
PHASES = {
    "training": ("train.py", {}),
    "reading the corpus": ("train.py", {}),
    "compiling": ("train.py", {"JAX_ENABLE_COMPILATION_CACHE": "false"}),
    "sweeping": ("eval_ppl.py", {}),
    "compiling a sweep": ("eval_ppl.py", {"JAX_ENABLE_COMPILATION_CACHE": "false"}),
    "comparing": ("scripts/compare.py", {}),
    "drawing": ("scripts/show_scaling.py", {}),
}


def attack(bench: Bench, chance: random.Random, count: int) -> Iterator[tuple[str, str | None]]:
    """Signal each kind of command in turn; yield what was done and what went wrong."""
    runs = "signalled0"
    for index in range(count):
        phase = list(PHASES)[index % len(PHASES)]
        script, variables = PHASES[phase]
        if script == "train.py":
            if phase == "training" and index % 2:  # every other time it is resumed
                runs = f"signalled{index}"
            if phase == "reading the corpus":
                shutil.rmtree(bench.folder / "cache", ignore_errors=True)
        where = runs if script == "train.py" else "whole"
        process = bench.start(script, *bench.commands(where)[script], **variables)
        number = chance.choice((signal.SIGINT, signal.SIGTERM))
        longest = bench.seconds[script] * (2 if variables else 1)
        outcome, seconds = _signal(bench, process, number, chance.uniform(0, longest))
        problem = _problem(outcome, number, seconds)
        last = index + len(PHASES) >= count
        if problem is None and (phase == "compiling" or last) and script != "scripts/compare.py":
            problem = None if "show" in script else check_end(bench, script, where)
        yield f"{number.name} while {phase}", problem


def _signal(
    bench: Bench, process: subprocess.Popen[str], number: int, delay: float
) -> tuple[Outcome, float]:
    """Signal a process that listens; return how it ended and the seconds from signal to end."""
    while not _listens(process.pid, number):
        if process.poll() is not None:
            sys.exit("a command ended without listening to signals")
        time.sleep(0.001)
    deadline = time.perf_counter() + delay
    while process.poll() is None and time.perf_counter() < deadline:
        time.sleep(0.001)
    start = time.perf_counter()
    process.send_signal(number)
    return bench.finish(process), time.perf_counter() - start


def _listens(pid: int, number: int) -> bool:
    """Whether a process has a handler; until then, the interpreter itself is starting."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = next(line for line in text.splitlines() if line.startswith("SigCgt"))
    both = (1 << (signal.SIGINT - 1)) | (1 << (signal.SIGTERM - 1))
    return int(caught.split()[1], 16) & both == both


def _problem(outcome: Outcome, number: int, seconds: float) -> str | None:
    if seconds > SECONDS:
        return f"ended only {seconds:.1f} s after the signal, with status {outcome.status}"
    if outcome.status == -number and not outcome.err:  # it had ended, but for the interpreter
        return None
    return outcome.problem(0, 128 + number)
