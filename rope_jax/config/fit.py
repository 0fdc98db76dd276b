"""Schema of a fit: which rotary numbers are learned, from which start, on which tokens."""

from typing import Annotated, Literal, get_args

from pydantic import BeforeValidator, Field, model_validator

from rope_jax.attention.backends import AttentionName
from rope_jax.config.data import DataConfig
from rope_jax.config.entries import AnyEntry
from rope_jax.config.types import (
    Ascending,
    FolderName,
    Fraction,
    Frozen,
    Length,
    Moderate,
    NonEmpty,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Resamples,
    Seed,
    Step,
    Weight,
    distinct,
)
from rope_jax.model.spec import RematName
from rope_jax.rope.settings import single_error

Learned = Literal[
    "frequencies",
    "attention_factor",
    "query_scale",
    "far_frequencies",
    "far_phase",
    "far_amplitude",
    "bias",
]
LEARNED: tuple[Learned, ...] = get_args(Learned)
OF_FAR: tuple[Learned, ...] = tuple(name for name in LEARNED if name.startswith("far_"))


_AsList = BeforeValidator(lambda given: [given] if isinstance(given, int | float) else given)


class FitConfig(Frozen):
    """A fit of rotary numbers with the model's weights frozen."""

    name: FolderName = Field("fit", description="name of the folder in the run's fits/")
    step: Step = None
    length: Annotated[NonEmpty[Length], _AsList, Ascending] = Field(
        description="context length, beyond the window; of a list, steps take turns"
    )
    start: AnyEntry | None = Field(
        None, description="an entry or strategy file; null: ReRoPE from half the window, with logn"
    )
    data: DataConfig | None = Field(None, description="texts, with validation; null: the run's")
    learn: Annotated[NonEmpty[Learned], distinct(str)] = Field(
        ("query_scale", "far_phase", "far_amplitude", "bias"),
        description="frequencies (λ of each pair), attention_factor (m), query_scale (s, p), bias "
        "by distance; of far keys also far_phase and far_amplitude",
    )
    per: Literal["model", "layer", "head"] = Field("head", description="what has values of its own")
    far_bands: Literal["one", "octaves"] = Field("one", description="far keys: all, or by octave")
    steps: PositiveInt = Field(200, description="optimizer steps")
    batch_tokens: PositiveInt = Field(4096, description="tokens per step, at least one window")
    learning_rate: Moderate = Field(0.05, description="peak learning rate of Adam")
    final_lr_fraction: Fraction = Field(0.1, description="last learning rate / peak (cosine decay)")
    objective: Literal["beyond", "all"] = Field(
        "beyond", description="targets: those with context beyond the window, or all"
    )
    keep_short: Weight = Field(0.0, description="weight of the loss inside the window")
    bounds: Annotated[
        Annotated[tuple[PositiveFloat, PositiveFloat], Field(strict=False)],
        single_error("should be two positive numbers, the smaller one first"),
        Ascending,
    ] = Field((0.1, 1e4), description="smallest and largest λ = θ/θ'")
    check_every: PositiveInt = Field(25, description="steps between checks on validation")
    patience: PositiveInt = Field(4, description="checks without improvement before it stops")
    max_documents: PositiveInt = Field(64, description="validation documents per check")
    max_blocks: PositiveInt = Field(2, description="scored blocks per validation document")
    targets: PositiveInt | None = Field(None, description="scored per block; null: half the window")
    seed: Seed = Field(0, description="seed of the batches and of the validation blocks")
    resamples: Resamples = 2000
    log_every_steps: PositiveInt = Field(5, description="steps between logged lines")
    attention: AttentionName | None = Field(None, description="backend; null: as in training")
    remat: RematName = Field("attention", description="recomputed backwards, see model.remat")
    warmup_steps: NonNegativeInt = Field(5, description="steps of linear warm-up from 0")

    @model_validator(mode="before")
    @classmethod
    def _without_defaults_of_old(cls, given: object) -> object:
        """Leave out what earlier versions wrote to fit.yaml, where it changed nothing."""
        if isinstance(given, dict) and not given.get("windows") and not given.get("ordered"):
            old = "windows", "trial_steps", "ordered", "repeated"
            return {key: x for key, x in given.items() if key not in old}
        return given

    @model_validator(mode="after")
    def _settings_agree(self) -> "FitConfig":
        if self.warmup_steps >= self.steps:
            raise ValueError(
                f"warmup_steps: {self.warmup_steps} is not less than steps {self.steps}"
            )
        if self.data is not None and self.data.mix:
            raise ValueError("data.mix: a fit reads texts alone; remove it")
        return self

    def check_window(self, window: int) -> None:
        """ValueError unless the fit is for texts longer than its checkpoint's window, in tokens."""
        if self.length[0] <= window:
            raise ValueError(
                f"length: {self.length[0]:,} is within the window of {window:,} tokens; a fit is "
                "for longer texts"
            )
        if (self.targets or 0) > window // 2:
            raise ValueError(
                f"targets: {self.targets:,} is too many for a window of {window:,} tokens; give "
                f"at most {window // 2:,}"
            )
