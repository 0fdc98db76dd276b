"""What a training run can be asked for: optimizer, stages, checkpoints, and all of it together."""

from dataclasses import replace
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import (
    Field,
    model_validator,
)

from rope_jax.config.data import DataConfig, StdlibData
from rope_jax.config.devices import DistributedConfig, MeshConfig
from rope_jax.config.model import LayerConfig, ModelConfig, RopeConfig
from rope_jax.config.types import (
    FolderName,
    Fraction,
    Frozen,
    Length,
    NonNegativeInt,
    PathText,
    PositiveFloat,
    PositiveInt,
    Seed,
)
from rope_jax.rope import AnyScaling, LayerOverride, RotaryGeometry, RotaryLayers, Scaling
from rope_jax.rope.strategies import NoScaling


class OptimConfig(Frozen):
    """AdamW and its learning rate."""

    learning_rate: PositiveFloat = Field(3e-3, description="peak learning rate")
    schedule: Literal["cosine", "linear", "wsd"] = Field(
        "cosine", description="decay after warm-up; wsd: constant, then a linear decay at the end"
    )
    warmup_steps: NonNegativeInt = Field(100, description="steps of linear warm-up from 0")
    final_lr_fraction: Fraction = Field(0.1, description="last learning rate / peak")
    decay_fraction: Fraction = Field(
        0.2, description="wsd: share of the steps after warm-up that decay"
    )
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        0.1, description="on matrices; not on norms or embeddings"
    )
    b1: Annotated[float, Field(ge=0, lt=1)] = Field(0.9, description="AdamW's first decay")
    b2: Annotated[float, Field(ge=0, lt=1)] = Field(0.95, description="AdamW's second decay")
    eps: PositiveFloat = Field(1e-8, description="AdamW's epsilon")
    clip_norm: PositiveFloat = Field(1.0, description="largest global norm of the gradient")


class StageConfig(Frozen):
    """A stretch of training at one length."""

    steps: PositiveInt = Field(description="optimizer steps")
    seq_len: Length = Field(description="tokens a window")
    batch_size: PositiveInt = Field(description="windows a step")
    grad_accumulation: PositiveInt = Field(
        1, description="micro-batches that a step's batch is cut into: less memory, same step"
    )
    scaling: AnyScaling | None = Field(
        None, description="scaling from this stage on; null: as before"
    )
    learning_rate: PositiveFloat | None = Field(
        None, description="start a new schedule here with this peak; null: the schedule goes on"
    )

    @model_validator(mode="after")
    def _batch_divides(self) -> Self:
        if self.batch_size % self.grad_accumulation:
            raise ValueError(
                f"batch_size {self.batch_size} is not a multiple of grad_accumulation "
                f"{self.grad_accumulation}"
            )
        return self


class ValidationConfig(Frozen):
    """Loss on the validation split during training."""

    every_steps: PositiveInt = Field(200, description="steps between two validations")
    batches: PositiveInt = Field(
        8, description="batches a validation, evenly spaced, always the same"
    )


class CheckpointConfig(Frozen):
    """What is kept of a run."""

    every_steps: PositiveInt = Field(500, description="steps between two checkpoints")
    keep: PositiveInt = Field(3, description="how many of the newest to keep")


def _strategies(key: str, scaling: Scaling) -> list[tuple[str, Scaling]]:
    """A scaling and what it stands on, if anything, with their keys; the innermost first."""
    inner = getattr(scaling, "inner", None)
    return [*([(f"{key}.inner", inner)] if inner else []), (key, scaling)]


