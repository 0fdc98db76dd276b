"""The configs that come with the package, by name: `demo` is configs/demo.yaml."""

import difflib
import os
import re
from pathlib import Path

from rope_jax.errors import UserError

_PACKAGE = Path(__file__).parents[1]
_SUFFIX = ".yaml"
# words with slashes between them
_NAME = re.compile(r"[\w+=-][\w.+=-]*(/[\w+=-][\w.+=-]*)*")


def config_path(argument: str, kind: str = "") -> Path:
    """Return the file that an argument stands for.

    A file of that path comes first, then a config of the package: `demo` is its configs/demo.yaml,
    and so is the path configs/demo.yaml, which the documentation uses, outside of the repository.

    kind: the folder of configs/ for a command, such as "sweeps". UserError: no such name.
    """
    path, folder = Path(argument), config_folder()
    exists = os.path.lexists(argument)
    if not _NAME.fullmatch(argument) or (exists and not os.path.isdir(path)):
        return path
    is_documented = path.parts[0] == folder.name
    named = folder.parent / path if is_documented else folder / kind / (argument + _SUFFIX)
    if os.path.isfile(named):
        return named
    if exists or path.suffix in (_SUFFIX, ".yml"):
        return path
    names = config_names(kind)
    close = difflib.get_close_matches(argument, names, n=3, cutoff=0.5)
    there = f"there are {', '.join(name for name in names if '/' not in name)}"
    advice = f"did you mean {' or '.join(close)}?" if close else there
    raise UserError(f"{argument}: no such file, and no config has that name; {advice}")


def config_names(kind: str = "") -> list[str]:
    """Return the names of the package's configs of a kind, sorted; see `config_path`."""
    folder = config_folder() / kind
    names = (path.relative_to(folder).with_suffix("") for path in folder.rglob(f"*{_SUFFIX}"))
    if kind:
        return sorted(name.as_posix() for name in names)
    others = {"sweeps", "fits", "grids"}  # of other commands than training
    return sorted(name.as_posix() for name in names if name.parts[0] not in others)


def sweep_of(path: Path) -> str | None:
    """Return the name of the sweep that goes with a training config of the package, if any."""
    folder = config_folder().resolve()
    if not path.resolve().is_relative_to(folder):
        return None
    name = path.resolve().relative_to(folder).with_suffix("").as_posix()
    return name if (folder / "sweeps" / (name + _SUFFIX)).is_file() else None


def config_folder() -> Path:
    """Return the folder configs/: inside of an installed package, beside that of a repository."""
    inside = _PACKAGE / "configs"
    return inside if inside.is_dir() else _PACKAGE.parent / "configs"
