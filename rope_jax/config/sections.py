"""Sections of a training config: optimizer, stages and their windows, checkpoints, init_from."""

import re
from typing import Annotated, Literal, NamedTuple

from pydantic import BeforeValidator, Field, model_validator

from rope_jax.config.types import (
    Count,
    Fraction,
    Frozen,
    Length,
    Moderate,
    NonEmpty,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Weight,
)
from rope_jax.errors import errors_in
from rope_jax.rope import AnyScaling
from rope_jax.rope.settings import Whole
from rope_jax.rope.strategies import NoScaling

Decay = Annotated[float, Field(ge=0, lt=1)]


class LoraConfig(Frozen):
    """LoRA, low-rank factors of frozen matrices: W + (alpha/rank)·B·A, arXiv 2106.09685."""

    rank: PositiveInt = Field(8, description="inputs of B, outputs of A")
    alpha: PositiveFloat = Field(16.0, description="B·A is multiplied by alpha/rank")
    target_modules: NonEmpty[str] = Field(
        ("q_proj", "k_proj", "v_proj", "o_proj"), description="modules whose matrices it changes"
    )


class OptimConfig(Frozen):
    """AdamW and its learning rate."""

    learning_rate: Moderate = Field(3e-3, description="peak learning rate")
    schedule: Literal["cosine", "linear", "wsd"] = Field(
        "cosine", description="decay after warm-up; wsd: constant, then linear at the end"
    )
    warmup_steps: NonNegativeInt | None = Field(None, description="null: a tenth of the steps")
    final_lr_fraction: Fraction = Field(
        0.1, description="final rate / peak: wsd: at the last step; others: one step after it"
    )
    decay_fraction: Fraction = Field(0.2, description="wsd: share of the steps that decay")
    weight_decay: Weight = Field(0.1, description="of matrices, not norms and embeddings")
    b1: Decay = Field(0.9, description="decay of the first moment")
    b2: Decay = Field(0.95, description="decay of the second moment")
    eps: Moderate = Field(1e-8, description="AdamW's epsilon")
    clip_norm: PositiveFloat = Field(1.0, description="largest global norm of the gradient")
    trainable: NonEmpty[str] | None = Field(
        None, description="norms, embeddings, or modules; null: all, with lora nothing else"
    )
    lora: LoraConfig | None = Field(None, description="low-rank factors; null: none")

    def warmup(self, steps: int) -> int:
        """Return the steps of warm-up of a schedule of so many steps."""
        return steps // 10 if self.warmup_steps is None else self.warmup_steps


# How far fraction · rows may be from a whole number, so that 0.3333 is a third of 3 rows.
_TOLERANCE = 1e-3


class PlainPositions(Frozen):
    """The tokens of a training window are numbered consecutively, from 0."""

    type: Literal["plain"] = "plain"


class RandomizedPositions(Frozen):
    """A sorted sample without replacement from [0, length), one per row: arXiv 2305.16843."""

    type: Literal["randomized"] = "randomized"
    # drawing marks every position below it
    length: Annotated[int, Field(ge=2, le=2**26), Whole] = Field(description="above all positions")


class PosePositions(Frozen):
    """PoSE: chunks of a row with a random jump before all but the first: arXiv 2309.10400, §3.2."""

    type: Literal["pose"] = "pose"
    length: Length = Field(description="positions are below this; at least seq_len")
    chunks: Length = Field(2, description="parts of a row, with a jump between any two")


AnyPositions = Annotated[
    PlainPositions | RandomizedPositions | PosePositions, Field(discriminator="type")
]


class MixedConfig(Frozen):
    """Rows of short windows with a scaling of their own, as in LongRoPE2: arXiv 2502.20082."""

    fraction: Annotated[float, Field(gt=0, lt=1)] = Field(description="share of short rows")
    seq_len: Length = Field(description="tokens per short window; divides the stage's seq_len")
    scaling: AnyScaling = Field(NoScaling(), description="scaling of the short windows")

    def rows_of(self, windows: int) -> int:
        """Return how many rows of a batch hold short windows. ValueError: no whole number."""
        rows = round(self.fraction * windows)
        if abs(self.fraction * windows - rows) <= _TOLERANCE and 0 < rows < windows:
            return rows
        raise ValueError(
            f"fraction: {self.fraction:g} of {windows} rows (batch_size) is not a whole number of "
            f"rows between 0 and {windows}; change it or batch_size"
        )


