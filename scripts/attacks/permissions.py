"""Files and folders that may not be read or written: one line, and nothing is lost."""

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

from attacks.bench import ROOT, Bench, Worker
from attacks.damage import silent_change

_NOBODY = 65534


def attack(bench: Bench, chance: random.Random, count: int) -> Iterator[tuple[str, str | None]]:
    """Take permissions away and give them back; yield each case and its problem."""
    user = None
    if os.geteuid() == 0:  # permissions do not bind root: run as nobody
        user = _NOBODY
        _give(bench.folder, user)
    worker = Worker(bench, user)
    if worker.run("train.py", "--help").status != 0:
        worker.close()
        raise RuntimeError(f"another user than root cannot run the commands in {ROOT}")
    try:
        for index in range(count):
            script = list(bench.commands(""))[index % 3]
            run = bench.copy("closed")
            if script == "train.py":
                shutil.rmtree(run / "checkpoints" / "60")
            places = [run.parent, run, bench.folder / "cache", bench.folder / "texts"]
            places += [p for place in places for p in place.rglob("*") if "home" not in p.parts]
            if user is not None:
                _give(run.parent, user)
            path = chance.choice(sorted({*places, bench.folder / "run.yaml"}))
            before = path.stat().st_mode
            mode = chance.choice((0, 0o444, 0o555))
            words = bench.commands("closed")[script]
            path.chmod(mode)
            try:
                problem = worker.run(script, *words).problem(0, 2)
            finally:
                path.chmod(before)
            if problem is None:
                problem = worker.run(script, *words).problem(0)
                problem = problem or silent_change(bench, run, script, warned=False)
                if problem is not None:
                    problem = f"once it may be used again: {problem}"
            yield f"{script} with mode {mode:o} of {path.relative_to(bench.folder)}", problem
    finally:
        worker.close()
        if user is not None:
            _give(bench.folder, os.geteuid())


def _give(folder: Path, user: int) -> None:
    """Make a user the owner of a folder and everything in it."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, user, user, follow_symlinks=False)
