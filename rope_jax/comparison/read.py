"""Find the sweeps that command-line paths stand for, and read their folders.

A file that is missing, damaged or of another sweep is named in a UserError.
"""

import contextlib
import csv
import io
import json
import math
import os
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import numpy as np
from pydantic import TypeAdapter, ValidationError

from rope_jax import sealed
from rope_jax.comparison.groups import PointKey, Sweep, without_seed
from rope_jax.config.entries import SweepEntry, entry_settings
from rope_jax.config.explain import validate
from rope_jax.config.fit import FitConfig
from rope_jax.config.load import load
from rope_jax.config.strategy import read_strategy
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import TrainingConfig
from rope_jax.errors import UserError
from rope_jax.protocols import PROTOCOLS
from rope_jax.results.rows import DocumentRow, Row
from rope_jax.results.statistics import Sums
from rope_jax.results.summary import CheckpointSummary
from rope_jax.results.tasks import EffectiveLength, TaskRow
from rope_jax.rope.files import read_limited
from rope_jax.rope.messages import alternatives, explain_value
from rope_jax.runs.directory import RUN_CONFIG
from rope_jax.runs.tables import text_of_cell

# Keys of a run's config that may differ within an experiment: its seed, and what does not change
# the trained model.
_NOT_THE_MODEL = {
    *("name", "seed", "runs_dir", "mesh", "distributed", "checkpoint", "validation"),
    *("log_every_steps", "sweep"),
}
_FILES = ("results.csv", "sweep.yaml", "summary.json")
_MOST_BYTES = 2**28
# What stands for a column that earlier versions did not write: another column, or a value.
_SAME_AS = {"units": "documents", "unit": "document", "value": "nll"}
_DEFAULTS = {"map": "", "metric": "nats"} | dict.fromkeys(("bpb_low", "bpb_high", "bytes"), "")
_Row = TypeVar("_Row", Row, DocumentRow, TaskRow)
_ADAPTERS: dict[Any, TypeAdapter[Any]] = {
    kind: TypeAdapter(list[kind])  # type: ignore[valid-type]
    for kind in (Row, DocumentRow, TaskRow)
}


def find_sweeps(paths: Sequence[Path], name: str | None) -> list[Path]:
    """Return the sweep folders that the paths stand for, each once.

    A path is the folder of a sweep, or a run, which stands for its sweep called `name`. Without a
    name it stands for the one sweep that all runs have in common, or else for all of its sweeps.
    """
    by_path = {}
    for path in paths:
        try:
            by_path[path] = _sweeps_of(path, name)
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    runs = {path: found for path, found in by_path.items() if found != [path]}
    names = [{folder.name for folder in found} for found in runs.values()]
    common = set[str]().union(*names).intersection(*names)
    if len(runs) > 1 and len(common) == 1:
        by_path |= {path: [f for f in found if f.name in common] for path, found in runs.items()}
    return list({f.resolve(): f for folders in by_path.values() for f in folders}.values())


def _sweeps_of(path: Path, name: str | None) -> list[Path]:
    place = Path(os.path.abspath(path))
    if place.parent.name == "evals":
        _finish(place)
    if not os.path.exists(path):
        raise UserError(f"{path}: no such folder")
    if _is_sweep(path):
        if name is not None and path.resolve().name != name:
            raise UserError(f"sweep: {path} is not the sweep {name}; give its run instead")
        return [path]
    evals = path / "evals"
    if not os.path.isdir(evals):
        raise UserError(f"{path}: is neither a run that was swept nor the folder of a sweep")
    for folder in sealed.unfinished_replacements(evals):
        _finish(folder)
    # A leading dot marks a folder being written or left by a killed process.
    there = sorted(p for p in evals.iterdir() if _is_sweep(p) and not p.name.startswith("."))
    if not there:
        raise UserError(f"{path}: has no sweep; run eval_ppl.py on it first")
    if name is None:
        return there
    chosen = [folder for folder in there if folder.name == name]
    if not chosen:
        known = ", ".join(folder.name for folder in there)
        raise UserError(f"sweep: {path} has no sweep {name}; it has {known}")
    return chosen


def _finish(folder: Path) -> None:
    """Put a sweep's folder in place if the process that was replacing it was killed."""
    try:
        sealed.finish_replacing(folder)
    except OSError as error:
        raise UserError(
            f"{folder}: a killed sweep left it under a temporary name, and it "
            f"cannot be put back ({error.strerror}); run this where the folder can be written"
        ) from None


def _is_sweep(folder: Path) -> bool:
    return any(os.path.exists(folder / name) for name in _FILES)


