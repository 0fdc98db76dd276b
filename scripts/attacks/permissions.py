"""Files and folders that may not be read or written: one line, and nothing is lost."""

import contextlib
import random
import shutil
from collections.abc import Iterator

from attacks.bench import Bench, Worker
from attacks.damage import silent_change
from attacks.worker import HEED_PERMISSIONS


def attack(bench: Bench, chance: random.Random, count: int) -> Iterator[tuple[str, str | None]]:
    """Take permissions away and give them back; yield each case and its problem."""
    with Worker(bench, HEED_PERMISSIONS) as worker:
        for index in range(count):
            script = list(bench.commands(""))[index % 3]
            run = bench.copy("closed")
            if script == "train.py":
                shutil.rmtree(run / "checkpoints" / "60")
            places = [run.parent, run, bench.folder / "cache", bench.folder / "texts"]
            places += [p for place in places for p in place.rglob("*") if "home" not in p.parts]
            path = chance.choice(sorted({*places, bench.folder / "run.yaml"}))
            before = path.stat().st_mode
            mode = chance.choice((0, 0o444, 0o555))
            words = bench.commands("closed")[script]
            path.chmod(mode)
            try:
                problem = worker.run(script, *words).problem(0, 2)
            finally:
                with contextlib.suppress(FileNotFoundError):  # it was replaced, as it should be
                    path.chmod(before)
            if problem is None:
                problem = worker.run(script, *words).problem(0)
                problem = problem or silent_change(bench, run, script, warned=False)
                if problem is not None:
                    problem = f"once it may be used again: {problem}"
            yield f"{script} with mode {mode:o} of {path.relative_to(bench.folder)}", problem
