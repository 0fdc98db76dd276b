"""Expand a grid into jobs: one training run or fit per combination of axes, its sweeps, and so on.

Everything that can be checked before the first job runs is checked here.
"""

import itertools
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rope_jax.config.fit import FitConfig
from rope_jax.config.grid import GridConfig, RunTemplate
from rope_jax.config.inherit import Source, find_source, planned_source, training_config
from rope_jax.config.load import config_path, flow_yaml, read_raw, validate
from rope_jax.config.messages import show_value
from rope_jax.config.presentation import CompareConfig
from rope_jax.config.sections import InitFrom
from rope_jax.config.strategy import Strategy, is_strategy_file, write_strategy
from rope_jax.config.sweep import SweepConfig
from rope_jax.errors import UserError, errors_in
from rope_jax.grids.jobs import CompareJob, FitJob, Job, SweepJob, TrainJob
from rope_jax.rope.strategies import NoScaling

_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")
_DERIVED = {
    "length": "it is window × axes.factor, both numbers, and whole",
    "batch_size": "it is tokens_per_step / {length}, and whole",
}

Values = Mapping[str, Any]


class _Made(NamedTuple):
    """A run or a fit, and the values of its axes, the source's included."""

    values: Values
    job: TrainJob | FitJob


def expand(grid: GridConfig) -> list[Job]:
    """Return the jobs of a grid in an order in which they can be run; the comparison is last.

    Raises UserError: a config that is wrong, a placeholder that is not known, an axis that changes
    nothing, or two jobs that write to one folder.
    """
    with tempfile.TemporaryDirectory() as folder:
        expansion = _Expansion(grid, Path(folder))
        for number, template in enumerate(grid.runs):
            made = expansion.runs_of(template, f"runs.{number}")
            expansion.made[template.name] = list(made)
    jobs = list(expansion.jobs.values())
    if grid.compare is not None:
        sweeps = tuple(job for job in jobs if isinstance(job, SweepJob))
        jobs.append(_comparison(grid.compare, sweeps))
    return jobs


