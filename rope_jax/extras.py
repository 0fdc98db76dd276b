"""Packages of optional extras, such as `pip install 'rope-jax[gguf]'`."""

import contextlib
import importlib.util
from collections.abc import Iterator

from rope_jax.errors import INSTALLED, UserError


def is_installed(module: str) -> bool:
    with contextlib.suppress(ModuleNotFoundError):  # of the package around it
        return importlib.util.find_spec(module) is not None
    return False


def install_line(extra: str) -> str:
    """Return a line of shell that installs an optional extra of this package."""
    return f"pip install '{INSTALLED}[{extra}]'"


@contextlib.contextmanager
def needs_extra(extra: str, purpose: str) -> Iterator[None]:
    """In this block, where packages of an extra are imported, a missing one is a UserError.

    purpose: the message's beginning, what needs the package: "launcher: slurm".
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        raise UserError(
            f"{purpose} needs the package {package}; install it with {install_line(extra)}"
        ) from None