class DocumentsConfig(Frozen):
    """Several documents in one window."""

    mask: Literal["document", "none"] = Field(
        "document", description="what a token sees: its own document, or the whole window before it"
    )
    positions: Literal["reset", "continue"] = Field(
        "reset", description="at a document's start, positions restart at 0 or count on"
    )


class StageConfig(Frozen):
    """A part of training at one length."""

    steps: PositiveInt = Field(description="number of optimizer steps")
    seq_len: Length = Field(description="tokens per window")
    batch_size: PositiveInt = Field(description="windows per step")
    grad_accumulation: PositiveInt = Field(
        1, description="micro-batches per step, to save memory; experts are balanced in each"
    )
    scaling: AnyScaling | None = Field(None, description="from this stage on; null: as before")
    learning_rate: Moderate | None = Field(None, description="peak of a new schedule; null: none")
    positions: AnyPositions = Field(PlainPositions(), description="how tokens are numbered")
    mixed: MixedConfig | None = Field(None, description="rows of short windows; null: none")
    documents: DocumentsConfig = DocumentsConfig()

    @model_validator(mode="after")
    def _windows_can_be_made(self) -> "StageConfig":
        if self.batch_size % self.grad_accumulation:
            raise ValueError(
                f"batch_size {self.batch_size} is not a multiple of grad_accumulation "
                f"{self.grad_accumulation}"
            )
        if self.length < self.seq_len:
            raise ValueError(
                f"positions.length: {self.length} positions are too few for seq_len "
                f"{self.seq_len}; give at least {self.seq_len}"
            )
        if isinstance(self.positions, PosePositions) and self.positions.chunks > self.seq_len:
            raise ValueError(
                f"positions.chunks: {self.positions.chunks} are too many for seq_len "
                f"{self.seq_len}; give at most {self.seq_len}"
            )
        if (mixed := self.mixed) is not None:
            if self.seq_len % mixed.seq_len or mixed.seq_len == self.seq_len:
                raise ValueError(
                    f"mixed.seq_len: {mixed.seq_len} does not divide the stage's seq_len "
                    f"{self.seq_len} into several windows"
                )
            with errors_in("mixed."):
                mixed.rows_of(self.batch_size)
        return self

    @property
    def length(self) -> int:
        """The length that a stage trains for: all positions are below it."""
        if isinstance(self.positions, PlainPositions):
            return self.seq_len
        return self.positions.length


class ValidationConfig(Frozen):
    """When to measure the loss on the validation split during training."""

    every_steps: PositiveInt = Field(200, description="steps between validations")
    # every validation reads them all
    batches: Count = Field(8, description="batches each, always the same")


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
        return self.stage.batch_size * self.stage.seq_len

    def is_due(self, step: int, every_steps: int) -> bool:
        """Whether something that is done every so many steps, and at a stage's end, is due."""
        return step == self.end or step % every_steps == 0


class InitFrom(Frozen):
    """Another run's checkpoint, whose weights a run starts from."""

    run: str = Field(description="directory of the run to start from")
    step: NonNegativeInt | None = Field(None, description="training step; null: the newest")
    optimizer: bool = Field(False, description="take AdamW's moments; the schedule starts anew")


def _from_text(value: object) -> object:
    """Return the mapping that the short form stands for: runs/demo, or runs/demo@1000."""
    if not isinstance(value, str):
        return value
    with_step = re.fullmatch(r"(.+)@([0-9]{1,10})", value)
    return {"run": with_step[1], "step": int(with_step[2])} if with_step else {"run": value}


AnyInitFrom = Annotated[
    InitFrom, BeforeValidator(_from_text, json_schema_input_type=str | InitFrom)
]
