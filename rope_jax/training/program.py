"""A run as jitted programs: its initial state, and the functions of each stage."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import jax

from rope_jax.config.training import Config
from rope_jax.data.batches import Batch
from rope_jax.devices.mesh import Placement
from rope_jax.model.decoder import Params, language_model
from rope_jax.rope import Rotary
from rope_jax.training.optimizer import optimizer
from rope_jax.training.step import (
    LossSums,
    StepMetrics,
    TrainState,
    fresh_state,
    loss_sums,
    make_train_step,
)


@dataclass(frozen=True)
class StageProgram:
    """The jitted functions of one stage, with its rotary frequencies."""

    train_step: Callable[[TrainState, Batch], tuple[TrainState, StepMetrics]]
    """Donates the state."""
    loss_sums: Callable[[Params, Batch], LossSums]


class Program:
    """The model and the optimizer of a config, on a mesh."""

    def __init__(self, config: Config, vocab_size: int, placement: Placement) -> None:
        self.config, self.vocab_size, self.placement = config, vocab_size, placement
        self._model = language_model(config, vocab_size)
        self._optimizer = optimizer(config)

    @functools.cached_property
    def abstract_state(self) -> TrainState:
        """Shapes, dtypes and shardings of the state."""
        return self.placement.shard_state(jax.eval_shape(self._fresh_state))

    def fresh_state(self) -> TrainState:
        """Return the state that training begins with, sharded."""
        return jax.jit(self._fresh_state, out_shardings=self._state_shardings())()

    def stage(self, number: int) -> StageProgram:
        """Return the functions of stage `number`; they compile when first called."""
        stage, layers = self.config.stages[number], self.config.rotary_layers
        scaling = self.config.stage_scaling(number)
        rotary = Rotary.unscaled_queries(layers.frequencies(scaling, seq_len=stage.seq_len))
        # A document's positions begin at 0 wherever it stands in a window: known with the batch.
        query_scales = None
        if layers.has_query_scale(scaling):
            query_scales = functools.partial(layers.query_scale, scaling)
        step = make_train_step(
            self._model,
            self._optimizer,
            stage.grad_accumulation,
            (self._state_shardings(), self.placement.replicated),
            query_scales,
        )
        sums = jax.jit(
            functools.partial(loss_sums, self._model, query_scales=query_scales),
            out_shardings=self.placement.replicated,
        )
        return StageProgram(
            train_step=lambda state, batch: step(state, batch, rotary),
            loss_sums=lambda params, batch: sums(params, batch, rotary),
        )

    def _fresh_state(self) -> TrainState:
        return fresh_state(self._model, self._optimizer, self.config.seed)

    def _state_shardings(self) -> TrainState:
        return jax.tree.map(lambda leaf: leaf.sharding, self.abstract_state)
