"""The configs that come with the package, by name: `demo` is configs/demo.yaml."""

import difflib
import os
import re
import stat
from pathlib import Path

from rope_jax.errors import UserError

_PACKAGE = Path(__file__).parents[1]
_SUFFIX = ".yaml"
# What a name of a config may be: words with slashes between them, and no suffix of a file.
_NAME = re.compile(r"[\w+=-][\w.+=-]*(/[\w+=-][\w.+=-]*)*")


def config_path(argument: str, kind: str = "") -> Path:
    """Return the file that an argument stands for.

    A file of that path comes first, then a config of the package: `demo` is its configs/demo.yaml,
    and so is the path configs/demo.yaml, which the documentation uses, outside of the repository.

    kind: the folder of configs/ that holds the configs of a command, such as "sweeps"; "": itself.

    UserError: neither exists, and the argument can only be such a name.
    """
    path = Path(argument)
    if not _NAME.fullmatch(argument) or argument.endswith((_SUFFIX, ".yml")):
        first, *rest = path.parts or ("",)
        named = config_folder().joinpath(*rest)
        is_ours = first == "configs" and ".." not in rest and named.is_file()
        return named if is_ours and not os.path.lexists(path) else path
    named = config_folder() / kind / (argument + _SUFFIX)
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode)
        if not is_folder:
            return path
    except FileNotFoundError:
        is_folder = False
    except OSError:  # such as a loop of links: reading it gives the error
        return path
    if named.is_file():
        return named
    if is_folder:
        return path
    raise UserError(
        f"{argument}: no such file, and no config has that name; {_advice(argument, kind)}"
    )


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


def _advice(name: str, kind: str) -> str:
    names = config_names(kind)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(close)}?"
    if not names:
        return "give the path of a YAML file"
    return f"there are {', '.join(name for name in names if '/' not in name)}"
