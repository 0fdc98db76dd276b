"""Plan for TPUs and GPUs that are not here, with the compilers that would run there.

    python scripts/aot.py v5e:4x4 CONFIG mesh.fsdp=16         # as `rope-jax plan`, for a slice
    python scripts/aot.py h100:8 RUN --sweep SWEEP.yaml
    python scripts/aot.py matrix                              # or: make aot
    python scripts/aot.py matrix 1B splash                    # cases with all these words

Needs the compilers (pip install -e '.[tpu,cuda12]'), no accelerator, and 4 GiB of memory.

The matrix compiles training and sweeps with every attention on every mesh. A case takes from 20
seconds to some minutes on two cores, all of them hours. Each runs in a process of its own, and its
result is a line in docs/aot.csv, from which `make generate` writes the tables in
docs/accelerators.md; cases that are there are skipped. Exit status 1 if a case fails: if it neither
compiles nor is refused for a reason that is listed here.
"""

import csv
import datetime
import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
if __name__ == "__main__":  # before jax is imported
    os.environ |= {
        "JAX_PLATFORMS": "cpu",
        # Without a TPU, libtpu would ask a metadata server, which only machines with TPUs have.
        "TPU_SKIP_MDS_QUERY": "1",
        # Only one process may use a TPU, but any number may compile for one.
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        # Autotuning measures kernels on the device.
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_autotune_level=0".strip(),
    }
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    # Any would do; libtpu warns if there is none.
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")

import jax
from jax.experimental import topologies

from rope_jax import cli
from rope_jax.commands.main import plan
from rope_jax.config.load import validate
from rope_jax.config.messages import explain_type
from rope_jax.config.model import check_mesh
from rope_jax.config.resolve import check_backend, resolve_run
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import TrainingConfig
from rope_jax.devices.chips import CHIPS, Chip
from rope_jax.devices.memory import device_bytes
from rope_jax.devices.mesh import Placement
from rope_jax.errors import UserError
from rope_jax.extras import install_line, is_installed
from rope_jax.planning.plan import plan_readings, plan_stage
from rope_jax.sweeps.model import mesh_for, place_model
from rope_jax.sweeps.resolve import resolve_run_sweep
from rope_jax.training.program import Program

_HOST_GPUS = 8
# Sizes of slices of TPUs, one number per axis; hosts of GPUs have one.
_EXAMPLES = {"v4": "2x2x4", "v5e": "4x4", "v5p": "2x2x4", "v6e": "4x4"}

# A GPU as XLA's compiler wants it described, a GpuTargetConfigProto, with the figures that the
# driver reports. What has a number here is the same for all of them.
_GPU = """
    platform_name: "CUDA"
    device_description_str: "{kind}"
    dnn_version_info {{ major: 9 minor: 10 }}
    gpu_device_info {{
        cuda_compute_capability {{ major: {} minor: 0 }}
        core_count: {} fpus_per_core: {} clock_rate_ghz: {}
        shared_memory_per_core: {} shared_memory_per_block_optin: {} l2_cache_size: {}
        memory_bandwidth: {} device_memory_size: {memory} shared_memory_per_block: 49152
        threads_per_block_limit: 1024 threads_per_core_limit: 2048 threads_per_warp: 32
        registers_per_core_limit: 65536 registers_per_block_limit: 65536
        block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
    }}
"""


_A100 = (8, 108, 64, 1.41, 167_936, 166_912, 41_943_040, 2_039 * 10**9)
_H100 = (9, 132, 128, 1.98, 233_472, 232_448, 52_428_800, 3_350 * 10**9)
_FIGURES = {
    "a100": _A100,
    "h100": _H100,
    "h200": (*_H100[:-1], 4_800 * 10**9),
    "b200": (10, 148, 128, 1.965, 233_472, 232_448, 132_644_864, 7_700 * 10**9),
}


@dataclass(frozen=True)
class Target:
    """A slice of TPUs, with the chips along each axis as shape, or hosts of GPUs: hosts, GPUs."""

    text: str
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        return self.text.partition(":")[0]

    @property
    def chip(self) -> Chip:
        return CHIPS[self.name]

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    def devices(self) -> Sequence[Any]:
        """Return the devices, for a compiler alone. UserError: none such."""
        compilers: tuple[str, ...] = ("libtpu",)
        extra = "tpu"
        if self.chip.platform == "gpu":
            compilers, extra = ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13"), "cuda12"
        if not any(map(is_installed, compilers)):
            raise UserError(
                f"target: {self.text} needs its compiler; install it with {install_line(extra)}"
            )
        platform, how = "tpu", dict[str, Any]()
        if self.chip.platform == "gpu":
            figures = _FIGURES[self.name]
            gpu = _GPU.format(*figures, kind=self.chip.kinds[0], memory=self.chip.memory)
            platform, topology = "cuda", "1x{}x{}".format(*self.shape)
            how = {"target_config": gpu, "topology": topology}
        elif self.count == 1:
            how["chips_per_host_bounds"] = (1, 1, 1)  # the default is a host of 2x2
        if self.name == "v4":
            how["chip_config_name"] = "megacore"  # its two cores as one device
        try:
            return topologies.get_topology_desc(self.text, platform, **how).devices
        except jax.errors.JaxRuntimeError as error:
            raise UserError(
                f"target: {self.text}: the compiler refuses this slice "
                f"({str(error).splitlines()[0]})"
            ) from error


