"""Rejecting a run that is too large for this machine: by a lower bound, then by the compiler."""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple, get_args

import jax

from rope_jax import stopping
from rope_jax.config.model import RematName
from rope_jax.devices.memory import check_fits, in_gib, is_host_memory, least_available
from rope_jax.devices.window_memory import bytes_per_device, step_bound
from rope_jax.errors import shortage_as
from rope_jax.training.program import Program

# On a CPU, measured: what writing a checkpoint takes, in times the state; and how far the memory
# that a run takes in the end exceeds the compiler's figure and these copies.
_COPIES, _LARGEST_UNDERESTIMATE = 2, 1.6
_LEAST_REMAT = get_args(RematName)[-1]


class StageBytes(NamedTuple):
    """Memory of a stage on each device, and whether validation is what takes it."""

    total: int
    in_validation: bool = False


def stage_bound(program: Program, number: int) -> StageBytes:
    """Lower bound on the memory of stage `number`, without compiling it."""
    stage, state = program.config.stages[number], program.abstract_state
    tokens = stage.batch_size * stage.seq_len // program.placement.mesh.size
    sizes = bytes_per_device(program.trained(state)), bytes_per_device(state)
    bound = step_bound(program.model.spec, *sizes, tokens, stage.grad_accumulation)
    return StageBytes(bound + _saving_bytes(program))


def compiled_bytes(program: Program, number: int, *, validates: bool) -> StageBytes:
    """Memory of stage `number` by the compiler's figures; it is compiled for them."""
    stage = program.stages[number]
    step, validation = stage.train_bytes, stage.validation_bytes if validates else 0
    return StageBytes(max(step, validation) + _saving_bytes(program), validation > step)


def _saving_bytes(program: Program) -> int:
    """Return the bytes of the copies of the state while a checkpoint is written, on a CPU."""
    if not is_host_memory(program.placement.device):
        return 0
    size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(program.abstract_state))
    return _COPIES * size // program.placement.mesh.size


def check_size(program: Program) -> None:
    """UserError, naming the key, if a run surely takes too much; for all processes together."""
    available = least_available(program.placement.device)
    for number in range(len(program.config.stages)):
        check_stage(program, number, stage_bound(program, number), available)


def compile_stages(
    program: Program, numbers: Iterable[int], *, validates: bool, warn: Callable[[str], None]
) -> None:
    """Compile these stages, in all processes together. UserError as that of `check_size`."""
    device = program.placement.device
    available = least_available(device)
    for number in numbers:
        stopping.check()
        advice = memory_advice(number)
        with shortage_as(f"stages[{number}]: there is not enough memory to compile it; {advice}"):
            needed = compiled_bytes(program, number, validates=validates)
        check_stage(program, number, needed, available)
        possible = needed.total * _LARGEST_UNDERESTIMATE
        if is_host_memory(device) and possible > available:
            warn(
                f"stages[{number}]: takes at least {in_gib(needed.total)} GiB per device and may "
                f"take {in_gib(possible)}, and there are {in_gib(available)}; if the process is "
                f"killed without a message, {advice}"
            )


def check_stage(program: Program, number: int, needed: StageBytes, available: float | int) -> None:
    """UserError if a stage needs more memory than there is on each device."""
    state, shards = program.abstract_state, program.placement.parameter_shards
    parameters = bytes_per_device(state) + bytes_per_device(program.trained(state))
    check_fits(
        "model: its parameters, their gradients and the optimizer state take",
        parameters,
        available,
        "lower hidden_size, intermediate_size or num_hidden_layers, or split it with mesh.fsdp "
        f"over at least {math.ceil(parameters * shards / max(available, 1)):,} devices",
    )
    stage, in_validation = program.config.stages[number], needed.in_validation
    windows = stage.batch_size // (1 if in_validation else stage.grad_accumulation)
    where = " in validation" if in_validation else ""
    check_fits(
        f"stages[{number}]: {windows:,} × {stage.seq_len:,} tokens at a time{where} take",
        needed.total,
        available,
        memory_advice(number),
    )


def memory_advice(number: int) -> str:
    """Return what lowers the memory of a stage."""
    key = f"stages.{number}"
    return (
        f"lower {key}.batch_size or {key}.seq_len, raise {key}.grad_accumulation, set "
        f"model.remat={_LEAST_REMAT} with model.layers=scanned or model.attention=blockwise, or "
        "split windows over more devices with mesh.context"
    )