class _Expansion:
    """The jobs so far, by absolute folder, and the runs or fits of each entry, by its name.

    folder: for stand-ins of strategy files that do not exist yet.
    """

    def __init__(self, grid: GridConfig, folder: Path) -> None:
        self.grid, self.folder = grid, folder
        self.jobs: dict[Path, Job] = {}
        self.made: dict[str, list[_Made]] = {}

    def runs_of(self, template: RunTemplate, key: str) -> Iterator[_Made]:
        """Yield the runs or fits of an entry, in the order of the values of its axes."""
        sources = [] if template.source is None else self.made[template.source]
        chosen = template.axes  # may select some of the source's runs
        inherited = sources[0].values if sources else {}
        for axis in inherited:
            there = dict.fromkeys(source.values[axis] for source in sources)
            for value in chosen.get(axis, ()):
                if value not in there:
                    raise UserError(
                        f"{key}.axes.{axis}: {template.source} has no run with "
                        f"{show_value(value)}; its values are {', '.join(map(show_value, there))}"
                    )
        starts: list[_Made | None] = [
            source
            for source in sources
            if all(value in chosen.get(axis, (value,)) for axis, value in source.values.items())
        ]
        added = {axis: values for axis, values in chosen.items() if axis not in inherited}
        for combination in itertools.product(*added.values()):
            for start in starts or [None]:
                yield self._make(template, key, dict(zip(added, combination, strict=True)), start)
        used = set(_PLACEHOLDER.findall(str(_settings(template))))
        for axis in added:
            if axis not in used and not (axis == "factor" and used & _DERIVED.keys()):
                raise UserError(
                    f"{key}.axes.{axis}: repeats the same run, because nothing refers to "
                    f"{{{axis}}}; use it in {key}.set, as in {axis}: '{{{axis}}}'"
                )

    def _make(self, template: RunTemplate, key: str, added: Values, start: _Made | None) -> _Made:
        """Plan the jobs of one combination. added: the values that the source does not have."""
        source, values = None if start is None else start.job, dict(added)
        variables = {}
        if start is not None:
            values |= start.values
            variables["source"] = str(start.job.run.folder)
            if isinstance(start.job, FitJob):
                variables["fit"] = str(start.job.folder)
        # the axes of the run that a fit is made on are in that run's name
        name = _name(template, key, added if template.fit else values)
        folder = run = Path(self.grid.runs_dir) / name
        if template.fit is not None and source is not None:
            run = source.run.folder
            folder = run / "fits" / name
            variables["fit"] = str(folder)
        variables |= {"name": name, "run": str(run)}
        settings = _filled(key, _settings(template), self._variables(values) | variables)
        job: TrainJob | FitJob
        with errors_in(f"{key} ({name}): ", UserError, UserError):
            if template.fit is not None and source is not None:
                job = self._fit(folder, source.run, settings)
            else:
                job = self._train(folder, source, settings)
        self._add(job)
        for number, sweep in enumerate(settings["sweeps"]):
            with errors_in(f"{key}.sweeps.{number}: ", UserError, UserError):
                of_job = self._sweep(job, sweep)
            self._add(of_job)
        return _Made(values, job)

    def _add(self, job: Job) -> None:
        if job.folder.absolute() in self.jobs:
            what = "name= in its set" if isinstance(job, SweepJob) else "name"
            raise UserError(f"runs: {job.folder} is made twice; give one of the two another {what}")
        self.jobs[job.folder.absolute()] = job

    def _variables(self, values: Values) -> dict[str, Any]:
        """Return what {axis}, {window}, {length} and {batch_size} stand for, if known."""
        variables, window, tokens = dict(values), self.grid.window, self.grid.tokens_per_step
        if window is not None:
            variables["window"] = window
            factor = values.get("factor")
            length = window * factor if isinstance(factor, int | float) else 0
            if length > 0 and length % 1 == 0:
                variables["length"] = int(length)
                if tokens is not None and tokens % length == 0:
                    variables["batch_size"] = tokens // int(length)
        return variables

    def _train(
        self, folder: Path, source: TrainJob | FitJob | None, settings: dict[str, Any]
    ) -> TrainJob:
        file = config_path(_short(settings["train"]))
        overrides = settings["set"] | {"name": folder.name, "runs_dir": self.grid.runs_dir}
        if source is not None:  # first, so that `set` can ask for more than the newest weights
            overrides = {"init_from": str(source.run.folder)} | overrides
        words = _arguments(overrides)
        raw, origin, fits = self._read(file, words)
        planned = training_config(raw, origin, self._source)
        needs = _distinct(*([source] if source else []), *fits)
        return TrainJob(f"{folder.name}/train", folder, words, needs, file, planned)

    def _fit(self, folder: Path, run: TrainJob, settings: dict[str, Any]) -> FitJob:
        file = config_path(_short(settings["fit"]), "fits")
        named = _arguments(settings["set"] | {"name": folder.name})
        raw, origin, fits = self._read(file, named)
        fit = validate(FitConfig, raw, origin)
        with errors_in(f"{origin}: step: ", UserError):
            stage = run.planned.stage_at(fit.step or run.planned.last_step)
        with errors_in(f"{origin}: ", UserError):
            fit.check_window(run.planned.stages[stage].seq_len)
        name, words = f"{run.folder.name}/fit-{folder.name}", _arguments(read_raw(file, named)[0])
        return FitJob(name, folder, words, _distinct(run, *fits), run)

    def _sweep(self, made: TrainJob | FitJob, sweep: Values) -> SweepJob:
        file, words = config_path(_short(sweep["config"]), "sweeps"), _arguments(sweep["set"])
        raw, origin, fits = self._read(file, words)
        name = validate(SweepConfig, raw, origin).name
        if isinstance(made, FitJob) and "name" not in sweep["set"]:
            name += f"-{made.folder.name}"  # several fits of one run may be swept
            words += _arguments({"name": name})
        folder, title = made.run.folder / "evals" / name, f"{made.run.folder.name}/sweep-{name}"
        return SweepJob(title, folder, words, _distinct(made, *fits), file, made.run)

    def _source(self, start: InitFrom) -> Source:
        """Return the run that `init_from` names, of this grid or not."""
        run = self.jobs.get(Path(start.run).absolute())
        if isinstance(run, TrainJob):
            return planned_source(start, run.planned)
        return find_source(start)

    def _read(self, file: Path, overrides: Sequence[str]) -> tuple[Any, str, list[FitJob]]:
        """Read a raw config and its origin, and the fits of this grid whose strategies it names.

        They do not exist yet: in their place, it names a strategy that changes nothing.
        """
        raw, origin = read_raw(file, overrides)
        fits: list[FitJob] = []

        def known(node: Any) -> Any:
            if isinstance(node, list):
                return [known(inner) for inner in node]
            if isinstance(node, dict):
                return {key: known(inner) for key, inner in node.items()}
            fit = self.jobs.get(Path(node).absolute().parent) if is_strategy_file(node) else None
            if not isinstance(fit, FitJob):
                return node
            fits.append(fit)
            stand_in = self.folder / fit.folder.name / "strategy.json"  # its folder names a curve
            stand_in.parent.mkdir(exist_ok=True)
            write_strategy(Strategy(scaling=NoScaling()), stand_in)
            return str(stand_in)

        return known(raw), origin, fits


