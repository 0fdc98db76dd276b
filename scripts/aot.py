"""Compile training and sweeps for TPUs and GPUs that are not here: every attention, every mesh.

    python scripts/aot.py                      # or: make aot; continues where it was stopped
    python scripts/aot.py --only "1B splash"   # the cases whose names have all these words
    python scripts/aot.py --list               # the names

Needs the compilers (pip install -e '.[tpu,cuda12]'), no accelerator, and 4 GiB of memory. A case
takes from 20 seconds to some minutes on two cores, all of them hours. Each runs in a process of its
own, and its result is a line in docs/aot.csv, from which `make generate` writes the tables in
docs/accelerators.md. Exit status 1 if a case fails: if it neither compiles nor is refused for a
reason that is listed here.
"""

import argparse
import csv
import datetime
import functools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rope_jax.devices.targets import parse_target, prepare
from rope_jax.errors import UserError

RESULTS = Path(__file__).resolve().parents[1] / "docs/aot.csv"
TRAINED, READ = 8_192, 32_768
MODELS: Mapping[str, Mapping[str, Any]] = {
    # the shapes of Llama 3.2 1B and Llama 3.1 8B
    "1B": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128_256,
        "tie_word_embeddings": True,
    },
    "8B": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128_256,
        "tie_word_embeddings": False,
    },
}
TARGETS = ("v5e:1x1", "v5e:2x2", "v5e:4x4", "v5e:8x8", "h100:1", "h100:8")
PROGRAMS = ("xla", "blockwise", "kernel", "maps")
SPLITS = ("fsdp", "tensor", "context")
PARAMETERS = {"1B": 1.24e9, "8B": 8.03e9}
# Bytes per parameter: with gradients and two moments in float32, and read in float32.
_TRAINING, _READING = 16, 4
# How many devices share heads or windows; the others split the parameters.
SHARED = 4
# The compiler for TPUs takes a quarter of the time so. What a program needs differs by a tenth.
LEAST_EFFORT = {"JAX_EXEC_TIME_OPTIMIZATION_EFFORT": "-1.0"}
# Longer than any case took; a compiler that hangs is a failure.
SECONDS = 3600


@dataclass(frozen=True)
class Case:
    """A program to compile. split: which axis of the mesh it is about; "one": a single device."""

    model: str
    program: str
    work: str
    target: str
    split: str

    @property
    def name(self) -> str:
        """What --only and the results call it."""
        return f"{self.model} {self.attention} {self.work} {self.target} {self.split}"

    @property
    def attention(self) -> str:
        """The attention backend, or "maps"."""
        if self.program != "kernel":
            return self.program
        return "splash" if parse_target(self.target).chip.platform == "tpu" else "cudnn"

    @property
    def expected(self) -> re.Pattern[str]:
        """How the refusals that are no failure read: too little memory, or a documented limit."""
        if self.attention == "cudnn" and self.split == "context":
            return re.compile(r"^mesh\.context: attention cudnn needs whole windows")
        return re.compile(r" GiB" if self.may_be_too_large else r"(?!)")

    @property
    def may_be_too_large(self) -> bool:
        """Whether it may be refused for memory: whole scores, or state that nearly fills a device.

        Everything else fits on these targets; a refusal would be a failure.
        """
        target = parse_target(self.target)
        shards = target.count // (SHARED if self.split == "context" else 1)
        state = PARAMETERS[self.model] * (_TRAINING if self.work == "train" else _READING) / shards
        return self.attention == "xla" or state > target.chip.usable / 2


@dataclass(frozen=True)
class Result:
    """What came of a case. status: compiled, refused or failed. gib: on each device."""

    name: str
    date: str
    status: str
    seconds: float
    gib: float | None
    available: float | None
    message: str


