"""Schemas of tasks: as a sweep measures them, and as training mixes them in. Imports no jax.

For each task of `rope_jax.tasks`, two models are derived from its own settings: one with the keys
of a sweep, and one with the keys of a training mix.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import BeforeValidator, Field, create_model, model_validator

from rope_jax.config.types import FolderName, Fraction, Frozen, PositiveInt
from rope_jax.tasks import TASKS, Task


class SweepTask(Task):
    """A task of a sweep: its settings, and how often and where it is asked."""

    name: FolderName | None = Field(None, description="the task's name in tables; null: its type")
    samples: PositiveInt = Field(
        64, description="samples per length and depth, the same for all scalings"
    )
    depths: tuple[float, ...] = ()

    @property
    def label(self) -> str:
        """The task's name, unique in the sweep."""
        return self.name or self.task


class _WithDepths(Frozen):
    """The keys of a sweep for a task that can be asked about any depth."""

    depths: Annotated[tuple[Fraction, ...], Field(min_length=1, strict=False)] = Field(
        (0.0, 0.25, 0.5, 0.75, 1.0),
        description="places of what is asked for: 0 at the start, 1 before the question",
    )

    @model_validator(mode="after")
    def _depths_ascend(self) -> "_WithDepths":
        if list(self.depths) != sorted(set(self.depths)):
            raise ValueError(f"depths: {list(self.depths)} must be ascending, without repeats")
        return self


class MixedTask(Task):
    """A task in training: its settings, and its share of the windows."""

    share: Annotated[float, Field(gt=0, le=1)] = Field(
        description="share of the training windows that are samples of this task"
    )
