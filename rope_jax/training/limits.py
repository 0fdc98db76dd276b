"""Rejecting a run that is too large for this machine, before any work starts.

First on paper, which takes no time, and then by the compiler's own figures.
"""

from collections.abc import Callable, Iterable

from rope_jax import stopping
from rope_jax.config.training import Config
from rope_jax.devices import processes
from rope_jax.devices.memory import device_bytes, in_gib, is_host_memory, shortage_as
from rope_jax.devices.mesh import Placement
from rope_jax.errors import UserError
from rope_jax.model.decoder import vocabulary_size
from rope_jax.training.need import StageNeed
from rope_jax.training.program import Program

# Compiling takes 0.3 to 0.4 seconds per unrolled layer on two CPU cores: this many, a minute.
MOST_COMPILED_LAYERS = 128
# On a CPU, measured: how far the memory that a run takes in the end exceeds the compiler's figure
# and the copies that saving makes.
_LARGEST_UNDERESTIMATE = 1.6


def check_size(config: Config, vocab_size: int, placement: Placement) -> None:
    """UserError, naming the key to change, if a run needs too much memory or compile time.

    Likewise if its vocabulary does not hold the tokenizer's, whose size is `vocab_size`.
    `training_bytes` is a lower estimate: a run that passes may still be too large, which
    `compile_stages` finds out. All processes must call this together.
    """
    vocab_size = vocabulary_size(config.model, vocab_size)
    check_compile_time(config)
    available = processes.smallest(device_bytes(placement.device))
    for number in range(len(config.stages)):
        need = StageNeed.of_stage(config, number, vocab_size, placement)
        if need.bytes() > available:
            raise need.refusal(need.bytes(), available, need.is_largest_in_validation())


def compile_stages(
    program: Program, numbers: Iterable[int], *, validates: bool, warn: Callable[[str], None]
) -> None:
    """Compile these stages' programs. UserError, naming the key to change, if one is too large.

    validates: whether there is text to validate on.
    warn: called with one line if a stage may turn out too large.

    All processes must call this together.
    """
    device = program.placement.device
    available = processes.smallest(device_bytes(device))
    for number in numbers:
        stopping.check()
        need = StageNeed.of_stage(program.config, number, program.vocab_size, program.placement)
        with shortage_as(
            f"stages[{number}]: there is not enough memory to compile it; {need.advice(0)}"
        ):
            training, validation = _planned_bytes(program, number, validates)
        used = compiled_bytes(program, number, validates=validates)
        if used > available:
            raise need.refusal(used, available, in_validation=validation > training)
        if is_host_memory(device) and used * _LARGEST_UNDERESTIMATE > available:
            warn(
                f"stages[{number}]: takes at least {in_gib(used)} GiB per device and may take "
                f"{in_gib(used * _LARGEST_UNDERESTIMATE)}, and there are {in_gib(available)}; if "
                f"the process is killed without a message, {need.advice(available / 2)}"
            )


def estimated_bytes(config: Config, number: int, vocab_size: int, placement: Placement) -> int:
    """Return what stage `number` takes on each device, in bytes, by a lower estimate."""
    return StageNeed.of_stage(config, number, vocab_size, placement).bytes()


def compiled_bytes(program: Program, number: int, *, validates: bool) -> int:
    """Return what stage `number` takes on each device, in bytes, by the compiler's figures.

    On a CPU, the copies of the state while a checkpoint is written come on top.
    validates: as in `compile_stages`.
    """
    need = StageNeed.of_stage(program.config, number, program.vocab_size, program.placement)
    return need.saving() + max(_planned_bytes(program, number, validates))


def _planned_bytes(program: Program, number: int, validates: bool) -> tuple[int, int]:
    """Return the compiler's figures for a training step, and for validation (0: there is none)."""
    stage = program.stage(number)
    return stage.train_bytes, stage.validation_bytes if validates else 0


def shortage(number: int) -> str:
    """Return what to say if memory runs out while stage `number` is trained."""
    key = f"stages.{number}"
    return (
        f"stages[{number}]: there is not enough memory; end other programs, and the same command "
        f"continues from the newest checkpoint; or raise {key}.grad_accumulation, or lower "
        f"{key}.batch_size or {key}.seq_len, under another name"
    )


def check_compile_time(config: Config) -> None:
    """UserError if compiling a stage would take more than about a minute."""
    layers, period = config.model.num_hidden_layers, len(config.sliding_windows)
    if config.model.layers == "unrolled":
        if layers > MOST_COMPILED_LAYERS:
            raise UserError(
                f"model.num_hidden_layers: {layers:,} unrolled layers would take minutes to "
                "compile; set model.layers=scanned, which compiles one, or use at most "
                f"{MOST_COMPILED_LAYERS}"
            )
    elif (compiled := period + layers % period) > MOST_COMPILED_LAYERS:
        raise UserError(
            f"rope.layer_pattern: with {period:,} elements for {layers:,} layers, {compiled:,} "
            "layers would be compiled one by one, which would take minutes; use at most "
            f"{MOST_COMPILED_LAYERS // 2}"
        )
