"""A scratch folder with a small trained run, and commands on it in processes of their own.

A command runs in a fork of this process, which has imported everything but has started no part of
JAX: it begins at once.
"""

import csv
import ctypes
import fcntl
import hashlib
import importlib
import logging
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
CONFIG = """
name: run
log_every_steps: 1
model: {hidden_size: 32, intermediate_size: 48, num_hidden_layers: 1, num_attention_heads: 2,
        attention: xla}
optim: {warmup_steps: 5}
stages:
  - {steps: 10, seq_len: 32, batch_size: 4}
  - {steps: 10, seq_len: 64, batch_size: 2, scaling: {type: pi, factor: 2}}
validation: {every_steps: 5, batches: 2}
checkpoint: {every_steps: 4, keep: 2}
data: {type: text, files: [texts/*.txt], validation_fraction: 0.2, test_fraction: 0.4,
       cache_dir: cache}
"""
LAST_STEP = "20"
TRAIN, SWEEP, COMPARE, SHOW = "train", "sweep", "compare", "show"
# The arguments of each command, on the run below "copy".
COMMANDS = {
    TRAIN: ["run.yaml", "runs_dir=copy"],
    SWEEP: ["copy/run", "name=swept", "lengths=[16,64,128]", "resamples=200",
            "scalings=[trained,none]"],
    COMPARE: ["copy/run", "output=copy/compared", "resamples=200"],
    SHOW: ["output=copy/scaling.png", "length=512"],
}  # fmt: skip
# Longer than the 5 seconds after which a signal ends a process, and than a slow machine's delays.
PATIENCE = 120
_MOST_OUTPUT = 2**20  # bytes that a pipe holds: nobody need read while a command runs
# What the commands import, some of it only when they need it.
_IMPORTED = (
    *("commands.main", "training.run", "sweeps.run"),
    *("report.comparison", "inspection.curves"),
)


class Outcome(NamedTuple):
    """How a command ended. status None: it did not end in time and was killed."""

    status: int | None
    out: str
    err: str

    def problem(self, *statuses: int) -> str | None:
        """Return what is wrong with the way it ended; None if nothing. statuses: right ones."""
        said = (self.out + self.err).strip()
        if self.status is None:
            return f"no end within {PATIENCE} s"
        if "Traceback" in said:
            return "a traceback: " + said.splitlines()[-1][:200]
        if self.status not in statuses:
            return f"status {self.status}: {said[-300:]}"
        if self.err.count("\n") != bool(self.status):
            return f"status {self.status}, and on stderr {self.err[:300]!r}"
        return None


class Command:
    """A process that calls run() with pipes as its standard output and error."""

    def __init__(self, run: Callable[[], None]) -> None:
        self._readable, writable = zip(os.pipe(), os.pipe(), strict=True)
        for number in self._readable:
            fcntl.fcntl(number, fcntl.F_SETPIPE_SZ, _MOST_OUTPUT)
            os.set_blocking(number, False)

        def piped() -> None:
            for target, number in enumerate(writable, 1):
                os.dup2(number, target)
            run()

        self._process = multiprocessing.get_context("fork").Process(target=piped)
        self._process.start()
        for number in writable:
            os.close(number)

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    def hears_signals(self) -> bool:
        """Whether the process has handlers of Ctrl-C and SIGTERM yet, or has ended."""
        status = Path(f"/proc/{self._process.pid}/status").read_text() if self.is_alive else ""
        caught = int(status.partition("SigCgt:")[2].split()[0], 16) if "SigCgt" in status else -1
        return all(caught >> (number - 1) & 1 for number in (signal.SIGINT, signal.SIGTERM))

    def send(self, number: int) -> None:
        if self.is_alive:
            os.kill(self._process.pid or 0, number)

    def end(self) -> Outcome:
        """Wait for the process and return how it ended."""
        self._process.join(PATIENCE)
        status = self._process.exitcode
        self.send(signal.SIGKILL)
        self._process.join()
        said = []
        for number in self._readable:
            try:
                said.append(os.read(number, _MOST_OUTPUT).decode(errors="replace"))
            except BlockingIOError:  # nothing was written, and a process that it began still runs
                said.append("")
            os.close(number)
        return Outcome(status, *said)


