"""Expand a grid into jobs: one training run or fit per combination of axes, its sweeps, and so on.

Everything that can be checked before the first job runs is checked here.
"""

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rope_jax.config.fit import FitConfig
from rope_jax.config.grid import GridConfig, RunTemplate
from rope_jax.config.load import flow_yaml, read_raw
from rope_jax.config.named import config_path
from rope_jax.config.presentation import CompareConfig
from rope_jax.config.types import errors_in
from rope_jax.errors import UserError, errors_from
from rope_jax.grids.jobs import CompareJob, FitJob, Job, SweepJob, TrainJob
from rope_jax.grids.planned import Planned, absolute
from rope_jax.rope.messages import show_value

# Below `runs_dir`: the folder with the logs of all grids.
GRIDS = "grids"
_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")
_FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=+-]*")

Axes = Mapping[str, tuple[Any, ...]]
Values = Mapping[str, Any]
# Replaces the placeholders in a value; the second argument is its key, for messages.
Fill = Callable[[Any, str], Any]


class _Made(NamedTuple):
    """What one combination of axes stands for, and the run that is trained or fitted on.

    values: of the axes, those of the source included.
    """

    values: Values
    run: TrainJob
    job: TrainJob | FitJob
    sweeps: tuple[SweepJob, ...]


def expand(grid: GridConfig) -> list[Job]:
    """Return the jobs of a grid in an order in which they can be run.

    The runs of an entry, each followed by its sweeps, come after the runs that they start from, and
    the comparison is last.

    Raises UserError: a config that cannot be read or is wrong, a placeholder that is not known, a
    run that is repeated, or two jobs that write to one folder.
    """
    numbers = {template.name: number for number, template in enumerate(grid.runs)}
    made: dict[str | None, list[_Made]] = {None: []}
    planned = Planned()

    def make(name: str | None) -> list[_Made]:
        """Return what an entry expands to, made once, after what it starts from."""
        if name not in made:
            template = grid.runs[numbers[str(name)]]
            sources, key = make(template.source), f"runs.{numbers[template.name]}"
            made[name] = list(_Template(grid, template, key, sources, planned).expand())
        return made[name]

    for template in grid.runs:
        make(template.name)
    results = itertools.chain.from_iterable(made.values())
    jobs: list[Job] = [job for result in results for job in (result.job, *result.sweeps)]
    _check_repeats(jobs)
    if grid.compare is not None:
        sweeps = [job for job in jobs if isinstance(job, SweepJob)]
        jobs.append(_comparison(grid.compare, sweeps))
    return jobs


