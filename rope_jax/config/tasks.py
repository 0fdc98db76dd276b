"""Schemas of tasks, as a sweep measures them and training mixes them in."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Union

from pydantic import BaseModel, Field, create_model

from rope_jax.config.types import (
    Ascending,
    FolderName,
    Fraction,
    Length,
    NonEmpty,
    PositiveInt,
    Share,
    bare_names,
    from_text,
)
from rope_jax.tasks import TASKS, Question, Task


class SweepTask(Question):
    """A task of a sweep: its settings, and how often and where it is asked."""

    name: FolderName | None = Field(None, description="in tables; null: its type")
    samples: PositiveInt = Field(64, description="per length and depth, the same for all scalings")

    @property
    def label(self) -> str:
        """The task's name, unique in the sweep."""
        return self.name or self.task

    @property
    def places(self) -> tuple[float | None, ...]:
        """The depths that are asked about; only None for a task that has no depth."""
        return getattr(self, "depths", (None,))


class SampledTask(SweepTask, Task):
    """A task of a sweep whose samples are made for it."""


class _WithDepths(BaseModel):
    """The key of a sweep for a task that can be asked about any depth."""

    depths: Annotated[NonEmpty[Fraction], Ascending] = Field(
        (0.0, 0.25, 0.5, 0.75, 1.0),
        description="where the answer is: 0 at the start, 1 before the question",
    )


class LongPPL(SweepTask):
    """Perplexity over key tokens, which only far context makes likely: LongPPL.

    Each window ends with a block of key tokens, the same ones at every length, which are scored.
    Which tokens are key tokens was decided once, by a run that was trained on long windows.
    """

    title: ClassVar[str] = "key tokens (LongPPL)"
    source: ClassVar[str] = "Fang et al., arXiv 2410.23771, PKU-ML/LongPPL"
    has_depth: ClassVar[bool] = False
    has_answers: ClassVar[bool] = False
    task: Literal["longppl"] = "longppl"
    mask: str = Field(description="file of key tokens, which rope-jax key-tokens writes")
    samples: PositiveInt = Field(256, description="blocks of key tokens, the same at every length")


def _with_keys(task: type[Task], *more: type[BaseModel], of: str) -> Any:
    return create_model(f"{task.__name__}{of}", __base__=(task, *more), __doc__=task.__doc__)


SWEEP_TASKS: Mapping[str, type[SweepTask]] = {
    name: _with_keys(task, *([_WithDepths] if task.has_depth else []), SampledTask, of="InSweep")
    for name, task in TASKS.items()
} | {"longppl": LongPPL}


class MixedTask(Task):
    """A task in training: its settings, and its share of the windows."""

    share: Share = Field(description="share of windows with a sample")
    shortest: Length | None = Field(None, description="least tokens of a sample; null: the window")


MIXED_TASKS: Mapping[str, type[MixedTask]] = {
    name: _with_keys(task, MixedTask, of="InTraining") for name, task in TASKS.items()
}


if TYPE_CHECKING:
    AnySweepTask = SweepTask
    AnyMixedTask = MixedTask
else:
    AnyMixedTask = Annotated[Union[*MIXED_TASKS.values()], Field(discriminator="task")]
    _ByTask = Annotated[Union[*SWEEP_TASKS.values()], Field(discriminator="task")]
    AnySweepTask = Annotated[
        _ByTask, from_text("task", Literal[*bare_names(SWEEP_TASKS)] | _ByTask)
    ]
