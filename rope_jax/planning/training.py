"""What a training run takes: parameters, tokens, FLOPs, memory, exchanges and time."""

import math
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table

from rope_jax.config.training import Config
from rope_jax.console import print_overview, print_wrapped
from rope_jax.devices.hardware import device_line
from rope_jax.devices.memory import device_bytes, is_host_memory
from rope_jax.devices.mesh import Placement
from rope_jax.devices.peak import peak_flops
from rope_jax.devices.targets import Target
from rope_jax.model.cost import flops_per_token, parameter_count
from rope_jax.model.resolve import for_platform, numbers_in_words
from rope_jax.planning.compiled import roofline
from rope_jax.planning.stage import StagePlan, plan_stage
from rope_jax.planning.tables import TIME_NOTES, Timed, quantities, time_table, unit_for
from rope_jax.training.limits import check_compile_time
from rope_jax.training.program import Program


def plan_training(
    config: Config, vocab_size: int, console: Console, target: Target | None = None
) -> None:
    """Print what a training run takes; the stages are compiled for it, and nothing is trained.

    vocab_size: the tokenizer's. No text is read.
    target: the devices to plan for; None: this machine's.

    UserError: the run does not fit; the message names the key to change.
    """
    placement = Placement(config.mesh, None if target is None else target.devices())
    config = for_platform(config, placement.platform)
    placement.check_stages(config.stages)
    check_compile_time(config)
    program = Program(config, vocab_size, placement)
    _print_overview(console, config, vocab_size, placement, target)
    validates = config.data.validation_fraction > 0
    with console.status("compiling"):
        plans = [plan_stage(program, n, validates=validates) for n in range(len(config.stages))]
    console.print(_memory_table(config, plans, device_bytes(placement.device)))
    copies = ", with the copies that saving makes" if is_host_memory(placement.device) else ""
    note = f"* on paper, at least this; compiled: what the compiler plans for{copies}"
    print_wrapped(console, note)
    if target is not None:
        _print_times(console, config, plans, placement, target)
    for plan in plans:
        if plan.refusal is not None:
            raise plan.refusal


def _print_overview(
    console: Console,
    config: Config,
    vocab_size: int,
    placement: Placement,
    target: Target | None,
) -> None:
    longest = max(stage.length for stage in config.stages)
    parameters = parameter_count(config.model, vocab_size, longest)
    tokens = [stage.steps * stage.batch_size * stage.seq_len for stage in config.stages]
    flops = sum(
        count * flops_per_token(config.model, vocab_size, stage.seq_len)
        for count, stage in zip(tokens, config.stages, strict=True)
    )
    devices = None if target is None else list(placement.mesh.devices.flat)
    peak, source = peak_flops(devices)
    facts = {
        "model": f"{parameters:,} parameters, a vocabulary of {vocab_size:,}",
        "training": f"{sum(tokens):,} tokens in {sum(s.steps for s in config.stages):,} steps, "
        f"{sum(tokens) / parameters:.3g} per parameter",
        "compute": f"{flops:.3g} FLOPs: at least {_duration(flops / peak)} at the peak of "
        f"{peak / 1e9:,.0f} GFLOP/s ({source})",
        "devices": device_line(numbers_in_words(config.model), devices),
    }
    if placement.mesh.size > 1:
        axes = placement.mesh.shape.items()
        facts["mesh"] = " × ".join(f"{name} {size}" for name, size in axes if size > 1)
    if target is not None:
        facts["target"] = f"{target.text}; {target.chip.source}"
    print_overview(console, f"plan of {config.name}", facts)


def _memory_table(config: Config, plans: Sequence[StagePlan], available: float | int) -> Table:
    """Return a table with one column per stage: its memory on each device."""
    unit, size = unit_for(max(plan.bytes or plan.paper.total for plan in plans))

    def amounts(of: Callable[[StagePlan], float | int | None]) -> list[str]:
        found = [of(plan) for plan in plans]
        return ["" if n is None else f"{n / size:,.2f}" for n in found]

    rows = {
        "windows": [f"{stage.batch_size:,} × {stage.seq_len:,}" for stage in config.stages],
        "parameters": amounts(lambda plan: plan.paper.parameters),
        "optimizer": amounts(lambda plan: plan.paper.optimizer),
        "gradients*": amounts(lambda plan: plan.paper.gradients),
        "activations*": amounts(lambda plan: plan.paper.activations),
        "logits*": amounts(lambda plan: plan.paper.logits),
        "estimate*": amounts(lambda plan: plan.paper.total),
        "compiled": amounts(lambda plan: plan.bytes),
    }
    if math.isfinite(available):
        rows["available"] = amounts(lambda _: available)
        rows["left"] = amounts(lambda plan: available - (plan.bytes or plan.paper.total))
    names = [f"stage {number}" for number in range(len(plans))]
    return quantities(f"memory per device, in {unit}", names, rows)


def _print_times(
    console: Console,
    config: Config,
    plans: Sequence[StagePlan],
    placement: Placement,
    target: Target,
) -> None:
    """Print how long a step of each stage takes at least, if any was compiled."""
    devices = list(placement.mesh.devices.flat)
    timed = [
        Timed(
            f"stage {number}",
            stage.batch_size * stage.seq_len,
            plan.paper.flops,
            plan.bytes or plan.paper.total,
            plan.program,
            roofline(plan.program, plan.paper.flops + plan.paper.repeated_flops, target, devices),
        )
        for number, (stage, plan) in enumerate(zip(config.stages, plans, strict=True))
        if plan.program is not None
    ]
    if timed:
        console.print(time_table("a step, on each device", timed, target.chip.flops))
        for note in TIME_NOTES:
            print_wrapped(console, note)


def _duration(seconds: float) -> str:
    """Return a time in the unit that makes it readable."""
    for size, unit in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.1f} seconds"