class Bench:
    """A folder in which commands run, on a copy of an undisturbed run.

    run: the copied run. cache: the tokens of its texts. seconds: how long each command takes when
    nothing disturbs it and no program is compiled yet.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        """Train, sweep and compare without any disturbance; exit if that fails."""
        self.folder, self.cache, self.run = folder, folder / "cache", folder / "copy" / "run"
        (folder / "run.yaml").write_text(CONFIG)
        (folder / "texts").mkdir()
        words = random.Random(seed)
        for index in range(12):
            text = words.choices(["rope ", "turns ", "slow ", "fast ", "pair\n"], k=150)
            (folder / "texts" / f"{index}.txt").write_text("".join(text))
        self._import_commands()
        self.seconds: dict[str, float] = {}
        for script in COMMANDS:
            start = time.perf_counter()
            if problem := self.start(script).end().problem(0):
                sys.exit(f"{script} fails without any attack: {problem}")
            self.seconds[script] = time.perf_counter() - start
        for name in ("copy", "cache"):
            shutil.copytree(folder / name, folder / "whole" / name)
        self._results = {script: self._result(script) for script in COMMANDS}

    def _import_commands(self) -> None:
        home = self.folder / "home"
        os.environ |= {
            "JAX_PLATFORMS": "cpu",
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "OPENBLAS_NUM_THREADS": "1",  # a process with threads cannot be forked safely
            "XDG_CACHE_HOME": str(home),
            "HOME": str(home),
            "MPLCONFIGDIR": str(home / "matplotlib"),
        }
        for name in ("JAX_COMPILATION_CACHE_DIR", "COLUMNS"):
            os.environ.pop(name, None)
        sys.path.insert(0, str(ROOT))
        from rope_jax.user_cache import keep_compiled_programs

        keep_compiled_programs()
        for name in _IMPORTED:
            importlib.import_module(f"rope_jax.{name}")

    def copy(self) -> Path:
        """Copy the undisturbed run and its tokens anew; return the run's folder."""
        for name in ("copy", "cache"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
            shutil.copytree(self.folder / "whole" / name, self.folder / name, symlinks=True)
        return self.run

    def start(
        self,
        script: str,
        words: Sequence[str] | None = None,
        *,
        fresh: bool = False,
        compiles: bool = False,
        file_bytes: int | None = None,
        heeds_permissions: bool = False,
    ) -> Command:
        """Start a command, by default with its words in `COMMANDS`.

        fresh: start Python anew, as a shell would. compiles: without the cache of programs.
        file_bytes: how large a file may become, as if the disk were then full.
        heeds_permissions: also if this is root's process.
        """
        words = COMMANDS[script] if words is None else words

        def run() -> None:
            os.chdir(self.folder)
            if file_bytes is not None:
                _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
                resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, hard))
            if heeds_permissions:
                _heed_permissions()
            if fresh:
                del os.environ["JAX_COMPILATION_CACHE_DIR"]  # it finds the same by itself
                os.environ["JAX_ENABLE_COMPILATION_CACHE"] = str(not compiles)
                os.environ["PYTHONPATH"] = str(ROOT)
                os.execv(sys.executable, [sys.executable, "-m", "rope_jax", script, *words])
            import jax

            from rope_jax.commands import main

            jax.config.update("jax_enable_compilation_cache", not compiles)
            sys.argv = ["rope-jax", script, *words]
            main.run()

        return Command(run)

    def difference(self, script: str, *, logs: bool = False) -> str | None:
        """Return in what a command's results differ from the undisturbed ones; None if in nothing.

        logs: compare all that training logs, too.
        """
        pairs = zip(self._result(script), self._results[script], strict=True)
        same, same_logs = (now == before for now, before in pairs)
        if same and (same_logs or not logs):
            return None
        return f"{'what is logged' if same else 'the result'} of {script} differs without a word"

    def _result(self, script: str) -> tuple[Any, Any]:
        """Return a command's result in the copied run, and what it has logged."""
        if script == TRAIN:
            return Command(lambda: _print_state_hash(self.run)).end().out, _logs(self.run)
        if script == SWEEP:
            return _rows(self.run / "evals/swept/results.csv", "seconds"), None
        if script == COMPARE:
            return _rows(self.run.parent / "compared/comparison.csv", "run"), None
        return None, None


def _print_state_hash(run: Path) -> None:
    """Print a hash of the newest checkpoint's parameters and optimizer state."""
    import jax
    import numpy as np

    from rope_jax.config.load import load
    from rope_jax.config.training import TrainingConfig
    from rope_jax.devices.mesh import Placement
    from rope_jax.model.resolve import resolve_run
    from rope_jax.training.checkpoints import Checkpoints
    from rope_jax.training.program import Program

    config = load(TrainingConfig, run / "config.yaml")
    like = Program(resolve_run(config), 257, Placement(config.mesh)).abstract_state
    step, state = Checkpoints(run / "checkpoints").restore_newest(like, sys.exit)
    leaves = (np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state))
    print(step, hashlib.sha256(b"".join(leaves)).hexdigest(), flush=True)


def _logs(run: Path) -> list[Any]:
    """Return metrics.jsonl and TensorBoard's curves, without speeds."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it warns about every resumption
    events = EventAccumulator(str(run), size_guidance={"scalars": 0})
    events.Reload()
    tags = [tag for tag in events.Tags()["scalars"] if not tag.startswith("throughput")]
    curves = {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in tags}
    return [(run / "metrics.jsonl").read_bytes(), curves]


def _rows(path: Path, without: str) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return [{k: v for k, v in row.items() if k != without} for row in csv.DictReader(file)]


def _heed_permissions() -> None:
    """Give up root's right to read and write any file: capset(2), for this process alone."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    failed = libc.capget(header, sets)
    sets[0] &= ~0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    if failed or libc.capset(header, sets):
        raise OSError(ctypes.get_errno(), "root cannot give up its permissions")
