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
    and `extend/yarn-4x` is configs/extend/yarn-4x.yaml. So are these paths themselves, which the
    documentation uses, outside of the repository.

    kind: the folder of configs/ that holds the configs of a command, such as "sweeps"; "": itself.

    UserError: neither exists, and the argument can only be such a name. A path that cannot be read
    is returned as it is, so that reading it gives the error.
    """
    if not _NAME.fullmatch(argument) or argument.endswith((_SUFFIX, ".yml")):
        return _in_package(Path(argument))
    try:
        is_folder = stat.S_ISDIR(os.stat(argument).st_mode)
    except FileNotFoundError:
        is_folder = False
    except OSError:  # such as a loop of links, or a name that is too long
        return Path(argument)
    else:
        if not is_folder:
            return Path(argument)
    named = config_folder() / kind / (argument + _SUFFIX)
    if named.is_file():
        return named
    if is_folder:
        return Path(argument)
    raise UserError(
        f"{argument}: no such file, and no config has that name; {_advice(argument, kind)}"
    )


def _in_package(path: Path) -> Path:
    """Return the package's config that a path such as configs/demo.yaml means where it is not.

    Any other path is returned as it is.
    """
    first, *rest = path.parts or ("",)
    if first != "configs" or ".." in rest or os.path.lexists(path):
        return path
    named = config_folder().joinpath(*rest)
    return named if named.is_file() else path


def config_names(kind: str = "") -> list[str]:
    """Return the names of the package's configs of a kind, sorted; see `config_path`."""
    folder = config_folder() / kind
    names = (path.relative_to(folder).with_suffix("") for path in folder.rglob(f"*{_SUFFIX}"))
    if kind:
        return sorted(name.as_posix() for name in names)
    others = {"sweeps", "fits", "grids"}  # of other commands than training
    return sorted(name.as_posix() for name in names if name.parts[0] not in others)


def sweep_of(path: Path) -> str | None:
    """Return the name of the sweep that goes with a training config of the package.

    None: it has none of its own, or the config is the user's.
    """
    folder = config_folder()
    if not path.resolve().is_relative_to(folder.resolve()):
        return None
    name = path.resolve().relative_to(folder.resolve()).with_suffix("").as_posix()
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
