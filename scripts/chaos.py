"""Attack training, sweeps and comparisons; nothing may be lost, hang, or be wrong without a word.

    python scripts/chaos.py                          # 1,000 cases, about 40 minutes
    python scripts/chaos.py --cases 40 --seed 7
    python scripts/chaos.py --only kills signals

A tiny run is trained, swept and compared without any disturbance. Then, by category:

kills        SIGKILL at a random moment or in a save. The run or sweep that ends despite it is the
             same as the undisturbed one, bit by bit.
signals      Ctrl-C or SIGTERM at a random moment. The command ends within seconds, in one line.
damage       A file is cut, changed, zeroed, deleted or replaced by a folder. The command refuses it
             in one line, or gives the same figures.
full disk    No file can grow past a random size. One line; once there is space, the same figures.
permissions  A file or folder may not be read or written. One line; afterwards, the same figures.
fuzz         Configs, overrides, sizes and results that make no sense. One line within seconds.

Ends with status 1 if any case failed. The same seed gives the same attacks, at moments that depend
on the machine.
"""

import argparse
import contextlib
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from chaos_bench import LAST_STEP, SCRIPTS, Bench

Case = tuple[str, str | None]
"""What was done, and what went wrong; None: nothing did."""
TRAIN, SWEEP, COMPARE, SHOW = SCRIPTS


def kill(bench: Bench, chance: random.Random) -> Case:
    """Kill a command at random moments or in a save, and run it to its end."""
    script = chance.choice((TRAIN, TRAIN, TRAIN, SWEEP))
    _leave_work(bench, script, chance)
    moments = []
    for _ in range(chance.choice((1, 1, 3))):
        in_save, fresh = script == TRAIN and chance.random() < 0.4, chance.random() < 0.1
        saves_to_pass, saving = chance.randrange(4), False
        longest = bench.seconds[script] * (3 if fresh else 1)
        deadline = time.perf_counter() + chance.uniform(0, longest)
        command = bench.start(script, fresh=fresh)
        while command.is_alive:
            now_saving = any((bench.run_folder / "checkpoints").glob("*tmp*"))
            saves_to_pass -= now_saving and not saving
            saving = now_saving
            if saving and saves_to_pass < 0 if in_save else time.perf_counter() > deadline:
                break
            time.sleep(0.0005)
        command.send(signal.SIGKILL)
        command.end()
        moments.append("in a save" if saving else "at a random moment")
    return f"{script} killed {', '.join(moments)}", _again(bench, script)


# The grace of rope_jax.stopping, and what a busy machine may add to it.
SIGNAL_SECONDS = 5 + 5


def send_signal(bench: Bench, chance: random.Random) -> Case:
    """Signal a command at a random moment, also while it compiles everything."""
    script, number = chance.choice(SCRIPTS), chance.choice((signal.SIGINT, signal.SIGTERM))
    _leave_work(bench, script, chance)
    compiles, fresh = chance.random() < 0.3, chance.random() < 0.1
    command = bench.start(script, compiles=compiles, fresh=fresh)
    while not command.hears(signal.SIGINT, signal.SIGTERM) and command.is_alive:
        time.sleep(0.001)
    longest = bench.seconds[script] * (1 + compiles + 2 * fresh)
    deadline = time.perf_counter() + chance.uniform(0, longest)
    while command.is_alive and time.perf_counter() < deadline:
        time.sleep(0.001)
    began = time.perf_counter()
    command.send(number)
    outcome = command.end()
    seconds = time.perf_counter() - began
    problem = outcome.problem(0, 128 + number)
    if seconds > SIGNAL_SECONDS:
        problem = f"ended only {seconds:.1f} s after the signal, with status {outcome.status}"
    elif outcome.status == -number and not outcome.err:  # only the interpreter was left
        problem = None
    if problem is None and chance.random() < 0.5:
        problem = _again(bench, script)
    return f"{number.name} to {script}", problem