def _settings(template: RunTemplate) -> dict[str, Any]:
    return template.model_dump(include={"train", "fit", "set", "sweeps"})


def _name(template: RunTemplate, key: str, values: Values) -> str:
    """Return the name of a run, such as yarn-x4-120-s0: the template's, then the axes'."""
    prefixes = {"factor": "x", "seed": "s"}
    order = sorted(values, key=lambda axis: axis == "seed")
    parts = [prefixes.get(axis, "") + _short(values[axis]) for axis in order]
    name = "-".join([template.name, *parts])
    if "/" in name:  # what else a name may not contain, its config says
        raise UserError(f"{key}.axes: {show_value(name)} cannot be the name of a run")
    return name


def _filled(key: str, value: Any, variables: Values) -> Any:
    """Return the value of a key of a grid with its placeholders replaced."""
    if isinstance(value, dict):
        return {k: _filled(f"{key}.{k}", inner, variables) for k, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_filled(f"{key}.{n}", inner, variables) for n, inner in enumerate(value)]
    if not isinstance(value, str):
        return value
    for name in _PLACEHOLDER.findall(value):
        if name not in variables:
            says = _DERIVED.get(name) or "use " + ", ".join(f"{{{v}}}" for v in variables)
            raise UserError(f"{key}: {{{name}}} is not known here; {says}")
    if whole := _PLACEHOLDER.fullmatch(value):
        return variables[whole[1]]  # a number stays a number
    return _PLACEHOLDER.sub(lambda match: _short(variables[match[1]]), value)


def _distinct(*jobs: Job) -> tuple[Job, ...]:
    return tuple({job.name: job for job in jobs}.values())


def _arguments(settings: Values) -> tuple[str, ...]:
    return tuple(f"{key}={flow_yaml(value)}" for key, value in settings.items())


def _short(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _comparison(config: CompareConfig, sweeps: Sequence[SweepJob]) -> CompareJob:
    chosen = tuple(s for s in sweeps if config.sweep in (None, s.folder.name))
    if not chosen:
        names = ", ".join(dict.fromkeys(sweep.folder.name for sweep in sweeps))
        raise UserError(
            f"compare.sweep: no sweep is called {config.sweep}; there are {names}"
            if sweeps
            else "compare: no entry of runs has sweeps; give it some, or remove compare"
        )
    settings = config.model_dump(mode="json", exclude={"sweep"}, exclude_defaults=True)
    return CompareJob("compare", Path(config.output), _arguments(settings), chosen)
