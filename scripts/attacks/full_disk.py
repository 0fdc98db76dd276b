"""A disk that fills up: no file may grow past a random size, which for a process is the same."""

import random
import shutil
from collections.abc import Iterator

from attacks.bench import Bench, Worker
from attacks.damage import silent_change


def attack(bench: Bench, chance: random.Random, count: int) -> Iterator[tuple[str, str | None]]:
    """Run commands on a full disk, then on one with space; yield each case and its problem."""
    with Worker(bench) as worker:
        for index in range(count):
            script = list(bench.commands(""))[index % 4]
            run = bench.copy("full")
            what = script
            if script == "train.py":
                way = chance.choice(("a new run", "a resumed run", "no token cache"))
                what += f", {way}"
                if way == "a resumed run":
                    shutil.rmtree(run / "checkpoints" / "60")
                else:
                    shutil.rmtree(run)
                if way == "no token cache":
                    shutil.rmtree(bench.folder / "cache")
            limit = int(2 ** chance.uniform(0, 15))
            words = bench.commands("full")[script]
            problem = worker.run(script, *words, file_bytes=limit).problem(0, 2)
            if problem is None:
                outcome = worker.run(script, *words)
                problem = outcome.problem(0)
                if problem is None and script != "scripts/show_scaling.py":
                    problem = silent_change(bench, run, script, warned=False)
                if problem is not None:
                    problem = f"once there is space: {problem}"
            yield f"{what}, no file beyond {limit} bytes", problem
