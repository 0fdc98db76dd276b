"""Expand a grid into jobs: one training run or fit per combination of axes, its sweeps, and so on.

Everything that can be checked before the first job runs is checked here.
"""

import functools
import itertools
import re
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
from rope_jax.config.strategy import is_strategy_file
from rope_jax.config.sweep import SweepConfig
from rope_jax.errors import UserError, errors_in
from rope_jax.grids.jobs import CompareJob, FitJob, Job, SweepJob, TrainJob

_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")
_DERIVED = {
    "length": "it is window × axes.factor, both numbers, and whole",
    "batch_size": "it is tokens_per_step / {length}, and whole",
}

Values = Mapping[str, Any]
_Source = TrainJob | FitJob


class _Made(NamedTuple):
    """A run or a fit, and the values of its axes, the source's included."""

    values: Values
    job: _Source


def expand(grid: GridConfig) -> list[Job]:
    """Return the jobs of a grid in an order in which they can be run; the comparison is last.

    Raises UserError: a config that is wrong, a placeholder that is not known, an axis that changes
    nothing, or two jobs that write to one folder.
    """
    templates = {template.name: (n, template) for n, template in enumerate(grid.runs)}
    planned = _Planned()

    @functools.cache
    def expanded(name: str) -> tuple[_Made, ...]:
        """Expand an entry, after the one that it starts from."""
        number, template = templates[name]
        sources = () if template.source is None else expanded(template.source)
        return tuple(_Entry(grid, template, f"runs.{number}", planned).expand(sources))

    for name in templates:
        expanded(name)
    jobs = list(planned.jobs.values())
    if grid.compare is not None:
        sweeps = tuple(job for job in jobs if isinstance(job, SweepJob))
        jobs.append(_comparison(grid.compare, sweeps))
    return jobs


class _Planned:
    """The jobs so far, by absolute folder: the settings of later ones may name their results."""

    def __init__(self) -> None:
        self.jobs: dict[Path, Job] = {}

    def add(self, job: Job) -> None:
        if job.folder.absolute() in self.jobs:
            what = "name= in its set" if isinstance(job, SweepJob) else "name"
            raise UserError(f"runs: {job.folder} is made twice; give one of the two another {what}")
        self.jobs[job.folder.absolute()] = job

    def source(self, start: InitFrom) -> Source:
        """Return the run that `init_from` names, of this grid or not."""
        run = self.jobs.get(Path(start.run).absolute())
        if isinstance(run, TrainJob):
            return planned_source(start, run.planned)
        return find_source(start)

    def with_stand_ins(self, raw: Any) -> tuple[Any, list[FitJob]]:
        """Replace the strategy files that fits of this grid will write, so that it can be checked.

        In a sweep, an entry with such a file becomes `trained`, under the name of the fit; in
        training, `strategy` becomes no scaling and no map. Where another key beside the file is
        wrong, the file stays, and the check refuses it. Return the config, and the fits whose files
        were replaced.
        """
        fits: list[FitJob] = []

        def known(node: Any) -> Any:
            if isinstance(node, list):
                return [known(inner) for inner in node]
            if isinstance(node, str) and self._writer(node):
                return known({"type": node})
            if not isinstance(node, dict):
                return node
            if (fit := self._writer(node.get("type"))) and not node.keys() - {"type", "name"}:
                fits.append(fit)
                return {"name": fit.folder.name} | node | {"type": "trained"}
            kept = {k: v if k in ("type", "strategy") else known(v) for k, v in node.items()}
            is_alone = node.get("scaling") is node.get("map") is None
            if is_alone and (fit := self._writer(kept.get("strategy"))):
                fits.append(fit)
                del kept["strategy"]
                kept |= {"scaling": {"type": "none"}, "map": None}
            return kept

        return known(raw), fits

    def _writer(self, file: Any) -> FitJob | None:
        """Return the fit of the grid that writes a strategy file, if one does."""
        job = self.jobs.get(Path(file).absolute().parent) if is_strategy_file(file) else None
        return job if isinstance(job, FitJob) else None


