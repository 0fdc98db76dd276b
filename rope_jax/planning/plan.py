"""What a training run or a sweep takes: tokens, FLOPs, and memory by the compiler's figures."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console

from rope_jax.config.model import differ_by_head
from rope_jax.config.resolve import check_backend, describe_precision, resolve_run, vocabulary_size
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.tasks import LongPPL
from rope_jax.config.tokenizer import BPETokenizerConfig
from rope_jax.config.training import TrainingConfig
from rope_jax.console import describe_duration, print_overview, print_table, print_wrapped
from rope_jax.data.tokenizers import open_tokenizer
from rope_jax.devices.hardware import device_line, peak_flops, reached_flops
from rope_jax.devices.memory import check_fits, device_bytes, is_host_memory, program_bytes
from rope_jax.devices.mesh import Placement
from rope_jax.devices.window_memory import bytes_per_device, parameter_count
from rope_jax.errors import UserError, shortage_as
from rope_jax.evaluation.decoder import scores_of_last
from rope_jax.evaluation.measure import Reader
from rope_jax.evaluation.plan import Job, ResolvedSweep, SweepPlan
from rope_jax.model.cost import flops_per_token, window_flops
from rope_jax.model.decoder import LanguageModel, Params
from rope_jax.runs.directory import RunDirectory
from rope_jax.sweeps.model import mesh_for, place_model, sweep_flops
from rope_jax.sweeps.resolve import resolve_run_sweep
from rope_jax.tasks import TokenizerView
from rope_jax.training.memory import StageBytes, check_stage, compiled_bytes, stage_bound
from rope_jax.training.program import Program
from rope_jax.training.run import flops_after


@dataclass(frozen=True)
class StageCost:
    """A stage as it would run on each device.

    bound: of its memory, without compiling.
    bytes: by the compiler, or None if the stage is too large to compile.
    seconds: what compiling took.
    refusal: why the stage cannot be trained, with the key to change, or None.
    """

    bound: StageBytes
    bytes: StageBytes | None
    seconds: float
    refusal: UserError | None


def plan_training(
    config: TrainingConfig, vocab_size: int, console: Console, devices: Sequence[Any] | None = None
) -> None:
    """Print the cost of a training run, compiled for this machine's devices or others."""
    placement = Placement(config.mesh, devices)
    config = resolve_run(config, placement.platform)
    check_backend(config.model, placement.platform)
    placement.check_stages(config.stages)
    program = Program(config, vocab_size, placement)
    parameters = parameter_count(program.model)
    tokens = [span.stage.steps * span.tokens_per_step for span in config.spans]
    flops = flops_after(0, config, program.vocab_size)
    devices = list(placement.mesh.devices.flat)
    facts = {
        "model": f"{program.describe_parameters()}, a vocabulary of {program.vocab_size:,}",
        "training": f"{sum(tokens):,} tokens in {config.last_step:,} steps, "
        f"{sum(tokens) / parameters:.3g} per parameter",
        "compute": f"{flops:.3g} FLOPs",
        "time": _describe_time(flops, devices, "compiling and validation not counted"),
        "devices": device_line(describe_precision(config.model), devices),
    }
    if placement.mesh.size > 1:
        axes = placement.mesh.shape.items()
        facts["mesh"] = " × ".join(f"{name} {size}" for name, size in axes if size > 1)
    print_overview(console, f"plan of {config.name}", facts)
    validates = config.data.validation_fraction > 0
    with console.status("compiling"):
        plans = [plan_stage(program, n, validates=validates) for n in range(len(config.stages))]
    _print_stages(console, program, plans)
    copies = ", with the copies that saving makes" if is_host_memory(placement.device) else ""
    print_wrapped(console, f"* without compiling; compiled: what the compiler plans for{copies}")
    for plan in plans:
        if plan.refusal is not None:
            raise plan.refusal


def _describe_time(flops: float, devices: Sequence[Any] | None, without: str) -> str:
    peak, source = peak_flops(devices)
    reached = reached_flops(peak, devices)
    speed = f"{reached / 1e9:,.0f} GFLOP/s, {reached / peak:.0%} of {peak / 1e9:,.0f} ({source})"
    return f"{describe_duration(flops / reached)}, {without}; at {speed}"