def read_sweep(folder: Path) -> Sweep:
    """Read one sweep; UserError if its files are missing, damaged, or of different sweeps."""
    files = SweepFiles(folder)
    rows, sums = files.rows(), files.sums()
    keys = {PointKey.of(row): row for row in rows}
    if any(key not in sums or len(sums[key].nll) != row.units for key, row in keys.items()):
        raise UserError(
            f"{folder}: results.csv and documents.csv disagree: one is cut short or belongs to "
            "another sweep; sweep again"
        )
    if not (folder / "sweep.yaml").is_file():
        raise UserError(f"{folder / 'sweep.yaml'}: no such file; sweep again")
    entries = load(SweepConfig, folder / "sweep.yaml").scalings
    if not {row.name for row in rows} <= {entry.label for entry in entries}:
        raise UserError(f"{folder}: results.csv and sweep.yaml disagree about curves; sweep again")
    checkpoints, effective = files.summary()
    windows = {checkpoint.step: checkpoint.window for checkpoint in checkpoints}
    if {row.step for row in rows} != windows.keys():
        raise UserError(f"{folder}: results.csv and summary.json disagree about steps; sweep again")
    config, training = files.run_config(), None
    with contextlib.suppress(UserError):
        training = load(TrainingConfig, config)
    return Sweep(
        folder=folder,
        run=rows[0].run,
        seed=rows[0].seed,
        rows=rows,
        sums=sums,
        windows=windows,
        settings={entry.label: _settings(entry, folder.parent.parent) for entry in entries},
        baselines=_find_baselines(entries, windows, {row.length for row in rows}, training),
        experiment=None if training is None else _experiment(training),
        longest=None if training is None else training.encoding.longest,
        tasks=files.tasks(),
        effective=effective,
    )


def _settings(entry: SweepEntry, run: Path) -> str:
    """Return the settings of a curve as JSON, which must be the same in all sweeps.

    If a fit of this run found its numbers, which differ between runs, the settings of the fit stand
    for them, without its seed.
    """
    settings = entry.model_dump(mode="json", exclude={"name"})
    map_type = (settings["map"] or {}).get("type")
    if map_type == "fitted" or settings["type"] == "explicit":
        for folder in sorted((run / "fits").glob("*")):
            try:
                found = read_strategy(str(folder / "strategy.json"))
            except (ValueError, UserError):  # it has none yet, or a damaged one
                continue
            raw = {"scalings": [entry_settings(found, "x")]}
            (theirs,) = validate(SweepConfig, raw, "strategy").scalings
            if theirs.model_dump(mode="json", exclude={"name"}) == settings:
                fit = load(FitConfig, folder / "fit.yaml")
                settings = {"fit": fit.model_dump(mode="json", exclude={"name", "seed"})}
                break
    return json.dumps(settings, separators=(",", ":"))


def _find_baselines(
    entries: Sequence[SweepEntry],
    windows: Mapping[int, int],
    lengths: Collection[int],
    training: TrainingConfig | None,
) -> dict[int, str]:
    """Return the name of the curve with each checkpoint's own scaling, by training step.

    It is `trained`, or the curve whose scaling equals the trained one at every length, such as
    `none` for a model trained without scaling.
    """
    if any(entry.label == "trained" for entry in entries):
        return dict.fromkeys(windows, "trained")
    if training is None:
        return {}
    try:
        stages = {step: training.stage_at(step) for step in windows}
        scalings = {step: training.stage_scaling(stage) for step, stage in stages.items()}
        maps = {step: training.stage_map(stage) for step, stage in stages.items()}
    except (UserError, ValueError):  # another run's: the scaling is unknown
        return {}
    return {
        step: entry.label
        for step, window in windows.items()
        for entry in reversed(entries)  # of several, the first of the sweep
        if all(
            entry.at(n, window, scalings[step]) == scalings[step]
            and entry.map_at(n, window, maps[step]) == maps[step]
            for n in lengths
        )
    }


def _experiment(training: TrainingConfig) -> str:
    """Return a run's config as JSON, without `_NOT_THE_MODEL`."""
    settings = training.model_dump(mode="json", exclude=_NOT_THE_MODEL)
    settings["data"].pop("cache_dir", None)
    if training.init_from is not None:
        # seeds of an extension start from seeds of a run, demo-s0, demo-s1, and have its tokenizer
        source = Path(training.init_from.run)
        settings["init_from"]["run"] = without_seed(source.name)
        path = Path(settings["tokenizer"].get("path", ""))
        if path.parent == source:
            settings["tokenizer"]["path"] = f"{without_seed(source.name)}/{path.name}"
    return json.dumps(settings)


