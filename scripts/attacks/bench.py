"""A scratch folder with a small trained run, the commands to attack, and what they should give."""

import csv
import json
import os
import random
import select
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAME = "run"
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
SWEEP = ("name=swept", "lengths=[16,64,128]", "scalings=[trained,none]", "resamples=200")
# Longer than the 5 seconds after which a signal ends a process, and than a slow machine's delays.
PATIENCE = 120


@dataclass(frozen=True)
class Outcome:
    """How a command ended. status None: it did not end in time and was killed."""

    status: int | None
    out: str
    err: str

    @property
    def said(self) -> str:
        """Everything printed."""
        return self.out + self.err

    def problem(self, *statuses: int) -> str | None:
        """Return what is wrong with the way it ended; None if nothing is.

        statuses: those that are right.
        """
        if self.status is None:
            return f"no end within {PATIENCE} s"
        if "Traceback" in self.said:
            return "a traceback: " + self.said.strip().splitlines()[-1][:200]
        if self.status not in statuses:
            return f"status {self.status}: {self.said.strip()[-300:]}"
        if self.status and self.err.count("\n") != 1:
            return f"not one line on stderr: {self.err[:300]!r}"
        if not self.status and self.err:
            return f"something on stderr: {self.err[:300]!r}"
        return None


class Bench:
    """A folder in which commands run. `whole` holds a run and a sweep that nothing disturbed."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.whole = folder / "whole" / NAME
        (folder / "run.yaml").write_text(CONFIG)
        (folder / "texts").mkdir()
        words = random.Random(seed)
        for index in range(12):
            text = words.choices(["rope ", "turns ", "slow ", "fast ", "pair\n"], k=150)
            (folder / "texts" / f"{index}.txt").write_text("".join(text))
        self.environment = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "XDG_CACHE_HOME": str(folder / "home"),
            "HOME": str(folder / "home"),
            "MPLCONFIGDIR": str(folder / "home" / "matplotlib"),
        }
        for name in ("JAX_COMPILATION_CACHE_DIR", "COLUMNS"):
            self.environment.pop(name, None)
        self.seconds: dict[str, float] = {}
        """How long each command takes when nothing disturbs it, by script."""

    def prepare(self) -> None:
        """Train, sweep and compare without any disturbance, twice; exit if anything differs."""
        for attempt in ("whole", "again"):
            for script, words in self.commands(attempt).items():
                start = time.perf_counter()
                outcome = self.finish(self.start(script, *words))
                self.seconds[script] = time.perf_counter() - start
                if problem := outcome.problem(0):
                    sys.exit(f"{script} fails without any attack: {problem}")
        for name, one, other in (
            ("sweep", self.sweep_rows(self.whole), self.sweep_rows(self.folder / "again" / NAME)),
            ("metrics", *((self.folder / a / NAME / "metrics.jsonl").read_bytes()
                          for a in ("whole", "again"))),
        ):  # fmt: skip
            if one != other:
                sys.exit(f"two undisturbed runs differ in their {name}")
        shutil.rmtree(self.folder / "again")

    def commands(self, runs: str) -> dict[str, tuple[str, ...]]:
        """Return the arguments of every command, by script, for a run below the folder `runs`."""
        return {
            "train.py": ("run.yaml", f"runs_dir={runs}"),
            "eval_ppl.py": (f"{runs}/{NAME}", *SWEEP),
            "scripts/compare.py": (f"{runs}/{NAME}", f"output={runs}/compared", "resamples=200"),
            "scripts/show_scaling.py": (f"output={runs}/scaling.png", "length=512"),
        }

    def copy(self, name: str) -> Path:
        """Return a fresh copy of the undisturbed run, in folder/<name>/."""
        shutil.rmtree(self.folder / name, ignore_errors=True)
        return Path(shutil.copytree(self.whole.parent, self.folder / name, symlinks=True)) / NAME

    def start(self, script: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """Start a command. variables: set in its environment."""
        return subprocess.Popen(
            [sys.executable, str(ROOT / script), *arguments],
            cwd=self.folder,
            env=self.environment | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )

    def finish(self, process: subprocess.Popen[str]) -> Outcome:
        """Wait for a command and return how it ended."""
        try:
            out, err = process.communicate(timeout=PATIENCE)
            return Outcome(process.returncode, out, err)
        except subprocess.TimeoutExpired:
            process.kill()
            return Outcome(None, *process.communicate())

    def sweep_rows(self, run: Path) -> list[dict[str, str]]:
        """Return the rows of the sweep's results.csv without the seconds that they took."""
        return _rows(run / "evals" / "swept" / "results.csv", without="seconds")

    def comparison_rows(self, runs: Path) -> list[dict[str, str]]:
        """Return the rows of comparison.csv."""
        return _rows(runs / "compared" / "comparison.csv", without="run")


class Worker:
    """A process that runs commands one after the other, so that each need not import JAX."""

    def __init__(self, bench: Bench, *options: str) -> None:
        """options: of worker.py."""
        self._bench, self._options = bench, options
        self._process: subprocess.Popen[str] | None = None

    def run(self, script: str, *arguments: str, file_bytes: int | None = None) -> Outcome:
        """Run a command. file_bytes: how large a file may become, as if the disk were then full."""
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        request = {"script": script, "arguments": arguments, "file_bytes": file_bytes}
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        answer = ""
        if select.select([process.stdout], [], [], PATIENCE)[0]:
            answer = process.stdout.readline()
        if not answer:
            process.kill()
            self._process = None
            status = process.wait()
            return Outcome(None if status == -9 else status, "", "the process died\n")
        return Outcome(**json.loads(answer))

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("worker.py")), *self._options],
            cwd=self._bench.folder,
            env=self._bench.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )


def _rows(path: Path, without: str) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return [{k: v for k, v in row.items() if k != without} for row in csv.DictReader(file)]
