"""Rejecting a run that is too large for this machine, before any work starts."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax

from rope_jax.config.model import ModelConfig
from rope_jax.config.training import Config
from rope_jax.devices.hardware import device_bytes
from rope_jax.devices.mesh import Placement
from rope_jax.errors import UserError
from rope_jax.model.cost import TrainingBytes, training_bytes

# Compiling takes a quarter of a second per unrolled layer on a CPU core, and grows faster than
# linearly: with more layers than this, it takes minutes.
_MOST_UNROLLED_LAYERS = 512


def check_size(config: Config, vocab_size: int, placement: Placement) -> None:
    """UserError, naming the key to change, if a run needs too much memory or compile time.

    `training_bytes` is a lower estimate: a run that passes may still run out of memory.
    """
    layers = config.model.num_hidden_layers
    if config.model.layers == "unrolled" and layers > _MOST_UNROLLED_LAYERS:
        raise UserError(
            f"model.num_hidden_layers: {layers:,} unrolled layers would take many minutes to "
            "compile; set model.layers=scanned, which compiles one"
        )
    available = device_bytes()
    if jax.local_devices()[0].platform == "cpu":  # its devices share one memory
        available /= jax.local_device_count()
    for number, stage in enumerate(config.stages):
        need = _Need(
            model=config.model,
            vocab_size=vocab_size,
            seq_len=stage.seq_len,
            batch_size=stage.batch_size,
            grad_accumulation=stage.grad_accumulation,
            sliding_windows=config.sliding_windows,
            placement=placement,
        )
        if need.bytes() <= available:
            continue
        fixed = need.by_part().parameters_per_device(placement.fsdp)
        if fixed > available:
            raise UserError(
                "model: its parameters, their gradients and the optimizer state take at least "
                f"{_gib(fixed)} GiB per device, but there are only {_gib(available)}; lower "
                "hidden_size, intermediate_size or num_hidden_layers, or split it with mesh.fsdp"
            )
        windows = stage.batch_size // stage.grad_accumulation
        raise UserError(
            f"stages[{number}]: {windows:,} × {stage.seq_len:,} tokens at a time take at least "
            f"{_gib(need.bytes())} GiB per device, but there are only {_gib(available)}; "
            f"{need.advice(number, available)}"
        )


@dataclass(frozen=True)
class _Need:
    """The settings of one stage that determine how much memory it needs."""

    model: ModelConfig
    vocab_size: int
    seq_len: int
    batch_size: int
    grad_accumulation: int
    sliding_windows: tuple[int | None, ...]
    placement: Placement

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
        """Bytes needed on each device."""
        return self.by_part().per_device(self.placement.mesh.size, self.placement.fsdp)

    def advice(self, stage: int, available: float) -> str:
        """Return the first change of settings that suffices by itself."""
        for advice, changed in self._changes(stage):
            if changed.bytes() <= available:
                return advice
        return f"lower stages.{stage}.seq_len or make the model smaller"

    def _changes(self, stage: int) -> Iterator[tuple[str, "_Need"]]:
        devices = self.placement.mesh.size
        one_each = replace(self, grad_accumulation=self.batch_size // devices)
        yield f"raise stages.{stage}.grad_accumulation, or lower its batch_size", one_each
        if self.model.attention == "xla":
            yield "model.attention=blockwise takes less", self._with(attention="blockwise")
        if not self.model.remat:
            yield "model.remat=true with model.layers=scanned takes less", self._with(remat=True)
        one_window_each = replace(self, batch_size=devices, grad_accumulation=1)
        yield f"lower stages.{stage}.batch_size", one_window_each

    def _with(self, **fields: Any) -> "_Need":
        return replace(self, model=self.model.model_copy(update=fields))


def _gib(size: float | int) -> str:
    return f"{size / 2**30:,.1f}"