class SweepFiles:
    """The results in one sweep's folder, checked against its checksums if it has any."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            self._checksums = sealed.read_checksums(folder) or {}
        except OSError as error:
            path = folder / sealed.CHECKSUMS
            raise UserError(f"{path}: cannot be read ({error.strerror}); sweep again") from None

    def rows(self) -> list[Row]:
        return read_results(*self._read("results.csv"))

    def sums(self) -> dict[PointKey, Sums]:
        """Return the sums of each point, with the units in the order of their numbers."""
        by_key: dict[PointKey, dict[int, tuple[float, float, float]]] = defaultdict(dict)
        for row in _read_table(*self._read("documents.csv"), DocumentRow):
            size = math.nan if row.bytes is None else row.bytes
            key = PointKey(row.name, row.protocol, row.length, row.step)
            by_key[key][row.unit] = row.nll, row.weight, size
        sums = {}
        for key, units in by_key.items():
            nll, weight, size = np.array([units[number] for number in sorted(units)]).T
            sums[key] = Sums(nll, weight, bytes=None if np.isnan(size).any() else size)
        return sums

    def tasks(self) -> list[TaskRow]:
        """Return the rows of tasks.csv; none if the sweep has no tasks."""
        if not (self._folder / "tasks.csv").exists() and "tasks.csv" not in self._checksums:
            return []
        return _read_table(*self._read("tasks.csv"), TaskRow)

    def summary(self) -> tuple[list[CheckpointSummary], dict[str, dict[str, EffectiveLength]]]:
        """Return what identifies each checkpoint and its NLL at the window, the newest first.

        Also return the newest one's effective lengths, by task and scaling.
        """
        path, content = self._read("summary.json")
        names = ("", "_at_least", "_at_most", "_is_last_tested")
        try:
            newest = json.loads(content)
            checkpoints = [
                CheckpointSummary(one["run"], one["step"], one["window"], one["nll_at_window"])
                for one in (newest, *newest["earlier"])
            ]
            effective = {
                task: {
                    name: EffectiveLength(*(found[f"effective_length{end}"] for end in names))
                    for name, found in by_name.items()
                }
                for task, by_name in newest.get("tasks", {}).items()
            }
        except (ValueError, LookupError, TypeError, AttributeError):
            raise UserError(f"{path}: missing or damaged; sweep again") from None
        return checkpoints, effective

    def run_config(self) -> Path:
        """Return the file with the run's config: that of the time of the sweep, if there is one."""
        if RUN_CONFIG in self._checksums:
            return self._read(RUN_CONFIG)[0]
        return self._folder.resolve().parent.parent / "config.yaml"

    def _read(self, name: str) -> tuple[Path, bytes]:
        path = self._folder / name
        try:
            content = read_limited(path, _MOST_BYTES)
        except OSError as error:
            what = "missing" if isinstance(error, FileNotFoundError) else "cannot be read"
            raise UserError(f"{path}: {what} ({error.strerror}); sweep again") from None
        sealed.check_content(path, content, self._checksums or None)
        return path, content


def read_results(
    path: Path, content: bytes, defaults: Mapping[str, str] | None = None
) -> list[Row]:
    """Return the rows of results.csv; defaults: of columns that may be missing."""
    rows = _read_table(path, content, Row, defaults or {})
    for number, row in enumerate(rows, start=2):
        # earlier versions wrote bits per byte of all texts, not of the scored tokens
        if row.bpb_low is None and row.bpb and not math.isclose(row.bpb * math.log(2), row.nll):
            rows[number - 2] = row._replace(bpb=None)
        if row.protocol not in PROTOCOLS:
            known = alternatives(list(PROTOCOLS))
            raise UserError(f"{path}: line {number}: protocol should be {known}; sweep again")
    if not rows:
        raise UserError(f"{path}: holds no results; sweep again")
    return rows


def _read_table(
    path: Path, content: bytes, kind: type[_Row], defaults: Mapping[str, str] | None = None
) -> list[_Row]:
    """Return the lines of a CSV file as rows of this kind, whose fields are columns."""
    try:
        reader = csv.reader(io.StringIO(content.decode("utf-8"), newline=""), strict=True)
        table: list[list[str]] = [line for line in reader if line] or [[]]
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error}); sweep again") from None
    header: list[str] = table[0]
    later: dict[str, str] = {**_DEFAULTS, **(defaults or {})}
    missing = [name for name in kind._fields if name not in {*header, *later, *_SAME_AS}]
    if missing:
        raise UserError(
            f"{path}: has no column {', '.join(missing)}; it is damaged or was made by another "
            "version: sweep again"
        )
    hints = get_type_hints(kind)
    may_be_empty = {name for name, hint in hints.items() if type(None) in get_args(hint)}
    rows = []
    for number, line in enumerate(table[1:], start=2):
        if len(line) != len(header):
            raise UserError(f"{path}: line {number} is incomplete; sweep again")
        cells = later | dict(zip(header, map(text_of_cell, line), strict=True))
        row = {name: cells[name if name in cells else _SAME_AS[name]] for name in kind._fields}
        rows.append(row | {name: None for name in may_be_empty if row[name] == ""})
    try:
        found: list[_Row] = _ADAPTERS[kind].validate_python(rows)
    except ValidationError as error:
        first = error.errors()[0]
        place, column = first["loc"][:2]
        wrong = explain_value(first, str(column))
        raise UserError(f"{path}: line {int(place) + 2}: {wrong}; sweep again") from None
    return found
