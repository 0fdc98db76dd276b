"""Damage a file that a command reads: it says so, or gives the same figures as without."""

import contextlib
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from attacks.bench import Bench, Worker
from attacks.kills import same_state


def attack(bench: Bench, chance: random.Random, count: int) -> Iterator[tuple[str, str | None]]:
    """Damage one file at a time; yield what was done and what went wrong."""
    journals = _interrupted_sweep(bench)
    with Worker(bench) as worker:
        for index in range(count):
            kind = ("run", "cache", "journal", "results")[index % 4]
            yield _case(bench, worker, chance, kind, journals)


def _case(
    bench: Bench, worker: Worker, chance: random.Random, kind: str, journals: dict[str, bytes]
) -> tuple[str, str | None]:
    run = bench.copy("damaged")
    cache = bench.folder / "cache"
    intact = {path: path.read_bytes() for path in cache.rglob("*") if path.is_file()}
    if kind == "run":
        script, folder = chance.choice(("train.py", "eval_ppl.py")), run
        if script == "train.py" and chance.random() < 0.7:  # so that there is something to train
            shutil.rmtree(run / "checkpoints" / "60")
    elif kind == "cache":
        script, folder = chance.choice(("train.py", "eval_ppl.py")), cache
        if script == "train.py":
            shutil.rmtree(run / "checkpoints" / "60")
    elif kind == "journal":
        script, folder = "eval_ppl.py", run / "evals"
        shutil.rmtree(folder / "swept")
        for name, content in journals.items():
            (folder / name).write_bytes(content)
    else:
        script, folder = "scripts/compare.py", chance.choice((run, run / "evals" / "swept"))
    pattern = ".*.journal" if kind == "journal" else "*"
    paths = sorted(
        path
        for path in folder.rglob(pattern)
        if path.is_file()
        and path.name != ".lock"
        and "tfevents" not in path.name
        and not (kind == "results" and "checkpoints" in path.parts)
    )
    if kind == "cache" and chance.random() < 0.6:  # of what is certainly read
        paths = [path for path in paths if path.name == "tokens"]
    path = chance.choice(paths)
    what = f"{script} after {_damage(path, chance)} {path.relative_to(bench.folder)}"
    outcome = worker.run(script, *bench.commands("damaged")[script])
    problem = outcome.problem(0, 2)
    if problem is None and outcome.status == 0:
        # A sweep goes back to the checkpoint before a damaged one, and says so.
        word = "using step" if script == "eval_ppl.py" else "damaged"
        warned = word in outcome.said
        problem = silent_change(bench, run, script, warned)
    if kind == "cache":
        shutil.rmtree(cache, ignore_errors=True)
        for path, content in intact.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    return what, problem


def silent_change(bench: Bench, run: Path, script: str, warned: bool) -> str | None:
    """Return what differs from the undisturbed results; None if nothing does.

    warned: whether the command said that it goes on with something else instead.
    """
    if script == "train.py":
        return None if same_state(bench.whole, run) else "the trained state differs"
    if script == "eval_ppl.py":
        same = bench.sweep_rows(bench.whole) == bench.sweep_rows(run)
        return None if same or warned else "the sweep's results differ without a word"
    runs = run.parent
    same = bench.comparison_rows(runs) == bench.comparison_rows(bench.whole.parent)
    return None if same or warned else "the comparison differs without a word"


def _damage(path: Path, chance: random.Random) -> str:
    """Damage a file in one of several ways; return which."""
    content = path.read_bytes()

    def cut() -> bytes:
        return content[: chance.randrange(len(content) + 1)]

    def flip() -> bytes:
        changed = bytearray(content or b"x")
        for _ in range(chance.choice((1, 1, 1, 20))):
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
        return bytes(changed)

    def drop() -> bytes:
        lines = content.splitlines(keepends=True)
        if lines:
            del lines[chance.randrange(len(lines))]
        return b"".join(lines)

    ways: dict[str, Callable[[], bytes]] = {
        "cutting": cut,
        "flipping bits of": flip,
        "zeroing": lambda: bytes(len(content)),
        "dropping a line of": drop,
        "appending to": lambda: content + chance.randbytes(20),
    }
    way = chance.choice([*ways, "flipping bits of", "deleting", "putting a folder in place of"])
    if way in ways:
        path.write_bytes(ways[way]())
        return way
    path.unlink()
    if way != "deleting":
        path.mkdir()
    return way


def _interrupted_sweep(bench: Bench) -> dict[str, bytes]:
    """Kill a sweep half-way and return the journals that it left, by name."""
    evals = bench.copy("interrupted") / "evals"
    # On a busy machine a sweep can end between two looks at it; then another one is tried.
    for _ in range(20):
        shutil.rmtree(evals / "swept", ignore_errors=True)
        process = bench.start("eval_ppl.py", *bench.commands("interrupted")["eval_ppl.py"])
        while process.poll() is None:
            if any(content.count(b"\n") > 3 for content in _journals(evals).values()):
                break
            time.sleep(0.001)
        process.kill()
        process.communicate()
        if left := _journals(evals):
            return left
    raise RuntimeError("twenty sweeps ended before they could be interrupted")


def _journals(evals: Path) -> dict[str, bytes]:
    """Return the journals of sweeps under way, by name; one deleted meanwhile is left out."""
    found = {}
    for path in evals.glob(".*.journal"):
        with contextlib.suppress(FileNotFoundError):
            found[path.name] = path.read_bytes()
    return found
