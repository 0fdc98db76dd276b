"""Find the sweeps that command-line paths stand for, and read their folders.

A file that is missing or damaged is named in a UserError.
"""

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from rope_jax.comparison.groups import Sweep, without_seed
from rope_jax.config.entries import SweepEntry, entry_settings, own_entry
from rope_jax.config.fit import FitConfig
from rope_jax.config.load import load, validate
from rope_jax.config.strategy import read_strategy
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import TrainingConfig
from rope_jax.errors import UserError, file_errors
from rope_jax.results.files import MAIN_FILES, read_rows, read_summary, read_sums
from rope_jax.runs.directory import RUN_CONFIG

# Keys of a run's config that may differ within an experiment: its seed, and what does not change
# the trained model.
_NOT_THE_MODEL = {
    *("name", "seed", "runs_dir", "mesh", "distributed", "checkpoint", "validation"),
    *("log_every_steps", "sweep"),
}


def find_sweeps(paths: Sequence[Path], name: str | None) -> list[Path]:
    """Return the sweep folders that the paths stand for, each once.

    A path is the folder of a sweep, or a run, which stands for its sweep called `name`. Without a
    name it stands for the one sweep that all runs have in common, or else for all of its sweeps.
    """
    by_path = {}
    for path in paths:
        with file_errors(path):
            by_path[path] = _sweeps_of(path, name)
    runs = {path: folders for path, folders in by_path.items() if folders != [path]}
    names = [{folder.name for folder in folders} for folders in runs.values()]
    common = set[str]().union(*names).intersection(*names)
    if len(runs) > 1 and len(common) == 1:
        by_path |= {
            path: [f for f in folders if f.name in common] for path, folders in runs.items()
        }
    return list({f.resolve(): f for folders in by_path.values() for f in folders}.values())


def _sweeps_of(path: Path, name: str | None) -> list[Path]:
    if not os.path.exists(path):
        raise UserError(f"{path}: no such folder")
    if _is_sweep(path):
        if name is not None and path.resolve().name != name:
            raise UserError(f"sweep: {path} is not the sweep {name}; give its run instead")
        return [path]
    evals = path / "evals"
    if not os.path.isdir(evals):
        raise UserError(f"{path}: is neither a run that was swept nor the folder of a sweep")
    # A leading dot marks a folder being written or left by a killed process.
    there = sorted(p for p in evals.iterdir() if _is_sweep(p) and not p.name.startswith("."))
    if not there:
        raise UserError(f"{path}: has no sweep; run rope-jax sweep on it first")
    if name is None:
        return there
    chosen = [folder for folder in there if folder.name == name]
    if not chosen:
        known = ", ".join(folder.name for folder in there)
        raise UserError(f"sweep: {path} has no sweep {name}; it has {known}")
    return chosen


def _is_sweep(folder: Path) -> bool:
    return any(os.path.exists(folder / name) for name in MAIN_FILES)


def read_sweep(folder: Path) -> Sweep:
    """Read one sweep; UserError if its files are missing or damaged."""
    rows, sums = read_rows(folder), read_sums(folder)
    if not (folder / "sweep.yaml").is_file():
        raise UserError(f"{folder / 'sweep.yaml'}: no such file; sweep again")
    entries = load(SweepConfig, folder / "sweep.yaml").scalings
    checkpoints, effective = read_summary(folder)
    windows = {checkpoint.step: checkpoint.window for checkpoint in checkpoints}
    config, training = folder / RUN_CONFIG, None  # of the time of the sweep
    if not config.exists():
        config = folder.resolve().parent.parent / "config.yaml"
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
        baselines=_find_baselines(entries, windows, training),
        experiment=None if training is None else _experiment(training),
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
                fitted = read_strategy(str(folder / "strategy.json"))
            except (ValueError, UserError):  # it has none yet, or a damaged one
                continue
            raw = {"scalings": [entry_settings(fitted, "x")]}
            (theirs,) = validate(SweepConfig, raw, "strategy").scalings
            alike = theirs.model_dump(mode="json", exclude={"name", "over"})
            if alike == {key: value for key, value in settings.items() if key != "over"}:
                fit = load(FitConfig, folder / "fit.yaml")
                settings = {"fit": fit.model_dump(mode="json", exclude={"name", "seed"})}
                break
    return json.dumps(settings, separators=(",", ":"))


def _find_baselines(
    entries: Sequence[SweepEntry], windows: Mapping[int, int], training: TrainingConfig | None
) -> dict[int, str]:
    """Return the name of the curve with each checkpoint's own scaling, by training step."""
    if any(entry.label == "trained" for entry in entries):
        return dict.fromkeys(windows, "trained")
    if training is None:
        return {}
    names = {}
    for step, window in windows.items():
        try:
            trained = training.trained_at(step)._replace(window=window)
        except (UserError, ValueError):  # another run's: the scaling is unknown
            return {}
        if (name := own_entry(entries, trained)) is not None:
            names[step] = name
    return names


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
