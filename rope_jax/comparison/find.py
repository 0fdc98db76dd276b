"""Find the sweeps that command-line paths stand for."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from rope_jax.comparison.sweeps import readable_path
from rope_jax.errors import UserError
from rope_jax.sealed import finish_replacing, unfinished_replacements

_FILES = ("results.csv", "sweep.yaml", "summary.json")


def find_sweeps(paths: Sequence[Path], name: str | None) -> list[Path]:
    """Return the sweep folders that the paths stand for, each once.

    A path is a run or the folder of one of its sweeps. A run stands for its sweep called `name`.
    If name is None, it stands for the sweep that all runs have in common if there is exactly one,
    else for all of its sweeps. Raises UserError if a path has no such sweep.
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
        place = Path(os.path.abspath(path))
        if place.parent.name == "evals":
            _finish(place)
        path.stat()
        if _is_sweep(path):
            if name is not None and path.resolve().name != name:
                raise UserError(f"sweep: {shown} is not the sweep {name}; give its run instead")
            return [path]
        evals = path / "evals"
        if not _exists(evals) or not evals.is_dir():
            raise UserError(f"{shown}: is neither a run that was swept nor the folder of a sweep")
        for folder in unfinished_replacements(evals):
            _finish(folder)
        # A leading dot marks a folder being written or left by a killed process.
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


def _finish(folder: Path) -> None:
    """Put a sweep's folder in place if the process that was replacing it was killed."""
    try:
        finish_replacing(folder)
    except OSError as error:
        raise UserError(
            f"{readable_path(folder)}: a killed sweep left it under a temporary name, and it "
            f"cannot be put back ({error.strerror}); run this where the folder can be written"
        ) from None


def _is_sweep(folder: Path) -> bool:
    """Whether a folder holds any of a sweep's files, even if others are missing."""
    return any(_exists(folder / name) for name in _FILES)


def _exists(path: Path) -> bool:
    """Whether there is a file or a folder; OSError if that cannot be found out."""
    try:
        path.stat()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP):
            return False
        raise
    return True
