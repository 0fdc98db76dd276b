"""Which sweeps the paths of a command line stand for."""

import os
from collections.abc import Sequence
from pathlib import Path

from rope_jax.comparison.sweeps import readable_path
from rope_jax.errors import UserError

_FILES = ("results.csv", "sweep.yaml", "summary.json")


def find_sweeps(paths: Sequence[Path], name: str | None) -> list[Path]:
    """Return the sweep folders that the paths stand for, each once.

    A path is a run or the folder of one of its sweeps. A run stands for its sweep called `name`;
    where name is None, for the sweep that all runs have in common if there is exactly one such
    sweep, else for all of its sweeps. Raises UserError where a path has no such sweep.
    """
    by_path = {path: _sweeps_of(path, name) for path in paths}
    runs = {path: found for path, found in by_path.items() if found != [path]}
    names = [{folder.name for folder in found} for found in runs.values()]
    common = set[str]().union(*names).intersection(*names)
    if len(runs) > 1 and len(common) == 1:
        by_path |= {path: [f for f in found if f.name in common] for path, found in runs.items()}
    found = {folder.resolve(): folder for folders in by_path.values() for folder in folders}
    return list(found.values())


def _sweeps_of(path: Path, name: str | None) -> list[Path]:
    """Return the sweeps that one path may stand for."""
    shown = readable_path(path)
    try:
        path.stat()
        if _is_sweep(path):
            if name is not None and path.resolve().name != name:
                raise UserError(f"sweep: {shown} is not the sweep {name}; give its run instead")
            return [path]
        evals = path / "evals"
        if not os.path.isdir(evals):
            raise UserError(f"{shown}: is neither a run that was swept nor the folder of a sweep")
        # A name that begins with a dot is a folder being written, or what a killed process left.
        there = sorted(p for p in evals.iterdir() if _is_sweep(p) and not p.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{shown}: no such folder") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL character
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{shown}: cannot be read ({reason})") from None
    if not there:
        raise UserError(f"{shown}: has no sweep; run eval_ppl.py on it first")
    if name is None:
        return there
    chosen = [folder for folder in there if folder.name == name]
    if not chosen:
        known = ", ".join(folder.name for folder in there)
        raise UserError(f"sweep: {shown} has no sweep {name}; it has {known}")
    return chosen


def _is_sweep(folder: Path) -> bool:
    """Whether a folder holds any file of a sweep; the others may be missing."""
    return any(os.path.exists(folder / name) for name in _FILES)