def cases() -> Iterator[Case]:
    """Yield the matrix, the quickest first."""
    for model in MODELS:
        for target in sorted(TARGETS, key=lambda target: not target.startswith("h")):
            splits = ("one",) if parse_target(target).count == 1 else SPLITS
            for program in PROGRAMS:
                for work in ("train", "sweep"):
                    for split in splits:
                        yield Case(model, program, work, target, split)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", metavar="WORDS", help="cases with all these words")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("--again", action="store_true", help="repeat what the results have")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FILE.csv")
    parser.add_argument("--run", help=argparse.SUPPRESS)  # one case, in this process
    arguments = parser.parse_args()
    if arguments.run:
        (case,) = (case for case in cases() if case.name == arguments.run)
        print(json.dumps(compile_case(case)))
        return 0
    chosen = [c for c in cases() if set(arguments.only.split()) <= set(c.name.split())]
    if arguments.list:
        print("\n".join(case.name for case in chosen))
        return 0
    found = read_results(arguments.results)
    for number, case in enumerate(chosen, start=1):
        old = found.get(case.name)
        if old is None or old.status == "failed" or arguments.again:
            found[case.name] = run(case)
            write_results(arguments.results, found)
        print(f"{number:>4} of {len(chosen)}  {describe(found[case.name])}", flush=True)
    failed = [case.name for case in chosen if found[case.name].status == "failed"]
    print(f"{len(chosen) - len(failed)} of {len(chosen)} compile or are refused as expected")
    return 1 if failed else 0


def run(case: Case) -> Result:
    """Compile a case in a process of its own."""
    result = functools.partial(Result, case.name, datetime.date.today().isoformat())
    began = time.perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, __file__, "--run", case.name],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            # unfiltered: the last line is then the error, not JAX's note that it shortened a trace
            env=os.environ | LEAST_EFFORT | {"JAX_TRACEBACK_FILTERING": "off"},
        )
    except subprocess.TimeoutExpired:
        return result("failed", SECONDS, None, None, f"takes more than {SECONDS} s")
    seconds = round(time.perf_counter() - began, 1)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return result("failed", seconds, None, None, f"status {done.returncode}: {last[:300]}")
    found = json.loads(done.stdout.splitlines()[-1])
    message = found.get("refused", "")
    if not message:
        return result("compiled", found["seconds"], found["gib"], found["available"], "")
    expected = case.expected.search(message)
    return result("refused" if expected else "failed", seconds, None, None, message)


def compile_case(case: Case) -> dict[str, Any]:
    """Compile a case in this process; return its figures, or why it is refused."""
    prepare()
    from rope_jax.config.load import validate
    from rope_jax.config.training import TrainingConfig

    try:
        config = validate(TrainingConfig, training_config(case), case.name)
        return (
            compile_training(config, case) if case.work == "train" else compile_sweep(config, case)
        )
    except UserError as error:
        return {"refused": str(error).removeprefix(f"{case.name}: ")}