def parse_target(text: str) -> Target:
    """Read a target, such as v5e:4x4 or h100:8."""
    name, _, size = text.lower().partition(":")
    if name not in CHIPS:
        raise UserError(f"target: {explain_type(name, tuple(CHIPS))}; as in v5e:4x4 or h100:8")
    sizes, example = size.split("x"), _EXAMPLES.get(name, "8")
    if len(sizes) != len(example.split("x")) or not all(n.isdecimal() and int(n) for n in sizes):
        raise UserError(f"target: {text}: give a size as in {name}:{example}")
    shape = tuple(map(int, sizes))
    if name not in _EXAMPLES:
        per_host = min(shape[0], _HOST_GPUS)
        if shape[0] % per_host:
            raise UserError(f"target: {text}: more than {_HOST_GPUS} GPUs are a multiple of that")
        shape = shape[0] // per_host, per_host
    return Target(f"{name}:{size}", shape)


# The matrix

RESULTS = Path(__file__).resolve().parents[1] / "docs/aot.csv"
TRAINED, READ = 8_192, 32_768
VOCABULARY = 128_256
LLAMA = {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": VOCABULARY}
MODELS: Mapping[str, Mapping[str, Any]] = {
    # the shapes of Llama 3.2 1B and Llama 3.1 8B
    "1B": LLAMA | {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16},
    "8B": LLAMA
    | {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
    | {"tie_word_embeddings": False},
}
TARGETS = ("v5e:1x1", "v5e:2x2", "v5e:4x4", "v5e:8x8", "h100:1", "h100:8")
PROGRAMS = ("xla", "blockwise", "kernel", "maps")
SPLITS = ("fsdp", "tensor", "context")
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


# Refusals that are no failures: too little memory, and cuDNN's attention cannot share a window.
REFUSALS = re.compile(r" GiB|^mesh\.context: attention cudnn needs whole windows")
Result = dict[str, str]
"""What came of a case, by the columns of docs/aot.csv. status: compiled, refused or failed."""
COLUMNS = ("name", "date", "status", "seconds", "gib", "available", "message")


def cases() -> Iterator[Case]:
    """Yield the matrix, the quickest first."""
    for model in MODELS:
        for target in sorted(TARGETS, key=lambda target: not target.startswith("h")):
            splits = ("one",) if parse_target(target).count == 1 else SPLITS
            for program in PROGRAMS:
                for work in ("train", "sweep"):
                    for split in splits:
                        yield Case(model, program, work, target, split)


def run_matrix(words: Sequence[str]) -> int:
    """Compile the cases with all these words that have no result; return the exit status."""
    results = read_results()
    chosen = [case for case in cases() if set(words) <= set(case.name.split())]
    failed = 0
    for number, case in enumerate(chosen, start=1):
        if results.get(case.name, {"status": "failed"})["status"] == "failed":
            results[case.name] = run(case)
            write_results(results)
        result = results[case.name]
        failed += result["status"] == "failed"
        figures = f"{result['gib']:>6} GiB" if result["gib"] else result["message"]
        print(f"{number:>4} of {len(chosen)}  {case.name:<42} {result['status']}: {figures}")
    print(f"{len(chosen) - failed} of {len(chosen)} compile or are refused as expected")
    return 1 if failed else 0


def run(case: Case) -> Result:
    """Compile a case in a process of its own."""
    began = time.perf_counter()
    made = dict.fromkeys(COLUMNS, "") | {"name": case.name}
    made["date"] = datetime.date.today().isoformat()
    try:
        done = subprocess.run(
            [sys.executable, __file__, "case", case.name],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            # unfiltered: the last line is then the error, not JAX's note that it shortened a trace
            env=os.environ | LEAST_EFFORT | {"JAX_TRACEBACK_FILTERING": "off"},
        )
        status, lines = done.returncode, (done.stdout or done.stderr).strip().splitlines()
    except subprocess.TimeoutExpired:
        status, lines = -1, [f"takes more than {SECONDS} s"]
    made["seconds"] = f"{time.perf_counter() - began:.1f}"
    if status:
        return made | {"status": "failed", "message": f"status {status}: {lines[-1][:300]}"}
    found = json.loads(lines[-1])
    if "gib" in found:
        return made | {"status": "compiled"} | {key: str(value) for key, value in found.items()}
    is_expected = REFUSALS.search(found["message"])
    return made | {"status": "refused" if is_expected else "failed"} | found


def compile_case(case: Case) -> dict[str, Any]:
    """Compile a case in this process; return its figures, or why it is refused."""
    compile_work = compile_training if case.work == "train" else compile_sweep
    try:
        return compile_work(validate(TrainingConfig, training_config(case), case.name), case)
    except UserError as error:
        return {"message": str(error).removeprefix(f"{case.name}: ")}


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


def compile_training(config: TrainingConfig, case: Case) -> dict[str, Any]:
    """Compile the training step."""
    placement = Placement(config.mesh, parse_target(case.target).devices())
    check_backend(config.model, placement.platform)
    placement.check_stages(config.stages)
    program = Program(resolve_run(config), VOCABULARY, placement)
    plan = plan_stage(program, 0, validates=False)
    if plan.refusal is not None:
        raise plan.refusal
    assert plan.bytes is not None
    return figures(plan.bytes.total, plan.seconds, placement)


def compile_sweep(config: TrainingConfig, case: Case) -> dict[str, Any]:
    """Compile the program of a sweep's longest windows: with the model's map, if it has one."""
    target = parse_target(case.target)
    raw = {"lengths": [TRAINED, READ], "scalings": ["trained"], "protocols": ["same_tokens"]}
    sweep = validate(SweepConfig, raw, case.name)
    mesh = mesh_for(config, target.count)
    if case.split == "context":
        mesh = mesh.model_copy(update={"data": 1, "context": SHARED})
    try:
        check_mesh(config.model, mesh, [config.rope.map])
    except ValueError as error:
        raise UserError(str(error)) from None
    placement = Placement(mesh, target.devices())
    check_backend(config.model, placement.platform)
    available = device_bytes(placement.device)
    model, memory = place_model(resolve_run(config), VOCABULARY, placement, available)
    memory.check([READ])
    resolved = resolve_run_sweep(sweep, config, [config.last_step])
    plans = plan_readings(config, resolved, model, memory.placement, memory.abstract_params)
    ((_, used, seconds),) = plans
    return figures(used, seconds, placement)


def figures(used: int, seconds: float, placement: Placement) -> dict[str, Any]:
    """Return what a compiled program's line in the results says."""
    gib = {"gib": used / 2**30, "available": device_bytes(placement.device) / 2**30}
    return {key: round(value, 2) for key, value in gib.items()} | {"seconds": round(seconds, 1)}


def read_results() -> dict[str, Result]:
    """Return the results in docs/aot.csv by name."""
    with RESULTS.open(encoding="utf-8", newline="") as file:
        return {row["name"]: row for row in csv.DictReader(file)}


def write_results(results: Mapping[str, Result]) -> None:
    """Write results in the order of the matrix."""
    with RESULTS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(results[case.name] for case in cases() if case.name in results)


def result_table(platform: str) -> str:
    """Return the results of a platform as a table: programs down, targets and meshes across."""
    results, rows = read_results(), dict[tuple[str, ...], list[str]]()
    heads: dict[str, None] = {}
    for case in cases():
        if parse_target(case.target).chip.platform == platform:
            heads[case.target if case.split == "one" else f"{case.target} {case.split}"] = None
            row = rows.setdefault((case.model, case.attention, case.work), [])
            row.append(_cell(results.get(case.name)))
    lines = [f"| model | attention | work | {' | '.join(heads)} |", "|---" * (3 + len(heads)) + "|"]
    lines += [f"| {' | '.join((*names, *cells))} |" for names, cells in rows.items()]
    return "\n".join(lines) + "\n"


def _cell(result: Result | None) -> str:
    if result is None:
        return ""
    if result["status"] == "compiled":
        return f"{float(result['gib']):.1f}"
    if result["status"] == "refused":
        return "memory" if " GiB" in result["message"] else "no"
    return "failed"


def main(argv: list[str]) -> None:
    if not argv or argv[0] in ("-h", "--help"):
        print(__doc__)
        return
    first, *words = argv
    if first == "matrix":
        sys.exit(run_matrix(words))
    if first == "case":
        (case,) = (case for case in cases() if case.name == words[0])
        print(json.dumps(compile_case(case)))
        return
    target = parse_target(first)
    plan(words, target.devices())


if __name__ == "__main__":
    cli.run(main)