@dataclass
class _Template:
    """One entry of `runs`, with the runs that it starts from.

    key: where the entry is in the grid, for messages.
    planned: what the entries before this one make; its own runs and fits are added.
    used: the axes that it refers to.
    """

    grid: GridConfig
    template: RunTemplate
    key: str
    sources: Sequence[_Made]
    planned: Planned
    used: set[str] = field(default_factory=set)

    def expand(self) -> Iterator[_Made]:
        """Yield the runs or fits of all combinations, in the order of the values of the axes."""
        chosen = self.template.axes  # may select some of the source's runs
        inherited: dict[str, list[Any]] = {}
        for source in self.sources:
            for axis, value in source.values.items():
                inherited.setdefault(axis, []).append(value)
        for axis, there in inherited.items():
            for value in chosen.get(axis, ()):
                if value not in there:
                    shown = ", ".join(map(show_value, dict.fromkeys(there)))
                    raise UserError(
                        f"{self.key}.axes.{axis}: {self.template.source} has no run with "
                        f"{show_value(value)}; its values are {shown}"
                    )
        own = {axis: v for axis, v in chosen.items() if axis not in inherited}
        starts: list[_Made | None] = [None]
        if self.template.source is not None:
            starts = [
                source
                for source in self.sources
                if all(value in chosen.get(axis, (value,)) for axis, value in source.values.items())
            ]
        for combination in itertools.product(*own.values()):
            for start in starts:
                values = dict(zip(own, combination, strict=True))
                yield self._made(values | dict(start.values if start else {}), own, start)
        for axis in own:
            if axis not in self.used:
                raise UserError(
                    f"{self.key}.axes.{axis}: repeats the same run, because nothing refers to "
                    f"{{{axis}}}; use it in {self.key}.set, as in {axis}: '{{{axis}}}'"
                )

    def _made(self, values: Values, own: Axes, source: _Made | None) -> _Made:
        """Return the jobs of one combination. own: the axes that the source does not have."""
        variables = dict(values)
        if self.grid.window is not None:
            variables["window"] = self.grid.window
        job: TrainJob | FitJob
        if source is not None and self.template.fit is not None:
            # the axes of the run are in its own name
            name, run = self._name({axis: values[axis] for axis in own}), source.run
            folder = run.folder / "fits" / name
            variables |= {"name": name, "run": str(run.folder), "source": str(run.folder)}
            fill = self._filler(variables | {"fit": str(folder)})
            job = self._fit(folder, self.template.fit, run, fill)
        else:
            name = self._name(values)
            folder = Path(self.grid.runs_dir) / name
            variables |= {"name": name, "run": str(folder)}
            if source is not None:
                variables["source"] = str(source.run.folder)
                if isinstance(source.job, FitJob):
                    variables["fit"] = str(source.job.folder)
            fill = self._filler(variables)
            job = run = self._train(folder, str(self.template.train), source, fill)
        sweeps = [self._sweep(n, job, run, fill) for n in range(len(self.template.sweeps))]
        return _Made(values, run, job, tuple(sweeps))

    def _name(self, values: Values) -> str:
        """Return the name of a run, such as yarn-x4-120-s0: the template's, then the axes'."""
        order = [axis for axis in values if axis != "seed"] + ["seed"] * ("seed" in values)
        prefixes = {"factor": "x", "seed": "s"}
        parts = [prefixes.get(axis, "") + _short(values[axis]) for axis in order]
        name = "-".join([self.template.name, *parts])
        if not _FOLDER_NAME.fullmatch(name) or len(name) > 200:
            raise UserError(
                f"{self.key}.axes: {show_value(name)} cannot be the name of a run; values consist "
                "of letters, digits and ._=+-"
            )
        if name == GRIDS:
            raise UserError(
                f"{self.key}.name: {GRIDS} is the folder with the logs; choose another name"
            )
        return name

    def _filler(self, variables: Values) -> Fill:
        """Return a function that replaces the placeholders in a value at a key of the entry."""

        def replaced(found: re.Match[str], key: str) -> Any:
            name = found[1]
            self.used.add(name)
            if name in ("length", "batch_size"):
                self.used.add("factor")
                length = self._length(variables, key)
                return length if name == "length" else self._batch_size(length, key)
            if name not in variables:
                known = ", ".join(f"{{{known}}}" for known in variables)
                raise UserError(f"{self.key}.{key}: {{{name}}} is not known here; use {known}")
            return variables[name]

        def fill(value: Any, key: str) -> Any:
            if isinstance(value, dict):
                return {inner: fill(v, f"{key}.{inner}") for inner, v in value.items()}
            if isinstance(value, list):
                return [fill(inner, f"{key}.{i}") for i, inner in enumerate(value)]
            if not isinstance(value, str):
                return value
            if whole := _PLACEHOLDER.fullmatch(value):
                return replaced(whole, key)  # a number stays a number
            return _PLACEHOLDER.sub(lambda found: _short(replaced(found, key)), value)

        return fill

    def _length(self, variables: Values, key: str) -> int:
        for name, where in (("window", "window"), ("factor", f"{self.key}.axes.factor")):
            if not isinstance(variables.get(name), int | float):
                raise UserError(
                    f"{self.key}.{key}: {{length}} is window × factor; give numbers for {where}"
                )
        length = variables["window"] * variables["factor"]
        if isinstance(length, float) and not length.is_integer():
            raise UserError(
                f"{self.key}.{key}: {{length}} is {variables['window']} × {variables['factor']}, "
                "which is not a whole number"
            )
        return int(length)

    def _batch_size(self, length: int, key: str) -> int:
        tokens = self.grid.tokens_per_step
        if tokens is None:
            raise UserError(
                f"{self.key}.{key}: {{batch_size}} is tokens_per_step / length; give "
                "tokens_per_step"
            )
        if tokens % length:
            raise UserError(
                f"{self.key}.{key}: {{batch_size}} is {tokens:,} tokens / {length:,}, which is not "
                "a whole number; change tokens_per_step"
            )
        return tokens // length

    def _train(self, folder: Path, file: str, source: _Made | None, fill: Fill) -> TrainJob:
        own = self._overrides("set", self.template.set, fill, reserved=("name", "runs_dir"))
        places = {"name": folder.name, "runs_dir": self.grid.runs_dir}
        # first, so that `set` can ask for more than the newest weights
        start = {} if source is None else {"init_from": str(source.run.folder)}
        overrides = (*_arguments(start), *own, *_arguments(places))
        with errors_from(f"{self.key} ({folder.name})"):
            config = config_path(_short(fill(file, "train")))
            training, settings = self.planned.training(*read_raw(config, overrides))
        self.planned.runs[absolute(folder)] = training
        return TrainJob(
            name=f"{folder.name}/train",
            folder=folder,
            settings={key: value for key, value in settings.items() if key not in places},
            overrides=overrides,
            needs=() if source is None else (source.job,),
            config=config,
        )

    def _fit(self, folder: Path, file: str, run: TrainJob, fill: Fill) -> FitJob:
        own = self._overrides("set", self.template.set, fill, reserved=("name",))
        with errors_from(f"{self.key} ({folder.name})"):
            raw, origin = read_raw(config_path(_short(fill(file, "fit")), "fits"), own)
            raw = {key: v for key, v in raw.items() if key != "name"} | {"name": folder.name}
            fit, settings = self.planned.validate(FitConfig, raw, origin)
            training = self.planned.runs[absolute(run.folder)]
            with errors_in(f"{origin}: step: ", UserError):
                stage = training.stage_at(fit.step or training.last_step)
            with errors_in(f"{origin}: ", UserError):
                fit.check_window(training.stages[stage].seq_len)
        job = FitJob(
            name=f"{run.folder.name}/fit-{folder.name}",
            folder=folder,
            settings={key: value for key, value in settings.items() if key != "name"},
            overrides=_arguments(raw),
            needs=(run,),
            run=run,
        )
        self.planned.strategies.add(absolute(job.strategy))
        return job

    def _sweep(self, number: int, made: TrainJob | FitJob, run: TrainJob, fill: Fill) -> SweepJob:
        template, key = self.template.sweeps[number], f"sweeps.{number}"
        overrides = self._overrides(f"{key}.set", template.set, fill)
        with errors_from(f"{self.key}.{key}"):
            config = config_path(_short(fill(template.config, f"{key}.config")), "sweeps")
            settings = self.planned.sweep(config, overrides)
            if isinstance(made, FitJob) and "name" not in template.set:
                # several fits of one run may be swept
                name = f"{settings['name']}-{made.folder.name}"
                overrides = (*overrides, *_arguments({"name": name}))
                settings = self.planned.sweep(config, overrides)
        name = str(settings["name"])
        return SweepJob(
            name=f"{run.folder.name}/sweep-{name}",
            folder=run.folder / "evals" / name,
            settings=settings,
            overrides=overrides,
            needs=(made,),
            config=config,
            run=run,
        )

    def _overrides(
        self, key: str, given: Mapping[str, Any], fill: Fill, reserved: Sequence[str] = ()
    ) -> tuple[str, ...]:
        """Return the arguments for what the entry sets at `key`, except the keys `reserved`."""
        for name in given:
            if name in reserved:
                raise UserError(
                    f"{self.key}.{key}.{name}: follows from the grid's runs_dir and the entry's "
                    "name and axes; remove it"
                )
            if "=" in name or not name:
                raise UserError(f"{self.key}.{key}: {show_value(name)} is not the name of a key")
        return _arguments({name: fill(value, f"{key}.{name}") for name, value in given.items()})