class Config(Frozen):
    """One training run."""

    name: FolderName = Field(description="the run directory's name")
    runs_dir: PathText = Field("runs", description="where run directories are made")
    seed: Seed = Field(0, description="of the weights and of the batches")
    log_every_steps: PositiveInt = Field(20, description="steps between two logged lines")
    model: ModelConfig = ModelConfig()
    rope: RopeConfig = RopeConfig()
    data: DataConfig = StdlibData()
    optim: OptimConfig = OptimConfig()
    stages: Annotated[tuple[StageConfig, ...], Field(min_length=1, strict=False)] = Field(
        description="one after the other, for instance a short window, then a long one"
    )
    validation: ValidationConfig = ValidationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    mesh: MeshConfig = MeshConfig()
    distributed: DistributedConfig | None = Field(
        None, description="null: this process is the whole run"
    )

    @model_validator(mode="after")
    def _rotary_fits(self) -> Self:
        try:
            geometry = self.geometry
        except ValueError as error:  # names rotary_dim
            raise ValueError(f"rope.{error}") from None
        if geometry.rotary_dim > self.model.heads_width:
            raise ValueError(
                f"rope.rotary_dim {geometry.rotary_dim} is above head_dim {self.model.heads_width}"
            )
        self._pattern_fits()
        for stage in range(len(self.stages)):
            self._scalings_fit(stage)
        for first, last in self.schedule_spans():
            steps = sum(stage.steps for stage in self.stages[first:last])
            if self.optim.warmup_steps >= steps:
                raise ValueError(
                    f"optim.warmup_steps {self.optim.warmup_steps} is not below the {steps} steps "
                    f"of the schedule that starts at stages[{first}]"
                )
        return self

    def _pattern_fits(self) -> None:
        layers, pattern = self.model.num_hidden_layers, self.rope.layer_pattern
        if len(pattern) > layers:
            raise ValueError(
                f"rope.layer_pattern: {len(pattern)} elements, more than "
                f"model.num_hidden_layers {layers}"
            )
        if pattern and all(element.scaling is not None for element in pattern):
            for stage in range(len(self.stages)):
                if self.stage_scaling(stage) != NoScaling():
                    raise ValueError(
                        f"{self._scaling_key(stage)}: no layer has it, as every element of "
                        "rope.layer_pattern has a scaling of its own"
                    )

    def _scalings_fit(self, stage: int) -> None:
        """Every layer's scaling has a formula here, and does something."""
        layers, pattern = self.model.num_hidden_layers, self.rope.layer_pattern or (LayerConfig(),)
        for number, element in enumerate(pattern):
            own = f"rope.layer_pattern.{number}"
            key = self._scaling_key(stage) if element.scaling is None else f"{own}.scaling"
            scaling = element.scaling or self.stage_scaling(stage)
            geometry = replace(self.geometry, base=element.base or self.rope.base)
            sections = {"base": "rope" if element.base is None else own}
            sections |= {"rotary_dim": "rope", "train_length": "rope"}
            for layer in range(number, layers, len(pattern)):
                for place, strategy in _strategies(key, scaling):
                    try:
                        one = strategy.for_layer(layer, layers)
                        one.check(geometry, self.stages[stage].seq_len, self.model.heads_width)
                        one.query_scale_at(geometry, np.arange(1))
                    except ValueError as error:  # begins with a key of the geometry or strategy
                        section = sections.get(str(error).partition(":")[0], place)
                        raise ValueError(f"{section}.{error}") from None
                if scaling.for_layer(layer, layers) == scaling:
                    break  # the other layers of this element are like this one

    def _scaling_key(self, stage: int) -> str:
        """Where `stage_scaling` was given."""
        given = [i for i in range(stage + 1) if self.stages[i].scaling is not None]
        return f"stages.{given[-1]}.scaling" if given else "rope.scaling"

    @property
    def geometry(self) -> RotaryGeometry:
        """The unscaled rotary embedding, of layers without a base of their own."""
        return RotaryGeometry(
            rotary_dim=self.rope.rotary_dim or self.model.heads_width,
            base=self.rope.base,
            train_length=self.rope.train_length or self.stages[0].seq_len,
        )

    @property
    def rotary_layers(self) -> RotaryLayers:
        """The rotary embedding of every layer."""
        own = tuple(LayerOverride(e.base, e.scaling) for e in self.rope.layer_pattern)
        pattern = own or (LayerOverride(),)
        head_dim = self.model.heads_width
        return RotaryLayers(self.geometry, self.model.num_hidden_layers, pattern, head_dim)

    @property
    def sliding_windows(self) -> tuple[int | None, ...]:
        """The attention windows of the layers, a pattern that repeats."""
        return tuple(element.sliding_window for element in self.rope.layer_pattern) or (None,)

    def stage_scaling(self, stage: int) -> Scaling:
        """The scaling in force at a stage: its own, or the last one given before it."""
        given = [s.scaling for s in self.stages[: stage + 1] if s.scaling is not None]
        return given[-1] if given else self.rope.scaling

    def stage_at(self, step: int) -> int:
        """The stage that a checkpoint after global step `step` ended in."""
        end = 0
        for number, stage in enumerate(self.stages):
            end += stage.steps
            if step <= end:
                return number
        raise ValueError(f"step {step} is past the last stage's end, {end}")

    def schedule_spans(self) -> list[tuple[int, int]]:
        """[first, last) stages of each learning-rate schedule."""
        starts = [i for i, s in enumerate(self.stages) if i == 0 or s.learning_rate is not None]
        return list(zip(starts, [*starts[1:], len(self.stages)], strict=True))
