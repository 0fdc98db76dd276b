"""Attack training and sweeps; nothing may be lost, hang, or be wrong without a word.

    python scripts/chaos.py                          # 100 cases, about 20 minutes
    python scripts/chaos.py --cases 40 --seed 7
    python scripts/chaos.py --only kills signals

A tiny run is trained and swept without any disturbance. Then, by category:

kills      SIGKILL at a random moment. The run or sweep that ends despite it is the same as the
           undisturbed one, bit by bit.
signals    Ctrl-C or SIGTERM at a random moment. The command ends within seconds, in one line.
damage     A file is cut, changed, zeroed, deleted or replaced by a folder. The command refuses it
           in one line, or gives the same figures.
full disk  No file can grow past a random size. One line; once there is space, the same figures.

Ends with status 1 if any case failed. The same seed gives the same attacks, at moments that depend
on the machine. (For configs and overrides: FUZZ_EXAMPLES=1000 pytest tests/test_bad_input.py.)
"""

import argparse
import csv
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

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
TRAIN, SWEEP = "train", "sweep"
# The arguments of each command, on the run below "copy".
COMMANDS = {
    TRAIN: ["run.yaml", "runs_dir=copy"],
    SWEEP: ["copy/run", "name=swept", "lengths=[16,64,128]", "resamples=200",
            "scalings=[trained,none]"],
}  # fmt: skip
# Seconds: the grace of rope_jax.stopping with what a busy machine may add to it, and until a
# command counts as hanging.
SIGNAL_SECONDS, PATIENCE = 5 + 5, 120


class Outcome(NamedTuple):
    """How a command ended, in so many seconds (since its signal, if it got one).

    status None: it did not end in time and was killed.
    """

    status: int | None
    out: str
    err: str
    seconds: float

    def problem(self, *statuses: int) -> str | None:
        """Return what is wrong with the way it ended, or None. statuses: right ones."""
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


class Bench:
    """A folder in which commands run, on a copy of an undisturbed run.

    run: the copied run. seconds: how long each command takes when nothing disturbs it.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        """Train and sweep without any disturbance; exit if that fails."""
        self.folder, self.run = folder, folder / "copy" / "run"
        (folder / "run.yaml").write_text(CONFIG)
        (folder / "texts").mkdir()
        words = random.Random(seed)
        for index in range(12):
            text = words.choices(["rope ", "turns ", "slow ", "fast ", "pair\n"], k=150)
            (folder / "texts" / f"{index}.txt").write_text("".join(text))
        home = str(folder / "home")
        variables = {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "MPLCONFIGDIR": home}
        self.variables = os.environ | variables | {"XDG_CACHE_HOME": home}
        # a cache outside the folder would hide what a full disk does to the one in it
        self.variables.pop("JAX_COMPILATION_CACHE_DIR", None)
        self.seconds: dict[str, float] = {}
        for name in COMMANDS:
            outcome = self.execute(name)
            if problem := outcome.problem(0):
                sys.exit(f"{name} fails without any attack: {problem}")
            self.seconds[name] = outcome.seconds
        for name in ("copy", "cache"):
            shutil.copytree(folder / name, folder / "whole" / name)
        self._results = {name: self._result(name) for name in COMMANDS}

    def copy(self, *deleted: str) -> None:
        """Copy the undisturbed run and its tokens anew, without some of the run's folders."""
        for name in ("copy", "cache"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
            shutil.copytree(self.folder / "whole" / name, self.folder / name)
        for name in deleted:
            shutil.rmtree(self.run / name)

    def execute(
        self, name: str, *, file_bytes: int | None = None, number: int = 0, after: float = 0
    ) -> Outcome:
        """Run a command and return how it ended.

        file_bytes: how large a file may become, as if the disk were full.
        number: a signal that it gets after so many seconds; 0: none.
        """

        def limit() -> None:
            if file_bytes is not None:
                _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
                resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, hard))

        process = subprocess.Popen(
            [sys.executable, "-m", "rope_jax", name, *COMMANDS[name]],
            cwd=self.folder,
            env=self.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=limit,
        )
        if number:
            time.sleep(after)
            process.send_signal(number)
        began = time.perf_counter()
        try:
            out, err = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            return Outcome(None, *process.communicate(), PATIENCE)
        return Outcome(process.returncode, out, err, time.perf_counter() - began)

    def leave_work(self, name: str, chance: random.Random) -> None:
        """Copy the undisturbed run without what the command then has to make again."""
        deleted = {TRAIN: chance.choice((f"checkpoints/{LAST_STEP}", "")), SWEEP: "evals"}
        self.copy(deleted[name])

    def again(self, name: str) -> str | None:
        """Run a command to its end, with nothing that disturbs it; return what is wrong then."""
        problem = self.execute(name).problem(0) or self.difference(name)
        return problem and f"once nothing disturbs it: {problem}"

    def difference(self, name: str) -> str | None:
        """Say that a command's results differ from the undisturbed ones, or return None."""
        if self._result(name) == self._results[name]:
            return None
        return f"the result of {name} differs without a word"

    def _result(self, name: str) -> object:
        if name == TRAIN:
            # the record of a checkpoint has a fingerprint of each of its arrays
            record = self.run / "checkpoints" / LAST_STEP / "fingerprint" / "metadata"
            return record.read_bytes(), (self.run / "metrics.jsonl").read_bytes()
        with (self.run / "evals/swept/results.csv").open(newline="") as file:
            return [row | {"seconds": ""} for row in csv.DictReader(file)]