class _Entry(NamedTuple):
    """One entry of `runs`. key: of the entry, for messages."""

    grid: GridConfig
    template: RunTemplate
    key: str
    planned: _Planned

    @property
    def _settings(self) -> dict[str, Any]:
        return self.template.model_dump(include={"train", "fit", "set", "sweeps"})

    def expand(self, sources: Sequence[_Made]) -> Iterator[_Made]:
        """Yield the runs or fits of all combinations, in the order of the values of the axes."""
        for name in ("name", "runs_dir"):
            if name in self.template.set:
                raise UserError(
                    f"{self.key}.set.{name}: follows from the grid's runs_dir and the entry's "
                    "name and axes; remove it"
                )
        chosen = self.template.axes  # may select some of the source's runs
        inherited = sources[0].values if sources else {}
        for axis in inherited:
            there = dict.fromkeys(source.values[axis] for source in sources)
            for value in chosen.get(axis, ()):
                if value not in there:
                    raise UserError(
                        f"{self.key}.axes.{axis}: {self.template.source} has no run with "
                        f"{show_value(value)}; its values are {', '.join(map(show_value, there))}"
                    )
        starts: list[_Made | None] = [
            source
            for source in sources
            if all(value in chosen.get(axis, (value,)) for axis, value in source.values.items())
        ]
        added = {axis: v for axis, v in chosen.items() if axis not in inherited}
        for combination in itertools.product(*added.values()):
            for start in starts or [None]:
                yield self._made(dict(zip(added, combination, strict=True)), start)
        used = set(_PLACEHOLDER.findall(str(self._settings)))
        for axis in added:
            if axis not in used and not (axis == "factor" and used & _DERIVED.keys()):
                raise UserError(
                    f"{self.key}.axes.{axis}: repeats the same run, because nothing refers to "
                    f"{{{axis}}}; use it in {self.key}.set, as in {axis}: '{{{axis}}}'"
                )

    def _made(self, added: Values, start: _Made | None) -> _Made:
        """Plan the jobs of one combination. added: the values that the source does not have."""
        values = {**added, **(start.values if start else {})}
        variables, source = self._variables(values), start.job if start else None
        fitted = source if self.template.fit is not None else None
        if fitted is None:
            name = self._name(values)
            folder = Path(self.grid.runs_dir) / name
        else:
            name = self._name(added)  # the axes of the run are in its own name
            folder = fitted.run.folder / "fits" / name
            variables["fit"] = str(folder)
        if source is not None:
            variables["source"] = str(source.run.folder)
            if isinstance(source, FitJob):
                variables["fit"] = str(source.folder)
        variables |= {"name": name, "run": str(fitted.run.folder if fitted else folder)}
        settings = _filled(self.key, self._settings, variables)
        job: _Source
        with errors_in(f"{self.key} ({name}): ", UserError, UserError):
            if fitted is None:
                job = self._train(folder, source, settings)
            else:
                job = self._fit(folder, fitted.run, settings)
        self.planned.add(job)
        for number, sweep in enumerate(settings["sweeps"]):
            with errors_in(f"{self.key}.sweeps.{number}: ", UserError, UserError):
                made = self._sweep(job, sweep)
            self.planned.add(made)
        return _Made(values, job)

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

    def _name(self, values: Values) -> str:
        """Return the name of a run, such as yarn-x4-120-s0: the template's, then the axes'."""
        prefixes = {"factor": "x", "seed": "s"}
        order = sorted(values, key=lambda axis: axis == "seed")
        parts = [prefixes.get(axis, "") + _short(values[axis]) for axis in order]
        name = "-".join([self.template.name, *parts])
        if "/" in name:  # what else a name may not contain, its config says
            raise UserError(f"{self.key}.axes: {show_value(name)} cannot be the name of a run")
        return name

    def _train(self, folder: Path, source: _Source | None, settings: dict[str, Any]) -> TrainJob:
        file = config_path(_short(settings["train"]))
        overrides = _arguments(
            settings["set"] | {"name": folder.name, "runs_dir": self.grid.runs_dir}
        )
        if source is not None:  # first, so that `set` can ask for more than the newest weights
            overrides = _arguments({"init_from": str(source.run.folder)}) + overrides
        raw, origin = read_raw(file, overrides)
        known, fits = self.planned.with_stand_ins(raw)
        planned = training_config(known, origin, self.planned.source)
        needs = _distinct(*([source] if source else []), *fits)
        return TrainJob(f"{folder.name}/train", folder, overrides, needs, file, planned)

    def _fit(self, folder: Path, run: TrainJob, settings: dict[str, Any]) -> FitJob:
        named = _arguments(settings["set"] | {"name": folder.name})
        raw, origin = read_raw(config_path(_short(settings["fit"]), "fits"), named)
        known, fits = self.planned.with_stand_ins(raw)
        fit = validate(FitConfig, known, origin)
        with errors_in(f"{origin}: step: ", UserError):
            stage = run.planned.stage_at(fit.step or run.planned.last_step)
        with errors_in(f"{origin}: ", UserError):
            fit.check_window(run.planned.stages[stage].seq_len)
        name = f"{run.folder.name}/fit-{folder.name}"
        return FitJob(name, folder, _arguments(raw), _distinct(run, *fits), run)

    def _sweep(self, made: _Source, sweep: Values) -> SweepJob:
        file, overrides = config_path(_short(sweep["config"]), "sweeps"), _arguments(sweep["set"])
        raw, origin = read_raw(file, overrides)
        known, fits = self.planned.with_stand_ins(raw)
        name = validate(SweepConfig, known, origin).name
        if isinstance(made, FitJob) and "name" not in sweep["set"]:
            name += f"-{made.folder.name}"  # several fits of one run may be swept
            overrides += _arguments({"name": name})
        folder, title = made.run.folder / "evals" / name, f"{made.run.folder.name}/sweep-{name}"
        return SweepJob(title, folder, overrides, _distinct(made, *fits), file, made.run)


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
    return CompareJob("compare", Path(config.output), _arguments(settings), chosen)