def damage(bench: Bench, chance: random.Random) -> Case:
    """Damage one file that a command reads: it says so, or gives the same figures as without."""
    script = chance.choice((TRAIN, SWEEP, COMPARE))
    run, kind = bench.copy(), chance.choice(("run", "cache", "journal"))
    folder, pattern = bench.cache if kind == "cache" else run, "*"
    if script == COMPARE:
        folder = chance.choice((run, run / "evals" / "swept"))
    elif script == SWEEP and kind == "journal":
        shutil.rmtree(run / "evals" / "swept")  # as if it had been killed at its end
        folder, pattern = run / "evals", ".*.journal"
    elif script == TRAIN and (kind == "cache" or chance.random() < 0.7):
        shutil.rmtree(run / "checkpoints" / LAST_STEP)
    paths = [path for path in folder.rglob(pattern) if path.is_file() and path.name != ".lock"]
    paths = [path for path in paths if "tfevents" not in path.name]
    if script == COMPARE:
        paths = [path for path in paths if "checkpoints" not in path.parts]
    path = chance.choice(sorted(paths))
    what = f"{script} after {_damage(path, chance)} {path.relative_to(bench.folder)}"
    outcome = bench.run(script)
    problem = outcome.problem(0, 2)
    if problem is None and outcome.status == 0:
        # a sweep goes back to the checkpoint before a damaged one, and says so
        warned = script != TRAIN and ("using step" if script == SWEEP else "damaged") in outcome.out
        problem = None if warned else bench.difference(script)
    return what, problem


def _damage(path: Path, chance: random.Random) -> str:
    """Damage a file in one of several ways; return which."""
    content = path.read_bytes() or b"x"
    at, lines = chance.randrange(len(content)), content.splitlines(keepends=True)
    del lines[chance.randrange(len(lines))]
    ways = {
        "cutting": content[:at],
        "flipping a bit of": _flip(content, at, chance),
        "flipping bits of": _flip(_flip(content, at, chance), chance.randrange(at + 1), chance),
        "zeroing": bytes(len(content)),
        "dropping a line of": b"".join(lines),
        "appending to": content + chance.randbytes(20),
    }
    way = chance.choice([*ways, "deleting", "putting a folder in place of"])
    path.unlink()
    if way in ways:
        path.write_bytes(ways[way])
    elif way != "deleting":
        path.mkdir()
    return way


def _flip(content: bytes, at: int, chance: random.Random) -> bytes:
    return content[:at] + bytes([content[at] ^ 1 << chance.randrange(8)]) + content[at + 1 :]


def fill_disk(bench: Bench, chance: random.Random) -> Case:
    """Let no file grow past a random size, which for a process is the same as a full disk."""
    script, limit = chance.choice(SCRIPTS), int(2 ** chance.uniform(0, 15))
    _leave_work(bench, script, chance)
    problem = bench.run(script, file_bytes=limit).problem(0, 2)
    return f"{script}, no file beyond {limit} bytes", problem or _again(bench, script)


def take_permission(bench: Bench, chance: random.Random) -> Case:
    """Take the permissions of a file or folder away and give them back."""
    script = chance.choice((TRAIN, SWEEP, COMPARE))
    _leave_work(bench, script, chance)
    folders = [bench.run_folder.parent, bench.cache, bench.folder / "texts"]
    places = {*folders, *(path for folder in folders for path in folder.rglob("*"))}
    path = chance.choice(sorted(path for path in places if path.exists()))
    before, mode = path.stat().st_mode, chance.choice((0, 0o444, 0o555))
    path.chmod(mode)
    problem = bench.run(script, heeds_permissions=True).problem(0, 2)
    with contextlib.suppress(FileNotFoundError):  # it was replaced, as it should be
        path.chmod(before)
    what = f"{script} with mode {mode:o} of {path.relative_to(bench.folder)}"
    return what, problem or _again(bench, script)


def _leave_work(bench: Bench, script: str, chance: random.Random) -> None:
    """Copy the undisturbed run, and delete some of what the command then has to make again."""
    run = bench.copy()
    if script == TRAIN:
        ways = [run / "checkpoints" / LAST_STEP], [run], [run, bench.cache]
        for path in chance.choice(ways):
            shutil.rmtree(path)
    elif script == SWEEP:
        shutil.rmtree(run / "evals")


def _again(bench: Bench, script: str) -> str | None:
    """Run a command to its end, with nothing that disturbs it; return what is wrong then."""
    problem = bench.run(script).problem(0) or bench.difference(script, logs=True)
    return problem and f"once nothing disturbs it: {problem}"


