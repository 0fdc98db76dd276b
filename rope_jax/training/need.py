"""How much memory a stage of training needs on paper, and which key would lower it."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, get_args

from rope_jax.config.devices import MeshConfig
from rope_jax.config.model import ModelConfig, RematName
from rope_jax.config.sharding_checks import can_share_windows, check_seq_len
from rope_jax.config.training import Config
from rope_jax.devices.memory import in_gib, is_host_memory
from rope_jax.devices.mesh import Placement
from rope_jax.errors import UserError
from rope_jax.model.cost import TrainingBytes, training_bytes

# On a CPU, measured: what writing a checkpoint takes, in times the state.
_COPIES = 2
# each takes less memory than the one before
_REMAT: tuple[RematName, ...] = get_args(RematName)


@dataclass(frozen=True)
class StageNeed:
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
    ) -> "StageNeed":
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
        """Return the estimate for all devices together."""
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
        return self.by_part().per_device(self.placement.mesh.size, self.placement.parameter_shards)

    def _validation(self) -> int:
        if not self.validates:
            return 0
        return self.by_part().validation_per_device(
            self.placement.mesh.size, self.placement.parameter_shards
        )

    def is_largest_in_validation(self) -> bool:
        """Whether validation needs more than a training step."""
        return self._validation() > self._training()

    def saving(self) -> int:
        """Bytes for each device of the copies of the state while a checkpoint is written."""
        if not is_host_memory(self.placement.device):
            return 0
        return _COPIES * self.by_part().state // self.placement.mesh.size

    def refusal(self, used: int, available: float | int, in_validation: bool) -> UserError:
        """Return the error for a stage that takes at least `used` bytes on each device."""
        there_are = f"GiB per device, but there are only {in_gib(available)}"
        parameters = self.by_part().parameters_per_device(self.placement.parameter_shards)
        if parameters > available:
            return UserError(
                "model: its parameters, their gradients and the optimizer state take at least "
                f"{in_gib(parameters)} {there_are}; lower hidden_size, intermediate_size or "
                f"num_hidden_layers, or split it with {self._split_parameters(available)}"
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
        lower = f"lower stages.{self.number}.seq_len"
        if can_share_windows(self.model):
            mesh = "split windows over more devices with mesh.context"
            return f"{lower}, make the model smaller, or {mesh}"
        return f"{lower} or make the model smaller"

    def _split_parameters(self, available: float | int) -> str:
        """Return the smallest mesh.fsdp that makes room for the parameters, here or elsewhere."""
        mesh, parts = self.placement.config, self.by_part()
        copies = self.placement.mesh.size // (mesh.tensor * mesh.context)
        for fsdp in range(mesh.fsdp + 1, copies + 1):
            fits = parts.parameters_per_device(fsdp * mesh.tensor) <= available
            if fits and copies % fsdp == 0 and self.model.hidden_size % fsdp == 0:
                return f"mesh.fsdp={fsdp}"
        least = math.ceil(parts.parameters_per_device(1) / available)
        return f"mesh.fsdp over at least {least:,} devices"

    def _changes(self) -> Iterator[tuple[str, "StageNeed"]]:
        shards, key = self.placement.row_shards, f"stages.{self.number}"
        one_each = replace(self, grad_accumulation=max(1, self.batch_size // shards))
        yield f"raise {key}.grad_accumulation, or lower its batch_size", one_each
        if self.model.backend.quadratic_memory:
            yield "model.attention=blockwise takes less", self._with(attention="blockwise")
        for remat in _REMAT[_REMAT.index(self.model.remat) + 1 :]:
            advice = f"model.remat={remat} with model.layers=scanned takes less"
            yield advice, self._with(remat=remat)
        one_window_each = replace(self, batch_size=shards, grad_accumulation=1)
        yield f"lower {key}.batch_size", one_window_each
        if self.model.dtype == "float32":
            yield "model.dtype=bfloat16 takes less", self._with(dtype="bfloat16")
        for context, sharing in self._with_shared_windows():
            yield f"mesh.context={context} with {key}.batch_size={sharing.batch_size}", sharing

    def _with_shared_windows(self) -> Iterator[tuple[int, "StageNeed"]]:
        """Yield each larger mesh.context on the same devices, with one window at a time each."""
        mesh = self.placement.config
        copies = (mesh.data or 1) * mesh.context
        for context in range(mesh.context + 1, copies + 1):
            if copies % context == 0 and self._can_share_among(context):
                other = self.placement.sharing_windows(context)
                yield (
                    context,
                    replace(
                        self,
                        placement=other,
                        batch_size=other.row_shards,
                        grad_accumulation=1,
                    ),
                )

    def _can_share_among(self, context: int) -> bool:
        try:
            check_seq_len(MeshConfig(context=context), self.seq_len)
        except ValueError:
            return False
        return can_share_windows(self.model)

    def _with(self, **fields: Any) -> "StageNeed":
        return replace(self, model=self.model.model_copy(update=fields))
