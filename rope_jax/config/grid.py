"""Schema of a grid: runs for every combination of settings, their sweeps, and one comparison."""

import operator
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from rope_jax.config.messages import show_value
from rope_jax.config.presentation import CompareConfig
from rope_jax.config.types import (
    FolderName,
    Frozen,
    Length,
    ListOf,
    NonEmpty,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    distinct,
    from_text,
)
from rope_jax.rope.settings import single_error

# Placeholders with a meaning of their own, so no axis may have these names.
_VARIABLES = ("name", "run", "source", "fit", "window", "length", "batch_size")


def _check_axis(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise ValueError("the name of an axis consists of letters, digits and _")
    if name in _VARIABLES:
        raise ValueError(f"{{{name}}} has a meaning of its own; choose another name")
    return name


AxisName = Annotated[str, AfterValidator(_check_axis)]
AxisValue = Annotated[
    bool | int | Annotated[float, Field(allow_inf_nan=False)] | str,
    single_error("should be text, a number, true or false"),
]
AxisValues = Annotated[NonEmpty[AxisValue], distinct(show_value)]


class GridSweep(Frozen):
    """A sweep of each run of a template."""

    config: str = Field(description="the sweep's YAML file; in short, the path alone")
    set: dict[str, Any] = Field({}, description="keys of the sweep to set, as {dotted.key: value}")


AnySweep = Annotated[GridSweep, from_text("config", str | GridSweep)]


class RunTemplate(Frozen):
    """Runs, or fits on runs, that differ in the values of some axes."""

    name: FolderName = Field(description="begins the name of each run, such as yarn in yarn-x4-s0")
    train: str | None = Field(None, description="a training config; or give fit")
    fit: str | None = Field(None, description="a fit's config (rope-jax fit); needs source")
    source: FolderName | None = Field(
        None, description="an entry above, whose runs these start from; its axes apply here"
    )
    axes: dict[AxisName, AxisValues] = Field({}, description="one run per combination of values")
    set: dict[str, Any] = Field(
        {},
        description="keys to set, as {dotted.key: value}; texts may have {axis}, {window}, "
        "{length} (window × factor), {batch_size} (tokens_per_step / length), {name}, "
        "{run}, {source}, {fit}",
    )
    sweeps: ListOf[AnySweep] = Field((), description="of each run")

    @model_validator(mode="after")
    def _is_one_kind(self) -> "RunTemplate":
        if self.train is None and self.fit is None:
            raise ValueError("train: is required, unless fit is given")
        if self.train is not None and self.fit is not None:
            raise ValueError("fit: cannot be given together with train; make two entries")
        if self.fit is not None and self.source is None:
            raise ValueError("source: is required with fit; name the entry with the runs to fit on")
        return self


class SlurmConfig(Frozen):
    """What each job of a grid asks Slurm for."""

    partition: str | None = Field(None, description="partition; null: the cluster's default")
    time_minutes: PositiveInt = Field(60, description="time limit; jobs stop 90 s before it")
    gpus: NonNegativeInt = Field(0, description="GPUs per job")
    cpus: PositiveInt = Field(2, description="CPU cores per job")
    memory_gib: PositiveFloat | None = Field(None, description="per job; null: cluster's default")
    options: dict[str, str | int] = Field({}, description="more for sbatch, as {account: mine}")


class GridConfig(Frozen):
    """Many runs with their sweeps, and one comparison of all."""

    name: FolderName = Field(description="name of the folder with logs, RUNS_DIR/grids/NAME")
    runs_dir: str = Field("runs", description="folder for run directories")
    window: Length | None = Field(None, description="window of the source runs, for {length}")
    tokens_per_step: PositiveInt | None = Field(None, description="per step, for {batch_size}")
    runs: Annotated[
        NonEmpty[RunTemplate], distinct(operator.attrgetter("name"), "; choose another name")
    ] = Field(description="runs to make")
    compare: CompareConfig | None = Field(None, description="comparison at the end; null: none")
    launcher: Literal["local", "print", "slurm"] = Field(
        "local", description="local: one by one; print: a shell command per job; slurm: submit"
    )
    slurm: SlurmConfig = SlurmConfig()
    dry_run: bool = Field(False, description="show the jobs, done or to do, and run nothing")

    @model_validator(mode="after")
    def _sources_come_first(self) -> "GridConfig":
        earlier: dict[str, RunTemplate] = {}
        for number, template in enumerate(self.runs):
            key, source = f"runs.{number}.source", template.source
            if source is not None and source not in earlier:
                there = ", ".join(earlier) or "none"
                raise ValueError(f"{key}: no entry above is called {source}; there are {there}")
            if source is not None and earlier[source].fit and template.fit:
                raise ValueError(f"{key}: {source} is a fit as well; name an entry with train")
            earlier[template.name] = template
        return self