def _arguments(settings: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(f"{key}={flow_yaml(value)}" for key, value in settings.items())


def _short(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _comparison(config: CompareConfig, sweeps: Sequence[SweepJob]) -> CompareJob:
    chosen = tuple(s for s in sweeps if config.sweep in (None, s.folder.name))
    if not sweeps:
        raise UserError("compare: no entry of runs has sweeps; give it some, or remove compare")
    if not chosen:
        names = ", ".join(dict.fromkeys(sweep.folder.name for sweep in sweeps))
        raise UserError(f"compare.sweep: no sweep is called {config.sweep}; there are {names}")
    settings = config.model_dump(mode="json", exclude={"sweep"}, exclude_defaults=True)
    return CompareJob(
        name="compare",
        folder=Path(config.output),
        settings=settings,
        overrides=_arguments(settings),
        needs=(),
        sweeps=chosen,
    )


def _check_repeats(jobs: Sequence[Job]) -> None:
    folders: dict[Path, Job] = {}
    contents: dict[str, Job] = {}
    for job in jobs:
        if job.folder in folders:
            raise UserError(
                f"runs: {job.folder} is made twice; give one of the two another name"
                + "= in its set" * isinstance(job, SweepJob)
            )
        folders[job.folder] = job
        if isinstance(job, SweepJob):  # two sweeps with equal settings are harmless
            continue
        sources = [source.name for source in job.needs]
        content = json.dumps([sources, job.settings], sort_keys=True)
        if content in contents:
            raise UserError(
                f"runs: {job.name} repeats {contents[content].name}: all their settings are the "
                "same; remove one of them"
            )
        contents[content] = job