Case = tuple[str, str | None]
"""What was done, and what went wrong, or None."""


def kill(bench: Bench, chance: random.Random) -> Case:
    """Kill a command at random moments, and run it to its end."""
    name = chance.choice((TRAIN, TRAIN, SWEEP))
    bench.leave_work(name, chance)
    for _ in range(chance.choice((1, 1, 3))):
        bench.execute(name, number=signal.SIGKILL, after=chance.uniform(0, bench.seconds[name]))
    return f"{name} killed", bench.again(name)


def send_signal(bench: Bench, chance: random.Random) -> Case:
    """Signal a command at a random moment."""
    name, number = chance.choice([*COMMANDS]), chance.choice((signal.SIGINT, signal.SIGTERM))
    bench.leave_work(name, chance)
    # before it listens, the signal ends the interpreter
    after = chance.uniform(min(1, bench.seconds[name] / 2), bench.seconds[name])
    outcome = bench.execute(name, number=number, after=after)
    problem = outcome.problem(0, 128 + number)
    if outcome.seconds > SIGNAL_SECONDS:
        problem = f"ended only {outcome.seconds:.1f} s after the signal, status {outcome.status}"
    elif outcome.status == -number and not outcome.err:  # only the interpreter was left
        problem = None
    return f"{number.name} to {name}", problem or bench.again(name)


# A command, what is deleted of the run so that there is work, and the files to damage.
DAMAGED = (
    (TRAIN, (f"checkpoints/{LAST_STEP}",), "copy/run/**/*"),
    *[(name, (), "copy/run/**/*") for name in COMMANDS],
)


def damage(bench: Bench, chance: random.Random) -> Case:
    """Damage one file that a command reads: it says so, or gives the same figures as without."""
    name, deleted, where = chance.choice(DAMAGED)
    bench.copy(*deleted)
    paths = [path for path in bench.folder.glob(where) if path.is_file()]
    unchecked = (".lock", ".journal")
    read = [x for x in paths if not x.name.endswith(unchecked) and "tfevents" not in x.name]
    path = chance.choice(sorted(read))
    what = f"{name} after {_damage(path, chance)} {path.relative_to(bench.folder)}"
    outcome = bench.execute(name)
    problem = outcome.problem(0, 2)
    if problem is None and outcome.status == 0:
        # a sweep goes back to the checkpoint before a damaged one, and says so
        warned = name == SWEEP and "using step" in outcome.out
        problem = None if warned else bench.difference(name)
    return what, problem


def _damage(path: Path, chance: random.Random) -> str:
    """Damage a file in one of several ways; return which."""
    content = path.read_bytes() or b"x"
    at = chance.randrange(len(content))
    flipped = content[at] ^ 1 << chance.randrange(8)
    ways = {
        "cutting": content[:at],
        "flipping a bit of": content[:at] + bytes([flipped]) + content[at + 1 :],
        "zeroing": bytes(len(content)),
        "appending to": content + chance.randbytes(20),
    }
    way = chance.choice([*ways, "deleting", "putting a folder in place of"])
    path.unlink()
    if way in ways:
        path.write_bytes(ways[way])
    elif way != "deleting":
        path.mkdir()
    return way


def fill_disk(bench: Bench, chance: random.Random) -> Case:
    """Let no file grow past a random size, which for a process is the same as a full disk."""
    name, limit = chance.choice([*COMMANDS]), int(2 ** chance.uniform(0, 15))
    bench.leave_work(name, chance)
    problem = bench.execute(name, file_bytes=limit).problem(0, 2)
    return f"{name}, no file beyond {limit} bytes", problem or bench.again(name)


# category: (its attack, its share of the cases)
CATEGORIES: dict[str, tuple[Callable[[Bench, random.Random], Case], float]] = {
    "kills": (kill, 0.15),
    "signals": (send_signal, 0.2),
    "damage": (damage, 0.5),
    "full disk": (fill_disk, 0.15),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=100, help="number of cases (default 100)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the attacks (default 0)")
    parser.add_argument("--only", nargs="+", choices=CATEGORIES, default=[*CATEGORIES])
    arguments = parser.parse_args()
    # A shell has its background jobs ignore Ctrl-C, and the commands would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    total = sum(CATEGORIES[name][1] for name in arguments.only)
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), arguments.seed)
        for name in arguments.only:
            attack, share = CATEGORIES[name]
            count, failed = max(1, round(arguments.cases * share / total)), 0
            for number in range(count):
                what, problem = attack(bench, random.Random(f"{arguments.seed} {name} {number}"))
                if problem is not None:
                    failed += 1
                    print(f"  {name} {number}: {what[:300]}: {problem}", flush=True)
            print(f"{name}: {count} tried, {failed} failed", flush=True)
            failures += failed
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