# Beyond this, a person would think that the command hangs. A busy machine is slow.
FUZZ_SECONDS = 10
PIECES = (
    *("&a [*a]", "*a", "<<: *a", "!!python/object/apply:os.system [id]", "!!binary x", "}", "{"),
    *("[", "]", ":", "- ", "? ", "| ", "> ", "#", "'", '"', "\\", "\t", "[" * 300, "{a: " * 300),
    *("[/]", "[red]x", "\x00", "\x07", "\x1b]0;title\x07", "\x9b31m", "\r", "\u202e", "\ud800"),
    *("é", "n" * 300, "../" * 50, "=1+1", "@x", "+1", "$x$", "|x|", "```", "1e999999", "-1", "0"),
    *("nan", "-.inf", "1_0", "0x1F", "9" * 5000, "2000000000", "1e18", "null", "true", "yes"),
    *("2020-01-01", "{type: yarn, factor: 1e308}", "[trained, trained]"),
    "x: &x [a,a,a,a,a,a,a,a,a]\ny: &y [*x,*x,*x,*x,*x,*x,*x,*x]\nz: [*y,*y,*y,*y,*y,*y,*y,*y]\n",
)
# Keys of sizes that no machine has memory or time for.
SIZES = {
    TRAIN: ("model.hidden_size", "model.num_hidden_layers", "model.intermediate_size",
            "stages.0.seq_len", "stages.0.batch_size", "validation.batches"),
    SWEEP: ("resamples", "targets", "stride", "memory_gib"),
    COMPARE: ("resamples",),
    SHOW: ("rotary_dim",),
}  # fmt: skip
KEYS = (
    *("name", "runs_dir", "output", "lengths", "scalings", "seed", "label", "data.files", "bases"),
    *("data.cache_dir", "rope.scaling", "model.attention", "stages", "sweep", "length", "data"),
    *("protocols", "n" * 300, "a.b.c", "stages.0", "stages.-1.steps"),
)


def fuzz(bench: Bench, chance: random.Random) -> Case:
    """Give a command a senseless config, override, size or result: a second, and one line."""
    kind, script = chance.choice(("config", "override", "size", "result")), chance.choice(SCRIPTS)
    run, more = bench.copy(), "--print-config"
    statuses: tuple[int, ...] = (0, 2)
    if kind == "config":
        script, path = TRAIN, bench.folder / "copy" / "fuzzed.yaml"
        text = _mutated((run / "config.yaml").read_text(), chance)
        path.write_bytes(text.encode(errors=chance.choice(("surrogatepass", "replace"))))
        words, what = [str(path), more], repr(text)
    elif kind == "override":
        what = f"{chance.choice(KEYS)}={chance.choice(PIECES)}".replace("\x00", "0")
        what = what.encode(errors="replace").decode()
        words = [*bench.words(script), what, *([more] if chance.random() < 0.6 else ())]
    elif kind == "size":
        values = ("2000000000", "1000000000000000000", "1e18", "1e308", "-1", "nan")
        what = f"{chance.choice(SIZES[script])}={chance.choice(values)}"
        words, statuses = [*bench.words(script), what], (2,)
        if script == TRAIN:
            shutil.rmtree(run)
    else:
        script, files = COMPARE, (run / "evals" / "swept").rglob("*")
        path = chance.choice(sorted(p for p in files if p.suffix in (".csv", ".json")))
        path.write_text(_mutated(path.read_text(), chance), errors="replace")
        words, what = bench.words(script), f"foreign {path.name}"
    start = time.monotonic()
    outcome = bench.start_with(script, words).end()
    seconds = time.monotonic() - start
    problem = outcome.problem(*statuses)
    if seconds > FUZZ_SECONDS:
        problem = f"an answer only after {seconds:.1f} s"
    elif problem is None and kind == "size" and script == TRAIN and run.exists():
        problem = "something was written"
    elif kind == "result" and (problem, outcome.status) == (None, 0):
        warned = "changed" in outcome.out or "damaged" in outcome.out
        problem = None if warned else bench.difference(script)
    return f"{script} with {what}", problem


def _mutated(text: str, chance: random.Random) -> str:
    """Drop, repeat or move a line, or put a piece into one, once or a few times."""
    for _ in range(chance.choice((1, 1, 2, 5))):
        lines = text.split("\n")
        at, piece = chance.randrange(len(lines)), chance.choice(PIECES)
        key, colon, _ = lines[at].partition(":")
        column = chance.randrange(len(lines[at]) + 1)
        lines[at : at + 1] = chance.choice(
            (
                [],
                [chance.choice(lines), lines[at]],
                [" " * chance.randrange(4) + lines[at]],
                [f"{key}{colon} {piece}"],
                [lines[at][:column] + piece + lines[at][column:]],
            )
        )
        text = "\n".join(lines)
    return text


Attack = Callable[[Bench, random.Random], Case]
# category: (its attack, its share of the cases in percent)
CATEGORIES: dict[str, tuple[Attack, int]] = {
    "kills": (kill, 6),
    "signals": (send_signal, 12),
    "damage": (damage, 30),
    "full disk": (fill_disk, 6),
    "permissions": (take_permission, 6),
    "fuzz": (fuzz, 40),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=1000, help="number of cases (default 1000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the attacks (default 0)")
    parser.add_argument(
        "--only", nargs="+", choices=CATEGORIES, default=list(CATEGORIES), help="categories"
    )
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
