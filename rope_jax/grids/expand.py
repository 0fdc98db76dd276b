"""Expand a grid into jobs: one training run or fit per combination of axes, its sweeps, and so on.

Everything that can be checked before the first job runs is checked here.
"""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rope_jax.config.fit import FitConfig
from rope_jax.config.grid import GridConfig, RunTemplate
from rope_jax.config.load import config_path, flow_yaml, read_raw
from rope_jax.config.presentation import CompareConfig
from rope_jax.config.types import errors_in
from rope_jax.errors import UserError, errors_from
from rope_jax.grids.jobs import CompareJob, FitJob, Job, SweepJob, TrainJob
from rope_jax.grids.planned import Planned, absolute
from rope_jax.rope.messages import show_value

GRIDS = "grids"
"""Below `runs_dir`: the folder with the logs of all grids."""
_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")
_DERIVED = {
    "length": "it is window × axes.factor, both numbers, and whole",
    "batch_size": "it is tokens_per_step / {length}, and whole",
}

Axes = Mapping[str, tuple[Any, ...]]
Values = Mapping[str, Any]
# Replaces the placeholders in a value; the second argument is its key, for messages.
Fill = Callable[[Any, str], Any]


class _Made(NamedTuple):
    """What one combination of axes, the source's included, stands for.

    run: the run that is trained or fitted on.
    """

    values: Values
    run: TrainJob
    job: TrainJob | FitJob
    sweeps: tuple[SweepJob, ...]


def expand(grid: GridConfig) -> list[Job]:
    """Return the jobs of a grid in an order in which they can be run.

    The runs of an entry, each followed by its sweeps, come after the runs that they start from, and
    the comparison is last.

    Raises UserError: a config that is wrong, a placeholder that is not known, an axis that changes
    nothing, or two jobs that write to one folder.
    """
    numbers = {template.name: number for number, template in enumerate(grid.runs)}
    made: dict[str, list[_Made]] = {}
    planned = Planned()

    def make(name: str) -> list[_Made]:
        """Expand an entry once, after the one that it starts from."""
        if name not in made:
            template = grid.runs[numbers[name]]
            sources = [] if template.source is None else make(template.source)
            key = f"runs.{numbers[name]}"
            made[name] = list(_Template(grid, template, key, sources, planned).expand())
        return made[name]

    for name in numbers:
        make(name)
    results = itertools.chain.from_iterable(made.values())
    jobs: list[Job] = [job for result in results for job in (result.job, *result.sweeps)]
    folders = [job.folder for job in jobs]
    for job in jobs:
        if folders.count(job.folder) > 1:
            what = "name= in its set" if isinstance(job, SweepJob) else "name"
            raise UserError(f"runs: {job.folder} is made twice; give one of the two another {what}")
    if grid.compare is not None:
        sweeps = [job for job in jobs if isinstance(job, SweepJob)]
        jobs.append(_comparison(grid.compare, sweeps))
    return jobs


@dataclass
class _Template:
    """One entry of `runs`, with the runs that it starts from."""

    grid: GridConfig
    template: RunTemplate
    key: str  # of the entry, for messages
    sources: Sequence[_Made]
    planned: Planned  # what the entries before this one make; its own runs and fits are added
    used: set[str] = field(default_factory=set)  # the axes that it refers to

    def expand(self) -> Iterator[_Made]:
        """Yield the runs or fits of all combinations, in the order of the values of the axes."""
        chosen = self.template.axes  # may select some of the source's runs
        inherited = self.sources[0].values if self.sources else {}
        for axis in inherited:
            there = list(dict.fromkeys(source.values[axis] for source in self.sources))
            for value in chosen.get(axis, ()):
                if value not in there:
                    raise UserError(
                        f"{self.key}.axes.{axis}: {self.template.source} has no run with "
                        f"{show_value(value)}; its values are {', '.join(map(show_value, there))}"
                    )
        own = {axis: v for axis, v in chosen.items() if axis not in inherited}
        starts: list[_Made | None] = [None]
        if self.template.source is not None:
            starts = [
                source
                for source in self.sources
                if all(value in chosen.get(axis, (value,)) for axis, value in source.values.items())
            ]
        for combination, start in itertools.product(itertools.product(*own.values()), starts):
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
        variables = self._variables(values)
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

    def _variables(self, values: Values) -> dict[str, Any]:
        """Return what {axis}, {window}, {length} and {batch_size} stand for, if known."""
        variables, tokens = dict(values), self.grid.tokens_per_step
        if self.grid.window is not None:
            variables["window"] = self.grid.window
        window, factor = variables.get("window"), variables.get("factor")
        if isinstance(window, int | float) and isinstance(factor, int | float):
            length = window * factor
            if length > 0 and length % 1 == 0:
                variables["length"] = int(length)
                if tokens is not None and tokens % variables["length"] == 0:
                    variables["batch_size"] = tokens // variables["length"]
        return variables

    def _name(self, values: Values) -> str:
        """Return the name of a run, such as yarn-x4-120-s0: the template's, then the axes'."""
        order = [axis for axis in values if axis != "seed"] + ["seed"] * ("seed" in values)
        prefixes = {"factor": "x", "seed": "s"}
        parts = [prefixes.get(axis, "") + _short(values[axis]) for axis in order]
        name = "-".join([self.template.name, *parts])
        if "/" in name:  # what else a name may not contain, its config says
            raise UserError(f"{self.key}.axes: {show_value(name)} cannot be the name of a run")
        return name

    def _filler(self, variables: Values) -> Fill:
        """Return a function that replaces the placeholders in a value at a key of the entry."""

        def replaced(found: re.Match[str], key: str) -> Any:
            name = found[1]
            self.used.add("factor" if name in _DERIVED else name)
            if name not in variables:
                says = _DERIVED.get(name) or "use " + ", ".join(f"{{{v}}}" for v in variables)
                raise UserError(f"{self.key}.{key}: {{{name}}} is not known here; {says}")
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
        self.planned.strategies.add(absolute(folder / "strategy.json"))
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
