"""Schemas of a sweep, and of the key tokens that a sweep can score (LongPPL)."""

import operator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from rope_jax.attention.backends import AttentionName
from rope_jax.config.data import DataConfig, check_read_whole
from rope_jax.config.devices import DistributedConfig
from rope_jax.config.entries import Scalings, TrainedEntry, parse_entries
from rope_jax.config.presentation import Presentation
from rope_jax.config.tasks import AnySweepTask
from rope_jax.config.types import (
    Ascending,
    FolderName,
    Frozen,
    Length,
    ListOf,
    NonEmpty,
    PositiveFloat,
    PositiveInt,
    Resamples,
    Seed,
    Share,
    Step,
    Tolerance,
    distinct,
)
from rope_jax.protocols import BASELINE, PROTOCOLS
from rope_jax.protocols.base import Bos
from rope_jax.rope.settings import single_error

if TYPE_CHECKING:
    ProtocolName = str
else:
    ProtocolName = Literal[*PROTOCOLS]


class _Selection(Frozen):
    """The name of a sweep, and the checkpoints that it measures."""

    name: FolderName = Field("sweep", description="name of the folder in the run's evals/")
    steps: Annotated[
        Literal["all"] | NonEmpty[PositiveInt] | None,
        single_error("should be all, or a list of training steps of at least 1"),
        Ascending,
    ] = Field(
        None, description="training steps of checkpoints; all: each that is kept; null: the newest"
    )


# of any one machine: 2^20 GiB are a million times the memory of a small one
Gibibytes = Annotated[float, Field(gt=0, le=2**20, allow_inf_nan=False)]


class SameTokensConfig(Frozen):
    """Which curves are measured, at which lengths, on which tokens."""

    lengths: Annotated[NonEmpty[Length], Ascending] | None = Field(
        None, description="context lengths; null: the window times 1/2, 1, 2, 4, 8, 16"
    )
    scalings: Scalings = Field(
        default_factory=lambda: parse_entries("trained", "pi", "ntk", "yarn")
    )
    max_documents: PositiveInt = Field(64, description="the same documents for all lengths")
    max_blocks: Annotated[
        Literal["auto"] | PositiveInt,
        single_error("should be auto or a whole number of at least 1"),
    ] = Field(
        "auto", description="per document: scored blocks, or longest windows; auto: 16,384 tokens"
    )
    targets: PositiveInt | None = Field(None, description="scored; null: half the shortest length")
    seed: Seed = Field(0, description="seed for choosing documents, blocks and resamples")
    memory_gib: Gibibytes | None = Field(
        None, description="for one batch; null: half an accelerator's memory, or 1/32 GiB on a CPU"
    )

    @model_validator(mode="after")
    def _targets_fit(self) -> "SameTokensConfig":
        if self.lengths is not None and self.targets is not None:
            check_targets(self.targets, self.lengths)
        return self


class SweepConfig(Presentation, SameTokensConfig, _Selection):
    """Perplexity against context length for many scalings, on one set of documents."""

    protocols: Annotated[NonEmpty[ProtocolName], distinct(str)] = Field(
        (BASELINE,), description="how windows are cut and which of their tokens are scored"
    )
    tasks: Annotated[
        ListOf[AnySweepTask], distinct(operator.attrgetter("label"), "; give one a name")
    ] = Field((), description="asked at every length, beside perplexity")
    stride: PositiveInt | None = Field(
        None,
        description=f"{', '.join(name for name, p in PROTOCOLS.items() if p.uses_stride)}: tokens "
        "from one window to the next; null: 256, or half the shortest length if that is less",
    )
    bos: Bos = Field("document", description="where document-start tokens are; training: document")
    split: Literal["test", "validation"] = Field("test", description="published figures: test")
    data: DataConfig | None = Field(None, description="texts to read; null: the run's")
    attention: AttentionName | None = Field(None, description="backend; null: as in training")
    tolerance: Tolerance = 0.02
    threshold: Share = Field(0.85, description="effective length: least share of exact answers")
    resamples: Resamples = 2000
    distributed: DistributedConfig | None = Field(None, description="several processes; null: one")

    @model_validator(mode="after")
    def _names_are_free(self) -> "SweepConfig":
        taken = {*PROTOCOLS, "curve", "steps"}
        if used := sorted(taken & {task.label for task in self.tasks}):
            raise ValueError(f"tasks: {used[0]} names a protocol or a figure; choose another name")
        # files of a sweep beside the folders of its curves: results.csv, curve.png, …
        endings = (".csv", ".jsonl", ".json", ".yaml", ".md", ".tex", ".png", ".pdf", ".svg")
        if files := [e.label for e in self.scalings if e.label.endswith(endings)]:
            raise ValueError(f"scalings: {files[0]} is named like a results file")
        self.check_names(entry.label for entry in self.scalings)
        check_read_whole(self.data)
        if self.lengths is not None and self.stride is not None:
            check_stride(self.stride, self.lengths)
        return self


class TrainingSweepConfig(SameTokensConfig):
    """A sweep during training: the same validation tokens with and without far context."""

    every_steps: PositiveInt = Field(200, description="steps between; also at the ends of stages")
    window: Length | None = Field(
        None, description="truncated context, the baseline; null: first seq_len, or the source's"
    )
    scalings: Scalings = Field(default_factory=lambda: (TrainedEntry(),))
    max_blocks: PositiveInt = Field(2, description="maximum number of scored blocks per document")
    memory_gib: Gibibytes = Field(1 / 32, description="for one batch, beside training")


class KeyTokensConfig(Frozen):
    """Key tokens for LongPPL: those that the far context makes likely."""

    name: FolderName | None = Field(None, description="null: the run's and short, such as long-512")
    step: Step = None
    split: Literal["test", "validation"] = Field("test", description="the split that sweeps read")
    short: Length = Field(description="K, near context; the measured models' window")
    stride: PositiveInt | None = Field(None, description="s; null: K/4")
    alpha: PositiveFloat = Field(2.0, description="least gain in log p over near context, in nats")
    beta: Annotated[float, Field(lt=0, allow_inf_nan=False)] = Field(
        -2.0, description="least log p with the whole window"
    )
    data: DataConfig | None = Field(None, description="texts, as in the sweep; null: the run's")
    max_documents: PositiveInt = Field(64, description="documents to read, longer than K + s")
    seed: Seed = Field(0, description="seed of the choice of documents")

    @model_validator(mode="after")
    def _nothing_is_trained(self) -> "KeyTokensConfig":
        check_read_whole(self.data)
        return self

    @property
    def s(self) -> int:
        return self.stride or max(1, self.short // 4)

    def check_window(self, window: int) -> None:
        """ValueError, which begins with the key, if an evaluator's window is too short."""
        if window <= self.short + self.s:
            raise ValueError(
                f"short: {self.short:,} and the stride of {self.s:,} are not less than the "
                f"evaluator's window of {window:,} tokens; take a run trained on longer windows"
            )


def check_targets(targets: int, lengths: tuple[int, ...]) -> None:
    """Refuse to score more than half of the shortest length: every target needs some context."""
    if targets > lengths[0] // 2:
        raise ValueError(
            f"lengths: {lengths[0]} is too short for {targets} scored targets; "
            f"the shortest length must be at least {2 * targets}, or targets at most "
            f"{lengths[0] // 2}"
        )


def check_stride(stride: int, lengths: tuple[int, ...]) -> None:
    """Refuse a stride longer than the windows: tokens between them would not be scored."""
    if stride > lengths[0]:
        raise ValueError(
            f"stride: {stride} is more than the shortest length, {lengths[0]}: tokens between "
            "the windows would not be scored"
        )
