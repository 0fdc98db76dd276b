"""Sections of a training config: optimizer, stages, validation, checkpoints, init_from."""

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field, model_validator

from rope_jax.config.types import (
    Fraction,
    Frozen,
    Length,
    Moderate,
    NonNegativeInt,
    PathText,
    PositiveFloat,
    PositiveInt,
    errors_in,
)
from rope_jax.config.windows import AnyPositions, DocumentsConfig, MixedConfig, PlainPositions
from rope_jax.positions.maps import PositionMap
from rope_jax.rope import AnyScaling, Scaling
from rope_jax.rope.numbers import Whole

_WITH_STEP = re.compile(r"(.+)@([0-9]{1,10})")


class OptimConfig(Frozen):
    """AdamW and its learning rate."""

    learning_rate: Moderate = Field(3e-3, description="peak learning rate")
    schedule: Literal["cosine", "linear", "wsd"] = Field(
        "cosine",
        description="decay after warm-up; wsd: constant at first, with a linear decay at the end",
    )
    warmup_steps: NonNegativeInt | None = Field(
        None, description="steps of linear warm-up from 0; null: a tenth of the schedule's steps"
    )
    final_lr_fraction: Fraction = Field(
        0.1, description="last learning rate, as a fraction of the peak"
    )
    decay_fraction: Fraction = Field(
        0.2, description="wsd: fraction of the steps after warm-up that decay"
    )
    weight_decay: Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)] = Field(
        0.1, description="weight decay of matrices; norms and embeddings have none"
    )
    b1: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.9, description="decay rate of AdamW's first moment"
    )
    b2: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.95, description="decay rate of AdamW's second moment"
    )
    eps: Moderate = Field(1e-8, description="AdamW's epsilon")
    clip_norm: PositiveFloat = Field(1.0, description="largest global norm of the gradient")

    def warmup(self, steps: int) -> int:
        """Return the steps of warm-up of a schedule of so many steps."""
        return steps // 10 if self.warmup_steps is None else self.warmup_steps


class StageConfig(Frozen):
    """A part of training at one length."""

    steps: PositiveInt = Field(description="number of optimizer steps")
    seq_len: Length = Field(description="tokens per window")
    batch_size: PositiveInt = Field(description="windows per step")
    grad_accumulation: PositiveInt = Field(
        1,
        description="micro-batches that each batch is split into: the same step in less memory",
    )
    scaling: AnyScaling | None = Field(
        None, description="scaling from this stage on; null: as before"
    )
    learning_rate: Moderate | None = Field(
        None, description="peak of a new schedule that starts here; null: the schedule continues"
    )
    positions: AnyPositions = Field(
        PlainPositions(), description="how the tokens of a training window are numbered"
    )
    mixed: MixedConfig | None = Field(
        None, description="rows that hold short windows with a scaling of their own; null: none"
    )
    documents: DocumentsConfig = DocumentsConfig()

    @model_validator(mode="after")
    def _windows_can_be_made(self) -> "StageConfig":
        if self.batch_size % self.grad_accumulation:
            raise ValueError(
                f"batch_size {self.batch_size} is not a multiple of grad_accumulation "
                f"{self.grad_accumulation}"
            )
        with errors_in("positions."):
            self.positions.check(self.seq_len)
        if self.mixed is not None:
            with errors_in("mixed."):
                self.mixed.check(self.seq_len, self.batch_size)
        return self

    @property
    def length(self) -> int:
        """The length that a stage trains for: all positions are below it."""
        return self.positions.length_of(self.seq_len)


class ValidationConfig(Frozen):
    """When to measure the loss on the validation split during training."""

    every_steps: PositiveInt = Field(200, description="steps between validations")
    # every validation reads them all
    batches: Annotated[int, Field(gt=0, le=2**16), Whole] = Field(
        8, description="batches per validation, evenly spaced and always the same"
    )


class CheckpointConfig(Frozen):
    """Which checkpoints to keep."""

    every_steps: PositiveInt = Field(500, description="steps between checkpoints")
    keep: PositiveInt = Field(3, description="number of checkpoints to keep, the newest ones")


class Span(NamedTuple):
    """A stage, and the global steps it covers: begin < step ≤ end."""

    number: int
    stage: StageConfig
    begin: int
    end: int

    @property
    def tokens_per_step(self) -> int:
        """Tokens in a batch."""
        return self.stage.batch_size * self.stage.seq_len

    def is_due(self, step: int, every_steps: int) -> bool:
        """Whether something that is done every so many steps, and at a stage's end, is due."""
        return step == self.end or step % every_steps == 0


class Trained(NamedTuple):
    """How the checkpoints of a stage were trained."""

    window: int
    """Tokens per window."""
    scaling: Scaling
    map: PositionMap | None
    """Without "auto"; None: no map."""


class InitFrom(Frozen):
    """Another run's checkpoint, whose weights a run starts from."""

    run: PathText = Field(description="directory of the run to start from")
    step: NonNegativeInt | None = Field(
        None, description="training step of the checkpoint, 0 of an imported one; null: the newest"
    )
    optimizer: bool = Field(
        False,
        description="also take AdamW's moments; the schedule of the learning rate starts anew",
    )


def _from_text(value: Any) -> Any:
    """Return the mapping that the short form stands for: runs/demo, or runs/demo@1000."""
    if not isinstance(value, str):
        return value
    with_step = _WITH_STEP.fullmatch(value)
    if with_step is None:
        return {"run": value}
    return {"run": with_step[1], "step": int(with_step[2])}


if TYPE_CHECKING:
    AnyInitFrom = InitFrom
else:
    AnyInitFrom = Annotated[
        InitFrom, BeforeValidator(_from_text, json_schema_input_type=str | InitFrom)
    ]
