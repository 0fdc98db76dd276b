"""The results of one sweep, as comparisons use them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from rope_jax.results.rows import Row
from rope_jax.results.statistics import Sums
from rope_jax.results.tasks import EffectiveLength, TaskRow


class PointKey(NamedTuple):
    """Identifies a measured point within a sweep."""

    name: str
    protocol: str
    length: int
    step: int

    @classmethod
    def of(cls, row: Row) -> "PointKey":
        """Return the key of a row of results.csv."""
        return cls(name=row.name, protocol=row.protocol, length=row.length, step=row.step)


@dataclass(frozen=True, eq=False)
class Sweep:
    """The results in one sweep's folder."""

    folder: Path
    run: str
    seed: int
    rows: Sequence[Row]
    sums: Mapping[PointKey, Sums]
    """Sums by document of every row, and of `trained` at the window with same_tokens."""
    windows: Mapping[int, int]
    """The length that each checkpoint was last trained at, by step."""
    settings: Mapping[str, str]
    """The settings of each scaling as JSON, by the scaling's name."""
    baselines: Mapping[int, str]
    """By step, the name of the curve with the checkpoint's own scaling, if there is one."""
    experiment: str | None
    """Equal for runs that differ only in their seed; None if unknown."""
    longest: int | None
    """The most tokens that the model's positions can number; None: any number, or unknown."""
    tasks: Sequence[TaskRow] = ()
    """The rows of tasks.csv; none of a sweep without tasks."""
    effective: Mapping[str, Mapping[str, EffectiveLength]] = field(default_factory=dict)
    """The newest checkpoint's effective lengths, by task and scaling."""
    renamed: str | None = None
    """What the sweep itself calls the curve that is named `trained` here; None: the same."""

    @property
    def name(self) -> str:
        """The sweep's own name."""
        return self.folder.resolve().name

    @property
    def label(self) -> str:
        """The run's and the sweep's name."""
        return f"{self.run}/{self.name}"

    def points_at(self, step: int) -> dict[PointKey, Row]:
        """Return the rows of one checkpoint by their keys, in the order they were measured."""
        return {PointKey.of(row): row for row in self.rows if row.step == step}
