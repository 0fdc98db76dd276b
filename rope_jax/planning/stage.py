"""What one stage of training takes on each device it is planned for: bytes, FLOPs, exchanges."""

import time
from dataclasses import dataclass

import jax

from rope_jax.devices.memory import device_bytes, out_of_memory
from rope_jax.errors import UserError
from rope_jax.model.cost import flops_per_token, repeated_flops_per_token
from rope_jax.planning.compiled import CompiledProgram, check_on_chip, describe, needed_bytes
from rope_jax.training.limits import compiled_bytes
from rope_jax.training.need import StageNeed
from rope_jax.training.program import Program, bytes_per_device


@dataclass(frozen=True)
class OnPaper:
    """What a step takes on each device, in bytes and FLOPs, before anything is compiled.

    Parameters and optimizer are exact; the others are lower estimates.

    flops: of the model.
    repeated_flops: what remat adds to them.
    total: with validation if that takes more, so it may exceed the sum of the others.
    """

    parameters: int
    optimizer: int
    gradients: int
    activations: int
    logits: int
    batch: int
    total: int
    flops: float
    repeated_flops: float


@dataclass(frozen=True)
class StagePlan:
    """A stage on paper and compiled.

    bytes:   what the compiler plans for on each device; None: it was not asked, or does not say.
    program: None: it was not compiled, or is too large.
    refusal: why the stage cannot be trained, with the key to change; None: it can.
    """

    paper: OnPaper
    bytes: int | None = None
    program: CompiledProgram | None = None
    refusal: UserError | None = None


def plan_stage(program: Program, number: int, *, validates: bool) -> StagePlan:
    """Compile the programs of a stage, unless it is too large already on paper.

    validates: whether there is text to validate on.
    """
    placement = program.placement
    need = StageNeed.of_stage(program.config, number, program.vocab_size, placement)
    available, paper = device_bytes(placement.device), _on_paper(program, number, need)
    if paper.total > available:
        in_validation = need.is_largest_in_validation()
        return StagePlan(paper, refusal=need.refusal(paper.total, available, in_validation))
    began = time.perf_counter()
    try:
        step = program.stage(number).compiled_step
        used = compiled_bytes(program, number, validates=validates)
    except Exception as error:
        if not out_of_memory(error):
            raise
        check_on_chip(error, program.config.model.attention)
        needed = needed_bytes(error)
        refusal = need.refusal(needed or paper.total, available, in_validation=False)
        return StagePlan(paper, needed, refusal=refusal)
    made = describe(step, time.perf_counter() - began, placement.mesh.size)
    if used <= available:
        return StagePlan(paper, used, made)
    in_validation = used > program.stage(number).train_bytes
    return StagePlan(paper, used, made, need.refusal(used, available, in_validation))


def _on_paper(program: Program, number: int, need: StageNeed) -> OnPaper:
    config, placement, state = program.config, program.placement, program.abstract_state
    stage, devices, parts = config.stages[number], placement.mesh.size, need.by_part()
    tokens = stage.batch_size * stage.seq_len / devices
    sizes = config.model, program.vocab_size, stage.seq_len
    return OnPaper(
        parameters=sum(map(bytes_per_device, jax.tree.leaves(state.params))),
        optimizer=sum(map(bytes_per_device, jax.tree.leaves(state.opt_state))),
        gradients=parts.gradients // placement.parameter_shards * (1 + parts.accumulates),
        activations=parts.kept // devices,
        logits=parts.logits // devices,
        batch=parts.batch // devices,
        total=need.bytes(),
        flops=tokens * flops_per_token(*sizes),
        repeated_flops=tokens * repeated_flops_per_token(*sizes),
    )
