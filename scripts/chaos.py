"""Attack training, sweeps and comparisons; nothing may be lost, hang, or be wrong without a word.

    python scripts/chaos.py                          # 1,000 cases, about an hour
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
fuzz         Sizes and results that make no sense. One line within seconds. (For configs and
             overrides: FUZZ_EXAMPLES=1000 pytest tests/test_bad_input.py.)

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
from pathlib import Path

from chaos_bench import COMMANDS, COMPARE, LAST_STEP, SHOW, SWEEP, TRAIN, Bench

Case = tuple[str, str | None]
"""What was done, and what went wrong; None: nothing did."""
# The grace of rope_jax.stopping, and what a busy machine may add to it.
SIGNAL_SECONDS = 5 + 5
# Beyond this, a person would think that the command hangs. A busy machine is slow.
FUZZ_SECONDS = 10


def kill(bench: Bench, chance: random.Random) -> Case:
    """Kill a command at random moments or in a save, and run it to its end."""
    script = chance.choice((TRAIN, TRAIN, TRAIN, SWEEP))
    _leave_work(bench, script, chance)
    for _ in range(chance.choice((1, 1, 3))):
        in_save, fresh = script == TRAIN and chance.random() < 0.4, chance.random() < 0.1
        saves, saving = chance.randrange(4), False
        deadline = time.perf_counter() + chance.uniform(0, bench.seconds[script] * (1 + 2 * fresh))
        command = bench.start(script, fresh=fresh)
        while command.is_alive and (in_save or time.perf_counter() < deadline):
            was_saving, saving = saving, any((bench.run / "checkpoints").glob("*tmp*"))
            saves -= saving and not was_saving
            if in_save and saving and saves < 0:
                break
            time.sleep(0.0005)
        command.send(signal.SIGKILL)
        command.end()
    return f"{script} killed {'in a save' if in_save else 'at a moment'}", _again(bench, script)


def send_signal(bench: Bench, chance: random.Random) -> Case:
    """Signal a command at a random moment, also while it compiles everything."""
    script, number = chance.choice([*COMMANDS]), chance.choice((signal.SIGINT, signal.SIGTERM))
    _leave_work(bench, script, chance)
    compiles, fresh = chance.random() < 0.3, chance.random() < 0.1
    command = bench.start(script, compiles=compiles, fresh=fresh)
    while not command.hears_signals():
        time.sleep(0.001)
    longest = bench.seconds[script] * (1 + 2 * fresh)
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


# A command, what is deleted of the run so that there is work, and the files to damage.
DAMAGED = (
    *[(TRAIN, f"checkpoints/{LAST_STEP}", where) for where in ("copy/run/**/*", "cache/**/*")],
    *[(script, "", "copy/run/**/*") for script in (TRAIN, SWEEP, COMPARE)],
    (SWEEP, "", "cache/**/*"),
    (SWEEP, "evals/swept", "copy/run/evals/.*.journal"),  # as if it was killed at its end
    (COMPARE, "", "copy/run/evals/swept/*"),
)


def damage(bench: Bench, chance: random.Random) -> Case:
    """Damage one file that a command reads: it says so, or gives the same figures as without."""
    script, done_again, where = chance.choice(DAMAGED)
    run = bench.copy()
    if done_again:
        shutil.rmtree(run / done_again)
    unread = {".lock", "checkpoints"} if script == COMPARE else {".lock"}
    paths = [path for path in bench.folder.glob(where) if path.is_file()]
    paths = [p for p in paths if not unread & {*p.parts} and "tfevents" not in p.name]
    path = chance.choice(sorted(paths))
    what = f"{script} after {_damage(path, chance)} {path.relative_to(bench.folder)}"
    outcome = bench.start(script).end()
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
    flipped = content[at] ^ 1 << chance.randrange(8)
    ways = {
        "cutting": content[:at],
        "flipping a bit of": content[:at] + bytes([flipped]) + content[at + 1 :],
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


def fill_disk(bench: Bench, chance: random.Random) -> Case:
    """Let no file grow past a random size, which for a process is the same as a full disk."""
    script, limit = chance.choice([*COMMANDS]), int(2 ** chance.uniform(0, 15))
    _leave_work(bench, script, chance)
    problem = bench.start(script, file_bytes=limit).end().problem(0, 2)
    return f"{script}, no file beyond {limit} bytes", problem or _again(bench, script)


def take_permission(bench: Bench, chance: random.Random) -> Case:
    """Take the permissions of a file or folder away and give them back."""
    script = chance.choice((TRAIN, SWEEP, COMPARE))
    _leave_work(bench, script, chance)
    folders = bench.run.parent, bench.cache, bench.folder / "texts"
    path = chance.choice(sorted(p for f in folders if f.exists() for p in (f, *f.rglob("*"))))
    before, mode = path.stat().st_mode, chance.choice((0, 0o444, 0o555))
    path.chmod(mode)
    problem = bench.start(script, heeds_permissions=True).end().problem(0, 2)
    with contextlib.suppress(FileNotFoundError):  # it was replaced, as it should be
        path.chmod(before)
    what = f"{script} with mode {mode:o} of {path.relative_to(bench.folder)}"
    return what, problem or _again(bench, script)


def _leave_work(bench: Bench, script: str, chance: random.Random) -> None:
    """Copy the undisturbed run, and delete some of what the command then has to make again."""
    run = bench.copy()
    ways = {TRAIN: ([run / "checkpoints" / LAST_STEP], [run], [run, bench.cache])}
    for path in chance.choice(ways.get(script, ([run / "evals"] if script == SWEEP else [],))):
        shutil.rmtree(path)


def _again(bench: Bench, script: str) -> str | None:
    """Run a command to its end, with nothing that disturbs it; return what is wrong then."""
    problem = bench.start(script).end().problem(0) or bench.difference(script, logs=True)
    return problem and f"once nothing disturbs it: {problem}"


PIECES = (
    *("[", "]", "{", "}", '"', ",", "\\", "\t", "\r", "[" * 300, '{"a": ' * 300, "é", "n" * 300),
    *("\x00", "\x1b]0;title\x07", "\x9b31m", "\u202e", "=1+1", "@x", "+1", "$x$", "|x|", "```"),
    *("1e999999", "-1", "0", "nan", "-Infinity", "9" * 5000, "null", "true", "[red]x", "../" * 50),
)
# Keys of sizes that no machine has memory or time for.
SIZES = {
    TRAIN: ("model.hidden_size", "model.num_hidden_layers", "model.intermediate_size",
            "stages.0.seq_len", "stages.0.batch_size", "validation.batches"),
    SWEEP: ("resamples", "targets", "stride", "memory_gib"),
    COMPARE: ("resamples",),
    SHOW: ("rotary_dim",),
}  # fmt: skip


def fuzz(bench: Bench, chance: random.Random) -> Case:
    """Give a command a senseless size or result: it says so in one line within seconds."""
    run, script, is_result = bench.copy(), chance.choice([*SIZES]), chance.random() < 0.5
    if is_result:
        script, files = COMPARE, (run / "evals" / "swept").rglob("*")
        path = chance.choice(sorted(p for p in files if p.suffix in (".csv", ".json")))
        path.write_text(_mutated(path.read_text(), chance), errors="replace")
        words, what = COMMANDS[script], f"foreign {path.name}"
    else:
        values = ("2000000000", "1000000000000000000", "1e18", "1e308", "-1", "nan")
        what = f"{chance.choice(SIZES[script])}={chance.choice(values)}"
        words = [*COMMANDS[script], what]
        if script == TRAIN:
            shutil.rmtree(run)
    start = time.monotonic()
    outcome = bench.start(script, words).end()
    seconds = time.monotonic() - start
    problem = outcome.problem(2, 0 if is_result else 2)
    if seconds > FUZZ_SECONDS:
        problem = f"an answer only after {seconds:.1f} s"
    elif problem is None and script == TRAIN and run.exists():
        problem = "something was written"
    elif is_result and (problem, outcome.status) == (None, 0):
        warned = "changed" in outcome.out or "damaged" in outcome.out
        problem = None if warned else bench.difference(script)
    return f"{script} with {what}", problem


def _mutated(text: str, chance: random.Random) -> str:
    """Drop, repeat or move a line, or put a piece into one, once or a few times."""
    for _ in range(chance.choice((1, 1, 2, 5))):
        lines = text.split("\n")
        at, piece = chance.randrange(len(lines)), chance.choice(PIECES)
        line, column = lines[at], chance.randrange(len(lines[at]) + 1)
        ways = [
            *([], [chance.choice(lines), line], [" " * chance.randrange(4) + line]),
            *([f"{line.partition(':')[0]}: {piece}"], [line[:column] + piece + line[column:]]),
        ]
        lines[at : at + 1] = chance.choice(ways)
        text = "\n".join(lines)
    return text


# category: (its attack, its share of the cases in percent)
CATEGORIES = {
    "kills": (kill, 6),
    "signals": (send_signal, 12),
    "damage": (damage, 40),
    "full disk": (fill_disk, 6),
    "permissions": (take_permission, 6),
    "fuzz": (fuzz, 30),
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