def training_config(case: Case) -> dict[str, Any]:
    """Return the raw config of a case's run."""
    count = parse_target(case.target).count
    mesh = {"fsdp": count}
    if case.split in ("tensor", "context"):
        mesh = {"fsdp": count // SHARED, case.split: SHARED}
    rows = mesh["fsdp"]
    if case.work == "sweep" and case.split == "context":
        mesh.pop("context")  # a sweep shares windows by itself, where one does not fit
    return {
        "name": case.name.replace(" ", "-").replace(":", "-"),
        "model": {
            **MODELS[case.model],
            "attention": "blockwise" if case.program == "maps" else case.attention,
            "dtype": "bfloat16",
            "layers": "scanned",
            "remat": "layer",
        },
        "rope": {"map": {"type": "rerope", "window": 1024} if case.program == "maps" else None},
        "mesh": mesh,
        "stages": [{"steps": 100, "seq_len": TRAINED, "batch_size": rows}],
    }


def compile_training(config: Any, case: Case) -> dict[str, Any]:
    """Compile the training step."""
    from rope_jax.devices.mesh import Placement
    from rope_jax.model.resolve import check_backend, resolve_run
    from rope_jax.planning.plan import plan_stage
    from rope_jax.training.program import Program

    placement = Placement(config.mesh, parse_target(case.target).devices())
    check_backend(config.model, placement.platform)
    placement.check_stages(config.stages)
    program = Program(resolve_run(config), config.model.vocab_size, placement)
    plan = plan_stage(program, 0, validates=False)
    if plan.refusal is not None:
        raise plan.refusal
    assert plan.bytes is not None
    return figures(plan.bytes.total, plan.seconds, placement)


def compile_sweep(config: Any, case: Case) -> dict[str, Any]:
    """Compile the program of a sweep's longest windows: with the model's map, if it has one."""
    import jax

    from rope_jax.config.devices import check_mesh
    from rope_jax.config.load import validate
    from rope_jax.config.sweep import SweepConfig
    from rope_jax.devices.memory import device_bytes
    from rope_jax.devices.mesh import Placement
    from rope_jax.model.decoder import language_model
    from rope_jax.model.memory import MemoryPlan
    from rope_jax.model.resolve import check_backend, resolve_run
    from rope_jax.planning.plan import plan_readings
    from rope_jax.sweeps.model import mesh_for
    from rope_jax.sweeps.resolve import resolve_run_sweep

    target = parse_target(case.target)
    raw = {"lengths": [TRAINED, READ], "scalings": ["trained"], "protocols": ["same_tokens"]}
    sweep = validate(SweepConfig, raw, case.name)
    mesh = mesh_for(config, target.count)
    if case.split == "context":
        mesh = mesh.model_copy(update={"data": 1, "context": SHARED})
    try:
        check_mesh(mesh, config.model, [config.rope.map])
    except ValueError as error:
        raise UserError(str(error)) from None
    placement = Placement(mesh, target.devices())
    check_backend(config.model, placement.platform)
    model = language_model(resolve_run(config), config.model.vocab_size)
    like = placement.shard_state(jax.eval_shape(lambda: model.init(0)))
    available = device_bytes(placement.device)
    MemoryPlan(model.config, model.vocab_size, like, placement, available).check([READ])
    resolved = resolve_run_sweep(sweep, config, [config.last_step])
    (plan,) = plan_readings(config, resolved, model, placement, like)
    return figures(plan.bytes, plan.seconds, placement)


def figures(used: int, seconds: float, placement: Any) -> dict[str, Any]:
    """Return what a compiled program's line in the results says."""
    from rope_jax.devices.memory import device_bytes

    available = device_bytes(placement.device)
    return {
        "gib": round(used / 2**30, 2),
        "available": round(available / 2**30, 2),
        "seconds": round(seconds, 1),
    }


def describe(result: Result) -> str:
    """Return a line for the terminal."""
    if result.status != "compiled":
        return f"{result.name:<42} {result.status}: {result.message}"
    there_are = f"{result.gib:,.2f} of {result.available:,.2f} GiB"
    return f"{result.name:<42} {there_are:>22} {result.seconds:>7,.0f} s"


def read_results(path: Path) -> dict[str, Result]:
    """Return the results in a file by name; none if there is no such file."""
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        rows: list[dict[str, Any]] = list(csv.DictReader(file))
    for row in rows:
        for number in ("seconds", "gib", "available"):
            row[number] = float(row[number]) if row[number] else None
    return {row["name"]: Result(**row) for row in rows}


def write_results(path: Path, found: Mapping[str, Result]) -> None:
    """Write results in the order of the matrix."""
    order = {case.name: number for number, case in enumerate(cases())}
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Result)], lineterminator="\n")
        writer.writeheader()
        for name in sorted(found, key=lambda name: order.get(name, len(order))):
            writer.writerow(asdict(found[name]))


def result_table(found: Mapping[str, Result], platform: str) -> str:
    """Return the results of a platform as a table: programs down, targets and meshes across."""
    own = [case for case in cases() if parse_target(case.target).chip.platform == platform]
    columns = list(dict.fromkeys((case.target, case.split) for case in own))
    rows: dict[tuple[str, str, str], dict[tuple[str, str], Result | None]] = {}
    for case in own:
        row = rows.setdefault((case.model, case.attention, case.work), {})
        row[case.target, case.split] = found.get(case.name)
    heads = [target if split == "one" else f"{target} {split}" for target, split in columns]
    lines = [f"| model | attention | work | {' | '.join(heads)} |", "|---" * (3 + len(heads)) + "|"]
    for names, row in rows.items():
        cells = [_cell(row.get(column)) for column in columns]
        lines.append(f"| {' | '.join((*names, *cells))} |")
    return "\n".join(lines) + "\n"


def _cell(result: Result | None) -> str:
    if result is None:
        return ""
    if result.status == "compiled":
        return f"{result.gib:.1f}"
    if result.status == "refused":
        return "memory" if " GiB" in result.message else "no"
    return "failed"


if __name__ == "__main__":
    sys.exit(main())
