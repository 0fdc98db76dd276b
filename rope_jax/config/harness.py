"""Schema of tasks of lm-evaluation-harness on a run."""

from typing import Annotated

from pydantic import Field

from rope_jax.config.entries import Scalings, TrainedEntry
from rope_jax.config.types import (
    Ascending,
    FolderName,
    Frozen,
    Length,
    NonEmpty,
    NonNegativeInt,
    PositiveInt,
    Step,
    distinct,
)


class HarnessConfig(Frozen):
    """Tasks of lm-evaluation-harness, each with every scaling at every length."""

    name: FolderName = Field("harness", description="name of the folder in the run's harness/")
    step: Step = None
    tasks: Annotated[NonEmpty[str], distinct(str)] = Field(
        description="names of tasks or groups, or files of tasks in YAML"
    )
    scalings: Scalings = Field(default_factory=lambda: (TrainedEntry(),))
    lengths: Annotated[NonEmpty[Length], Ascending] | None = Field(
        None, description="n: the longest text, and that of RULER's tasks; null: the window"
    )
    limit: PositiveInt | None = Field(None, description="samples of each task; null: all")
    num_fewshot: NonNegativeInt | None = Field(
        None, description="examples before each question; null: the task's"
    )
    apply_chat_template: bool = Field(False, description="whether a user asks the questions")
    batch_size: PositiveInt = Field(1, description="texts that are read at a time")
