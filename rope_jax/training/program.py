"""The programs of a run: one for its initial state, and two compiled ones for each stage."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from rope_jax.config.resolve import ResolvedRun, language_model
from rope_jax.data.batches import Batch
from rope_jax.devices.hardware import compiled, compiler_options
from rope_jax.devices.memory import program_bytes
from rope_jax.devices.mesh import Placement
from rope_jax.devices.window_memory import bytes_per_device, parameter_count
from rope_jax.model.decoder import Params
from rope_jax.positions.mapping import with_map
from rope_jax.rope import Frequencies, Rotary, Scaling
from rope_jax.rope.geometry import AnyArray
from rope_jax.training.optimizer import optimizer
from rope_jax.training.step import (
    LossSums,
    Positioning,
    StepMetrics,
    TrainState,
    fresh_state,
    loss_sums,
    make_train_step,
)
from rope_jax.training.trainable import Trainable


class Program:
    """The model and optimizer of a config, placed on a mesh."""

    def __init__(self, config: ResolvedRun, vocab_size: int, placement: Placement) -> None:
        self.config = config
        self.model = language_model(config, vocab_size).on(placement.collectives)
        self.placement = placement.splitting(self.model.shardings)
        placement.check_vocabulary(self.model.vocab_size)
        self.vocab_size = self.model.vocab_size
        self.optimizer, self.trainable = optimizer(config), None
        if config.optim.trainable or config.optim.lora:
            self.trainable = Trainable(config.optim, config.seed, self.model.abstract_params())
            self.optimizer = self.trainable.around(self.optimizer)
        self.stages = [StageProgram(self, number) for number in range(len(config.stages))]

        self._draw_state = lambda: fresh_state(self.model, self.optimizer, config.seed)

    @functools.cached_property
    def abstract_state(self) -> TrainState:
        """Shapes, dtypes and shardings of the state."""
        return self.placement.shard_state(jax.eval_shape(self._draw_state))

    def fresh_state(self) -> TrainState:
        """Return the initial training state, sharded."""
        draw = jax.jit(
            self._draw_state,
            out_shardings=self.state_shardings(),
            compiler_options=compiler_options(self.placement.platform),
        )
        return draw()

    def trained(self, state: TrainState) -> Params:
        """Return what is trained: the parameters, or less."""
        if self.trainable is None:
            return state.params
        return self.trainable.trained(state.params, state.opt_state.factors)

    def describe_parameters(self) -> str:
        """Return how many parameters there are, and how many numbers are trained, if others."""
        trained = sum(leaf.size for leaf in jax.tree.leaves(self.trained(self.abstract_state)))
        more = "" if self.trainable is None else f", {trained:,} trained"
        return f"{parameter_count(self.model):,} parameters{more}"

    def state_shardings(self) -> TrainState:
        return jax.tree.map(lambda leaf: leaf.sharding, self.abstract_state)


class RowGroup(NamedTuple):
    """Consecutive rows of a batch that share a scaling, made for `length` tokens."""

    rows: int
    scaling: Scaling
    length: int


class StageProgram:
    """The programs of one stage, each compiled when it, or its size, is first asked for."""

    def __init__(self, program: Program, number: int) -> None:
        self._program, self._placement, self._number = program, program.placement, number
        stage = self._stage = program.config.stages[number]
        long = RowGroup(stage.batch_size, program.config.stage_scaling(number), stage.length)
        # of a validation batch, none of whose rows hold short windows, and of a training batch
        self._long_rows, self._row_groups = [long], [long]
        if (mixed := stage.mixed) is not None:
            short = RowGroup(mixed.rows_of(long.rows), mixed.scaling, mixed.seq_len)
            self._row_groups = [short, long._replace(rows=long.rows - short.rows)]

    def train_step(self, state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
        """Return the state after a step, and its metrics. The state passed in is donated."""
        result: tuple[TrainState, StepMetrics] = self.compiled_step(state, batch, self._rotary)
        return result

    def loss_sums(self, params: Params, batch: Batch) -> LossSums:
        """Return the sums of a validation batch's loss."""
        return LossSums(*self._compiled_sums(params, batch, self._rotary_of_long_rows))

    @property
    def train_bytes(self) -> int:
        """Memory of a step on each device: the state, a batch, and temporary arrays."""
        return program_bytes(self.compiled_step, self._stage.steps, self._placement.device)

    @property
    def validation_bytes(self) -> int:
        """Memory of a validation batch on each device, with the optimizer's state."""
        calls = self._program.config.validation.batches
        program = program_bytes(self._compiled_sums, calls, self._placement.device)
        return program + bytes_per_device(self._program.abstract_state.opt_state)

    @functools.cached_property
    def compiled_step(self) -> Any:
        step: Any = make_train_step(  # jitted
            self._program.model,
            self._program.optimizer,
            self._stage.grad_accumulation,
            out_shardings=(self._program.state_shardings(), self._placement.replicated),
            positioning=self._positioning(self._row_groups),
            gradient_of=self._placement.gradient,
            masks_documents=self._masks_documents,
            trainable=self._program.trainable,
        )
        return compiled(step, self._program.abstract_state, self._batch(), self._rotary)

    @functools.cached_property
    def _compiled_sums(self) -> Any:
        positioning = self._positioning(self._long_rows)
        sums = functools.partial(loss_sums, masks_documents=self._masks_documents)
        sums_on_all = self._placement.sums(functools.partial(sums, self._program.model))

        def completed_sums(params: Params, batch: Batch, rotary: Rotary) -> LossSums:
            if positioning is not None:
                rotary = positioning(rotary, batch.positions)
            return sums_on_all(params, batch, rotary)

        completed = jax.jit(completed_sums, out_shardings=self._placement.replicated)
        params = self._program.abstract_state.params
        return compiled(completed, params, self._batch(), self._rotary_of_long_rows)

    @property
    def _masks_documents(self) -> bool:
        """Whether attention stops at borders, of documents, short windows or samples."""
        stage, mix = self._stage, self._program.config.data.mix
        return stage.documents.mask == "document" or stage.mixed is not None or bool(mix)

    @functools.cached_property
    def _rotary(self) -> Rotary:
        return self._rotary_of(self._row_groups)

    @functools.cached_property
    def _rotary_of_long_rows(self) -> Rotary:
        return self._rotary_of(self._long_rows)

    def _rotary_of(self, groups: Sequence[RowGroup]) -> Rotary:
        """Return the frequencies of these rows; their axis has size 1 if all rows are alike."""
        layers = self._program.config.rotary_layers
        made = [layers.frequencies(group.scaling, group.length) for group in groups]
        if len(made) == 1:
            return Rotary.unscaled_queries(made[0])
        count = max(frequencies.inv_freq.shape[0] for frequencies in made)

        def joined(*leaves: AnyArray) -> np.ndarray:
            rows = zip(leaves, groups, strict=True)
            shapes = [(x, (count, group.rows, *x.shape[2:])) for x, group in rows]
            return np.concatenate([np.broadcast_to(*each) for each in shapes], axis=1)

        return Rotary.unscaled_queries(Frequencies(*map(joined, *made)))

    def _positioning(self, groups: Sequence[RowGroup]) -> Positioning | None:
        """Return what adds position-dependent parts (query scale, map bands), if any."""
        layers = self._program.config.rotary_layers
        map_ = self._program.config.stage_map(self._number)
        has_query_scale = any(layers.has_query_scale(group.scaling) for group in groups)
        if map_ is None and not has_query_scale:
            return None
        window, seq_len = layers.geometry.train_length, self._stage.seq_len

        def complete(rotary: Rotary, positions: Array) -> Rotary:
            if has_query_scale:
                ends = np.cumsum([group.rows for group in groups])[:-1].tolist()
                parts = zip(groups, jnp.split(positions, ends), strict=True)
                scales = [layers.query_scale(group.scaling, rows) for group, rows in parts]
                count = max(scale.shape[0] for scale in scales)
                scales = [jnp.broadcast_to(x, (count, *x.shape[1:])) for x in scales]
                rotary = rotary._replace(query_scale=jnp.concatenate(scales, axis=1))
            if map_ is None:
                return rotary
            return with_map(rotary, map_, layers, positions, window=window, seq_len=seq_len)

        return complete

    def _batch(self) -> Batch:
        """Return the shapes, dtypes and shardings of a batch."""
        shape = self._stage.batch_size, self._stage.seq_len
        integers = self._placement.abstract_rows(shape, np.int32)
        weights = self._placement.abstract_rows(shape, np.float32)
        return Batch(integers, integers, integers, integers, weights)
