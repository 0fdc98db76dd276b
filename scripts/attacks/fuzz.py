"""Configs, overrides and results that make no sense: a second, and one line."""

import json
import random
import shutil
import time
from collections.abc import Iterator

from attacks.bench import Bench, Outcome, Worker
from attacks.damage import silent_change

# Beyond this, a person would think that the command hangs. A busy machine is slow.
SECONDS = 10
PIECES = (
    *("&a [*a]", "*a", "<<: *a", "!!python/object/apply:os.system [id]", "!!binary x", "}", "{"),
    *("[", "]", ":", "- ", "? ", "| ", "> ", "#", "'", '"', "\\", "\t", "[" * 300, "{a: " * 300),
    *("[/]", "[red]x", "\x00", "\x07", "\x1b]0;title\x07", "\x9b31m", "\r", "\u202e", "\ud800"),
    *("é", "n" * 300, "../" * 50, "=1+1", "@x", "+1", "$x$", "|x|", "```", "1e999999", "-1", "0"),
    *("nan", "-.inf", "1_0", "0x1F", "9" * 5000, "2000000000", "1e18", "null", "true", "yes"),
    *("2020-01-01", "{type: yarn, factor: 1e308}", "[trained, trained]"),
    "x: &x [a,a,a,a,a,a,a,a,a]\ny: &y [*x,*x,*x,*x,*x,*x,*x,*x]\nz: [*y,*y,*y,*y,*y,*y,*y,*y]\n",
)
# A strategy file as scripts/fit.py writes it, whatever model it is for.
STRATEGY = {
    "scaling": {"type": "none"},
    "map": {
        "type": "fitted",
        "train_length": 16,
        "borders": [8, 16],
        "far_inv_freq": [[[[0.0, 0.1]]], [[[0.0, 0.1]]]],
        "far_phase": [[[[1.0, 0.5]]], [[[1.0, 0.5]]]],
        "scale_s": [[1.0]],
        "scale_p": [[0.5]],
    },
    "made_by": {"run": "tiny", "step": 2},
}
# Keys of sizes that no machine has memory or time for.
SIZES = {
    "train.py": ("model.hidden_size", "model.num_hidden_layers", "model.intermediate_size",
                 "stages.0.seq_len", "stages.0.batch_size", "validation.batches"),
    "eval_ppl.py": ("resamples", "targets", "stride", "memory_gib"),
    "scripts/compare.py": ("resamples",),
    "scripts/show_scaling.py": ("rotary_dim",),
}  # fmt: skip


def attack(bench: Bench, chance: random.Random, count: int) -> Iterator[tuple[str, str | None]]:
    """Yield for each senseless input what it was and what went wrong."""
    with Worker(bench) as worker:
        for script, words in bench.commands("whole").items():  # the first run imports everything
            worker.run(script, *words)
        cases = (_mutation, _override, _size, _results)
        for index in range(count):
            yield cases[index % len(cases)](bench, worker, chance)


Case = tuple[str, str | None]


def _mutation(bench: Bench, worker: Worker, chance: random.Random) -> Case:
    """A config or a strategy file with pieces put in, lines moved or dropped."""
    path = bench.folder / chance.choice(("fuzzed.yaml", "fuzzed.json"))
    if path.suffix == ".yaml":
        text = _mutated((bench.whole / "config.yaml").read_text(), chance)
        words: tuple[str, ...] = ("train.py", path.name)
    else:
        text = _mutated(json.dumps(STRATEGY, indent=1), chance)
        words = chance.choice(
            (
                ("eval_ppl.py", str(bench.whole), f"scalings=[{path.name}]"),
                ("train.py", "run.yaml", f"rope.strategy={path.name}"),
                ("scripts/fit.py", str(bench.whole), f"start={path.name}", "length=512"),
            )
        )
    path.write_bytes(text.encode(errors=chance.choice(("surrogatepass", "replace"))))
    return f"{words[0]} with {text!r}", _judged(worker, *words, "--print-config")[0]


def _override(bench: Bench, worker: Worker, chance: random.Random) -> Case:
    """A key of some command with a value that it cannot have."""
    script = chance.choice(list(SIZES))
    bench.copy("overridden")
    words = list(bench.commands("overridden")[script])
    key = chance.choice(
        ["name", "runs_dir", "output", "lengths", "scalings", "seed", "label", "data.files",
         "data.cache_dir", "rope.scaling", "model.attention", "stages", "sweep", "bases", "length",
         "protocols", "n" * 300, "a.b.c", "stages.0", "stages.-1.steps", "data"]
    )  # fmt: skip
    value = chance.choice(PIECES).replace("\x00", "0")  # no argument can hold a NUL
    if script == "train.py" or chance.random() < 0.5:
        words.append("--print-config")
    word = f"{key}={value}".encode(errors="replace").decode()
    return f"{script} {word!r}", _judged(worker, script, *words, word)[0]


def _size(bench: Bench, worker: Worker, chance: random.Random) -> Case:
    """A number that is far too large."""
    script = chance.choice(list(SIZES))
    key = chance.choice(SIZES[script])
    value = chance.choice(("2000000000", "1000000000000000000", "1e18", "1e308", "-1", "nan"))
    bench.copy("sized")
    if script == "train.py":
        shutil.rmtree(bench.folder / "sized")
    words = bench.commands("sized")[script]
    problem, _ = _judged(worker, script, *words, f"{key}={value}", statuses=(2,))
    if problem is None and script == "train.py" and (bench.folder / "sized").exists():
        problem = "something was written"
    return f"{script} {key}={value}", problem


def _results(bench: Bench, worker: Worker, chance: random.Random) -> Case:
    """The files of a sweep as someone else's program would write them."""
    run = bench.copy("foreign")
    folder = run / "evals" / "swept"
    path = chance.choice(sorted(p for p in folder.rglob("*") if p.suffix in (".csv", ".json")))
    path.write_text(_mutated(path.read_text(), chance), errors="replace")
    script = "scripts/compare.py"
    problem, outcome = _judged(worker, script, *bench.commands("foreign")[script])
    if problem is None and outcome.status == 0:
        warned = any(word in outcome.said for word in ("changed", "damaged"))
        problem = silent_change(bench, run, script, warned)
    return f"{script} with a foreign {path.name}", problem


def _judged(
    worker: Worker, script: str, *words: str, statuses: tuple[int, ...] = (0, 2)
) -> tuple[str | None, Outcome]:
    """Run a command; return what is wrong with the way it ended, and how it ended."""
    start = time.monotonic()
    outcome = worker.run(script, *words)
    seconds = time.monotonic() - start
    if seconds > SECONDS:
        return f"an answer only after {seconds:.1f} s", outcome
    return outcome.problem(*statuses), outcome


def _mutated(text: str, chance: random.Random) -> str:
    for _ in range(chance.choice((1, 1, 2, 5))):
        lines = text.split("\n")
        at = chance.randrange(len(lines))
        way = chance.randrange(5)
        if way == 0:
            del lines[at]
        elif way == 1:
            lines.insert(at, lines[chance.randrange(len(lines))])
        elif way == 2:
            lines[at] = " " * chance.randrange(4) + lines[at]
        elif way == 3:
            key, colon, _ = lines[at].partition(":")
            lines[at] = key + colon + " " + chance.choice(PIECES)
        else:
            column = chance.randrange(len(lines[at]) + 1)
            lines[at] = lines[at][:column] + chance.choice(PIECES) + lines[at][column:]
        text = "\n".join(lines)
    return text