def plan_stage(program: Program, number: int, *, validates: bool) -> StageCost:
    """Compile the programs of a stage, unless it is too large already by a lower bound."""
    available = device_bytes(program.placement.device)
    bound, began = stage_bound(program, number), time.perf_counter()
    needed = refusal = None
    try:
        check_stage(program, number, bound, available)
        with shortage_as(f"stages[{number}]: does not fit"):
            needed = compiled_bytes(program, number, validates=validates)
        check_stage(program, number, needed, available)
    except UserError as error:
        refusal = error
    return StageCost(bound, needed, time.perf_counter() - began, refusal)


def planned_vocabulary(config: TrainingConfig, run: Path | None = None) -> int:
    """Return the size of the model's vocabulary, without training a tokenizer.

    run: the directory of a run, which has its own copy of the tokenizer. Without one, a tokenizer
    of type `bpe` is taken to have as many tokens as it is asked for, the most that it may get.

    UserError: the tokenizer cannot be read, or the vocabulary that the model states is too small.
    """
    if run is not None:
        size = RunDirectory(run).open_tokenizer(config).vocab_size
    elif isinstance(config.tokenizer, BPETokenizerConfig):
        size = config.tokenizer.vocab_size
    else:
        known = config.model.vocab_size
        size = open_tokenizer(config.tokenizer, config.data, known=known).vocab_size
    return vocabulary_size(config.model, size)


def _print_stages(console: Console, program: Program, plans: Sequence[StageCost]) -> None:
    config, state = program.config, program.abstract_state
    available = device_bytes(program.placement.device)
    used = [(plan.bytes or plan.bound).total for plan in plans]
    unit, size = ("GiB", 2**30) if max(used) >= 2**30 else ("MiB", 2**20)
    stages: list[dict[str, str]] = []
    for span, plan, bytes_used in zip(config.spans, plans, used, strict=True):
        stage = span.stage
        flops = flops_per_token(program.model.spec, program.vocab_size, stage.seq_len)
        cells = {
            "windows": f"{stage.batch_size:,} × {stage.seq_len:,}",
            "parameters": f"{bytes_per_device(state.params) / size:,.2f}",
            "optimizer": f"{bytes_per_device(state.opt_state) / size:,.2f}",
            "at least*": f"{plan.bound.total / size:,.2f}",
            "compiled": f"{plan.bytes.total / size:,.2f}" if plan.bytes else "",
        }
        if math.isfinite(available):
            cells["available"] = f"{available / size:,.2f}"
            cells["left"] = f"{(available - bytes_used) / size:,.2f}"
        of_step = span.tokens_per_step * flops / program.placement.mesh.size
        cells["FLOPs of a step"] = f"{of_step:.3g}"
        cells["compiling took"] = f"{plan.seconds:,.1f} s" if plan.bytes else ""
        stages.append(cells)
    headings = ["", *(f"stage {number}" for number in range(len(stages)))]
    rows = [[name, *(cells[name] for cells in stages)] for name in stages[0]]
    console.print(f"per device, memory in {unit}", style="bold")
    print_table(console, headings, rows)


