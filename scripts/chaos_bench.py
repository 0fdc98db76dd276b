"""A scratch folder with a small trained run, and commands on it in processes of their own.

A command runs in a fork of this process, which has imported everything but has started no part of
JAX: it begins at once.
"""

import csv
import ctypes
import fcntl
import hashlib
import importlib
import io
import logging
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
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
data:
  type: text
  files: [texts/*.txt]
  validation_fraction: 0.2
  test_fraction: 0.4
  cache_dir: cache
"""
LAST_STEP = "20"
SCRIPTS = ("train.py", "eval_ppl.py", "scripts/compare.py", "scripts/show_scaling.py")
# Longer than the 5 seconds after which a signal ends a process, and than a slow machine's delays.
PATIENCE = 120
_MOST_OUTPUT = 2**20  # bytes that a pipe holds: nobody need read while a command runs
# What the commands import, some of it only when they need it.
_IMPORTED = ("training.run", "sweeps.run", "report.comparison", "inspection.curves")


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
    """A process that calls run(outputs); outputs: its standard output and error."""

    def __init__(self, run: Callable[[list[int]], None]) -> None:
        self._readable, writable = map(list, zip(os.pipe(), os.pipe(), strict=True))
        for number in self._readable:
            fcntl.fcntl(number, fcntl.F_SETPIPE_SZ, _MOST_OUTPUT)
            os.set_blocking(number, False)
        forking = multiprocessing.get_context("fork")
        self._process = forking.Process(target=run, args=(writable,))
        self._process.start()
        for number in writable:
            os.close(number)

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    def hears(self, *signals: int) -> bool:
        """Whether the process has handlers of these signals yet."""
        try:
            text = Path(f"/proc/{self._process.pid}/status").read_text()
        except OSError:
            return False
        caught = int(text.partition("SigCgt:")[2].split()[0], 16)
        return all(caught >> (number - 1) & 1 for number in signals)

    def send(self, number: int) -> None:
        if self.is_alive:
            os.kill(self._process.pid or 0, number)

    def end(self) -> Outcome:
        """Wait for the process and return how it ended."""
        self._process.join(PATIENCE)
        status = self._process.exitcode
        self.send(signal.SIGKILL)
        self._process.join()
        return Outcome(status, *map(_rest_of, self._readable))


def _rest_of(readable: int) -> str:
    try:
        return os.read(readable, _MOST_OUTPUT).decode(errors="replace")
    except BlockingIOError:  # nothing was written, and a process outlives the one that it began in
        return ""
    finally:
        os.close(readable)


class Bench:
    """A folder in which commands run: on the run below "copy", of the undisturbed one in "whole".

    run_folder: the copied run. cache: tokens of its texts.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        """Train, sweep and compare without any disturbance, twice; exit if anything differs."""
        self.folder, self.cache = folder, folder / "cache"
        self.run_folder, self._whole = folder / "copy" / "run", folder / "whole" / "run"
        (folder / "run.yaml").write_text(CONFIG)
        (folder / "texts").mkdir()
        words = random.Random(seed)
        for index in range(12):
            text = words.choices(["rope ", "turns ", "slow ", "fast ", "pair\n"], k=150)
            (folder / "texts" / f"{index}.txt").write_text("".join(text))
        self._import_commands()
        self.seconds: dict[str, float] = {}
        """How long each command takes when nothing disturbs it."""
        for runs in ("whole", "copy"):
            for script in SCRIPTS:
                start = time.perf_counter()
                if problem := self.start_with(script, self.words(script, runs)).end().problem(0):
                    sys.exit(f"{script} fails without any attack: {problem}")
                self.seconds[script] = time.perf_counter() - start
        shutil.copytree(self.cache, folder / "intact cache")
        self._state = self._state_hash(self._whole)
        for script in SCRIPTS:
            if problem := self.difference(script, logs=True):
                sys.exit(f"two undisturbed runs differ: {problem}")

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
        modules = {script: script.removesuffix(".py").replace("/", ".") for script in SCRIPTS}
        self._mains = {name: importlib.import_module(of).main for name, of in modules.items()}
        self._warm_up()

    def _warm_up(self) -> None:
        """Have pydantic build its validators and Matplotlib read its fonts, once for all forks."""
        from matplotlib.figure import Figure

        from rope_jax.config.inherit import load_training
        from rope_jax.config.sweep import SweepConfig

        load_training(self.folder / "run.yaml")
        SweepConfig()
        figure = Figure()
        figure.subplots().plot([0, 1], label="a")
        figure.savefig(io.BytesIO())

    def words(self, script: str, runs: str = "copy") -> list[str]:
        """Return the arguments of a command, for the run below a folder."""
        return {
            "train.py": ["run.yaml", f"runs_dir={runs}"],
            "eval_ppl.py": [f"{runs}/run", "name=swept", "lengths=[16,64,128]", "resamples=200",
                            "scalings=[trained,none]"],
            "scripts/compare.py": [f"{runs}/run", f"output={runs}/compared", "resamples=200"],
            "scripts/show_scaling.py": [f"output={runs}/scaling.png", "length=512"],
        }[script]  # fmt: skip

    def copy(self) -> Path:
        """Copy the undisturbed run and its tokens anew; return the run's folder."""
        for source, folder in (("whole", self.run_folder.parent), ("intact cache", self.cache)):
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(self.folder / source, folder, symlinks=True)
        return self.run_folder

    def start(self, script: str, **how: Any) -> Command:
        return self.start_with(script, self.words(script), **how)

    def run(self, script: str, **how: Any) -> Outcome:
        return self.start(script, **how).end()

    def start_with(
        self,
        script: str,
        words: list[str],
        *,
        fresh: bool = False,
        compiles: bool = False,
        file_bytes: int | None = None,
        heeds_permissions: bool = False,
    ) -> Command:
        """Start a command.

        fresh: start Python anew, as a shell would. compiles: without the cache of programs.
        file_bytes: how large a file may become, as if the disk were then full.
        heeds_permissions: also if this is root's process.
        """

        def run(outputs: list[int]) -> None:
            os.chdir(self.folder)
            for target, number in enumerate(outputs, 1):
                os.dup2(number, target)
            if file_bytes is not None:
                _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
                resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, hard))
            if heeds_permissions:
                _heed_permissions()
            if fresh:
                del os.environ["JAX_COMPILATION_CACHE_DIR"]  # it finds the same by itself
                os.environ["JAX_ENABLE_COMPILATION_CACHE"] = str(not compiles)
                os.execv(sys.executable, [sys.executable, str(ROOT / script), *words])
            import jax

            from rope_jax import cli

            jax.config.update("jax_enable_compilation_cache", not compiles)
            sys.argv = [script, *words]
            cli.run(self._mains[script])

        return Command(run)

    def difference(self, script: str, *, logs: bool = False) -> str | None:
        """Return in what a command's results differ from the undisturbed ones; None if in nothing.

        logs: compare all that training logs, too.
        """
        whole, run = self._whole, self.run_folder
        if script == "train.py":
            if self._state_hash(run) != self._state:
                return "the trained state differs"
            return "what training logged differs" if logs and _logs(run) != _logs(whole) else None
        files = {
            "eval_ppl.py": ("evals/swept/results.csv", "seconds"),
            "scripts/compare.py": ("../compared/comparison.csv", "run"),
        }
        if script not in files:
            return None
        name, without = files[script]
        same = _rows(run / name, without) == _rows(whole / name, without)
        return None if same else f"{Path(name).name} differs without a word"

    def _state_hash(self, run: Path) -> str:
        """Return a hash of the newest checkpoint's parameters and optimizer state."""
        return Command(lambda outputs: _print_state_hash(run, outputs[0])).end().out


def _print_state_hash(run: Path, output: int) -> None:
    import jax
    import numpy as np

    from rope_jax.config.load import load
    from rope_jax.config.training import Config
    from rope_jax.devices.mesh import Placement
    from rope_jax.model.resolve import resolve_run
    from rope_jax.training.checkpoints import Checkpoints
    from rope_jax.training.program import Program

    config = load(Config, run / "config.yaml")
    like = Program(resolve_run(config), 257, Placement(config.mesh)).abstract_state
    step, state = Checkpoints(run / "checkpoints").restore_newest(like, sys.exit)
    leaves = (np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state))
    os.write(output, f"{step} {hashlib.sha256(b''.join(leaves)).hexdigest()}".encode())


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
