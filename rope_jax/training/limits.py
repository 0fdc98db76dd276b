"""Rejecting a run that is too large for this machine, before any work starts.

First on paper, which takes no time, and then by the compiler's own figures.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from rope_jax import stopping
from rope_jax.config.model import ModelConfig
from rope_jax.config.training import Config
from rope_jax.devices import processes
from rope_jax.devices.memory import device_bytes, in_gib, is_host_memory, shortage_as
from rope_jax.devices.mesh import Placement
from rope_jax.errors import UserError
from rope_jax.model.cost import TrainingBytes, training_bytes
from rope_jax.model.decoder import vocabulary_size
from rope_jax.training.program import Program

# Compiling takes 0.3 to 0.4 seconds per unrolled layer on two CPU cores: this many, a minute.
MOST_COMPILED_LAYERS = 128
# On a CPU, measured: what writing a checkpoint takes, in times the state, and how far the memory
# that a run takes in the end exceeds the compiler's figure and these copies.
_COPIES, _LARGEST_UNDERESTIMATE = 2, 1.6


def check_size(config: Config, vocab_size: int, placement: Placement) -> None:
    """UserError, naming the key to change, if a run needs too much memory or compile time.

    Likewise if its vocabulary does not hold the tokenizer's, whose size is `vocab_size`.
    `training_bytes` is a lower estimate: a run that passes may still be too large, which
    `compile_stages` finds out. All processes must call this together.
    """
    vocab_size = vocabulary_size(config.model, vocab_size)
    _check_compile_time(config)
    available = processes.smallest(device_bytes())
    for number in range(len(config.stages)):
        need = _Need.of_stage(config, number, vocab_size, placement)
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
    available = processes.smallest(device_bytes())
    for number in numbers:
        stopping.check()
        need = _Need.of_stage(program.config, number, program.vocab_size, program.placement)
        with shortage_as(
            f"stages[{number}]: there is not enough memory to compile it; {need.advice(0)}"
        ):
            training, validation = _planned_bytes(program, number, validates)
        used = compiled_bytes(program, number, validates=validates)
        if used > available:
            raise need.refusal(used, available, in_validation=validation > training)
        if is_host_memory() and used * _LARGEST_UNDERESTIMATE > available:
            warn(
                f"stages[{number}]: takes at least {in_gib(used)} GiB per device and may take "
                f"{in_gib(used * _LARGEST_UNDERESTIMATE)}, and there are {in_gib(available)}; if "
                f"the process is killed without a message, {need.advice(available / 2)}"
            )


def estimated_bytes(config: Config, number: int, vocab_size: int, placement: Placement) -> int:
    """Return what stage `number` takes on each device, in bytes, by a lower estimate."""
    return _Need.of_stage(config, number, vocab_size, placement).bytes()


def compiled_bytes(program: Program, number: int, *, validates: bool) -> int:
    """Return what stage `number` takes on each device, in bytes, by the compiler's figures.

    On a CPU, the copies of the state while a checkpoint is written come on top.
    validates: as in `compile_stages`.
    """
    need = _Need.of_stage(program.config, number, program.vocab_size, program.placement)
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


def _check_compile_time(config: Config) -> None:
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


@dataclass(frozen=True)
class _Need:
    """The settings of one stage that determine how much memory it needs."""

    number: int
    model: ModelConfig
    vocab_size: int
    seq_len: int
    batch_size: int
    grad_accumulation: int
    sliding_windows: tuple[int | None, ...]
    placement: Placement
    validates: bool

    @classmethod
    def of_stage(
        cls, config: Config, number: int, vocab_size: int, placement: Placement
    ) -> "_Need":
        stage = config.stages[number]
        return cls(
            number=number,
            model=config.model,
            vocab_size=vocab_size,
            seq_len=stage.seq_len,
            batch_size=stage.batch_size,
            grad_accumulation=stage.grad_accumulation,
            sliding_windows=config.sliding_windows,
            placement=placement,
            # with a fraction of 0 there may be no text to validate on
            validates=config.data.validation_fraction > 0,
        )

    def by_part(self) -> TrainingBytes:
        return training_bytes(
            self.model,
            self.vocab_size,
            self.seq_len,
            self.batch_size,
            self.grad_accumulation,
            self.sliding_windows,
        )

    def bytes(self) -> int:
        """Bytes needed on each device, by a lower estimate."""
        return self.saving() + max(self._training(), self._validation())

    def _training(self) -> int:
        return self.by_part().per_device(self.placement.mesh.size, self.placement.fsdp)

    def _validation(self) -> int:
        if not self.validates:
            return 0
        return self.by_part().validation_per_device(self.placement.mesh.size, self.placement.fsdp)

    def is_largest_in_validation(self) -> bool:
        """Whether validation needs more than a training step."""
        return self._validation() > self._training()

    def saving(self) -> int:
        """Bytes for each device of the copies of the state while a checkpoint is written."""
        return _COPIES * self.by_part().state // self.placement.mesh.size if is_host_memory() else 0

    def refusal(self, used: int, available: float | int, in_validation: bool) -> UserError:
        """Return the error for a stage that takes at least `used` bytes on each device."""
        there_are = f"GiB per device, but there are only {in_gib(available)}"
        parameters = self.by_part().parameters_per_device(self.placement.fsdp)
        if parameters > available:
            return UserError(
                "model: its parameters, their gradients and the optimizer state take at least "
                f"{in_gib(parameters)} {there_are}; lower hidden_size, intermediate_size or "
                "num_hidden_layers, or split it with mesh.fsdp"
            )
        windows = self.batch_size // (1 if in_validation else self.grad_accumulation)
        where = "at a time in validation take" if in_validation else "at a time take"
        # the compiler's program and a changed one presumably differ from the estimate alike
        enough = available * self.bytes() / used
        return UserError(
            f"stages[{self.number}]: {windows:,} × {self.seq_len:,} tokens {where} at least "
            f"{in_gib(used)} {there_are}; {self.advice(enough)}"
        )

    def advice(self, available: float | int) -> str:
        """Return the first change of settings that suffices by itself."""
        for advice, changed in self._changes():
            if changed.bytes() <= available:
                return advice
        return f"lower stages.{self.number}.seq_len or make the model smaller"

    def _changes(self) -> Iterator[tuple[str, "_Need"]]:
        devices, key = self.placement.mesh.size, f"stages.{self.number}"
        one_each = replace(self, grad_accumulation=max(1, self.batch_size // devices))
        yield f"raise {key}.grad_accumulation, or lower its batch_size", one_each
        if self.model.attention == "xla":
            yield "model.attention=blockwise takes less", self._with(attention="blockwise")
        if not self.model.remat:
            yield "model.remat=true with model.layers=scanned takes less", self._with(remat=True)
        one_window_each = replace(self, batch_size=devices, grad_accumulation=1)
        yield f"lower {key}.batch_size", one_window_each

    def _with(self, **fields: Any) -> "_Need":
        return replace(self, model=self.model.model_copy(update=fields))