def plan_sweep(
    training: TrainingConfig,
    config: SweepConfig,
    vocab_size: int,
    console: Console,
    devices: Sequence[Any] | None = None,
) -> None:
    """Print the cost of a sweep of a run's last stage, on this machine's devices or others.

    Neither weights nor texts are read. UserError: the sweep does not suit the run, or does not fit.
    """
    count, platform = None, None
    if devices is not None:
        count, platform = len(devices), devices[0].platform
    training = resolve_run(training, platform, config.attention)
    sweep = resolve_run_sweep(config, training, [training.last_step])
    check_backend(training.model, platform)
    config, window, read = sweep.config, training.stages[-1].seq_len, sweep.readable
    whole_heads = differ_by_head(entry.map for entry in config.scalings)
    placement = Placement(mesh_for(training, count, whole_heads=whole_heads), devices)
    available = device_bytes(placement.device)
    model, memory = place_model(training, vocab_size, placement, available, config.memory_gib)
    entries = [entry.label for entry in config.scalings]
    measurements = len(entries) * len(config.protocols) * len(read)
    facts = {
        "window": f"{window:,} tokens",
        "lengths": ", ".join(f"{n:,}" for n in read),
        "scalings": ", ".join(entries),
        "protocols": ", ".join(config.protocols),
        "measurements": f"{measurements:,} per checkpoint: every scaling at every length, "
        "by protocol",
        "blocks": f"max_blocks {config.max_blocks}, in each of at most {config.max_documents} "
        "documents",
        "devices": device_line(describe_precision(training.model), devices),
    }
    facts["memory"] = memory.describe(read[-1])
    print_overview(console, f"plan of the sweep {config.name} of {training.name}", facts)
    memory.check(read)
    # as often as there are documents, and tasks, which are not of documents, once
    without_tasks = replace(sweep, config=config.model_copy(update={"tasks": ()}))
    first, other = (
        sweep_flops(_plan_one_document(training, each), model.spec, model.vocab_size)
        for each in (sweep, without_tasks)
    )
    flops = first + (config.max_documents - 1) * other
    print_wrapped(console, f"compute: {flops:.3g} FLOPs for one block of each document")
    print_wrapped(console, f"time: {_describe_time(flops, devices, 'compiling not counted')}")
    if devices is not None:
        shared = memory.sharing(read[-1]).placement
        with console.status("compiling"):
            plans = plan_readings(training, sweep, model, shared, memory.abstract_params)
        rows = shared.row_shards
        flops = rows * window_flops(model.spec, model.vocab_size, read[-1], read[-1])
        title = (
            f"{rows:,} × {read[-1]:,} tokens at a time, {flops / len(devices):.3g} FLOPs per device"
        )
        console.print(title, style="bold")
        cells = [(name, f"{used / 2**30:,.3f}", f"{s:,.1f} s") for name, used, s in plans]
        print_table(console, ("", "GiB per device", "compiling took"), cells)


def plan_readings(
    training: TrainingConfig,
    sweep: ResolvedSweep,
    model: LanguageModel,
    placement: Placement,
    like: Params,
) -> list[tuple[str, int, float]]:
    """Compile a program, with a window per device, for each kind of reading the longest length.

    Return the name of each, its memory on each device in bytes, and the seconds it took to compile.
    """
    rows, length = placement.row_shards, sweep.readable[-1]
    of_last = scores_of_last(model, placement)
    reader = Reader(of_last, like)
    advice = "leave out the longest length, or take more devices, which then share windows"
    if training.model.backend.quadratic_memory:
        advice = f"attention=blockwise may take less; or {advice}"
    reading = f"lengths: {rows:,} × {length:,} tokens at a time"
    by_program: dict[str, list[Job]] = {}
    for job in _plan_one_document(training, sweep).jobs():
        if job.batch.length == length:
            by_program.setdefault(job.batch.structure, []).append(job)
    plans = []
    for jobs in by_program.values():
        last = max(job.last for job in jobs)
        rotary = jax.tree.map(
            lambda leaf: np.broadcast_to(leaf, (leaf.shape[0], rows, *leaf.shape[2:])),
            jobs[0].batch.rotary,
        )
        began = time.perf_counter()
        with shortage_as(f"{reading} do not fit; {advice}"):
            compiled = reader.compile(rows, length, last, rotary)
        seconds = time.perf_counter() - began
        used = program_bytes(compiled, device=placement.device)
        check_fits(f"{reading} take", used, device_bytes(placement.device), advice)
        name = "all targets" if last == length else f"last {last:,}"
        if jobs[0].map:
            name = f"{jobs[0].map.type}, {name}"
        plans.append((name, used, seconds))
    return plans


def _plan_one_document(training: TrainingConfig, sweep: ResolvedSweep) -> SweepPlan:
    """Plan a sweep of a run's last stage, of zeros that are one block of text."""
    # a mask of key tokens is of other documents than these zeros, and is read as same_tokens is
    tasks = tuple(task for task in sweep.config.tasks if not isinstance(task, LongPPL))
    config = sweep.config.model_copy(update={"bos": "none", "tasks": tasks})
    return SweepPlan(
        replace(sweep, config=config),
        training.rotary_layers,
        training.trained(len(training.stages) - 1),
        documents=[np.zeros(sweep.lengths[-1] + 1, np.int32)],
        bos_ids=(),
        words=TokenizerView(  # only their number matters here
            lambda text: np.frombuffer(text.encode(), np.uint8), 256, bos_ids=(), has_words=True
        ),
    )
