"""Output files of the inspection scripts."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rope_jax.errors import UserError
from rope_jax.sealed import replacing

if TYPE_CHECKING:  # matplotlib is slow to import, and a CSV does not need it
    from matplotlib.figure import Figure


@contextlib.contextmanager
def output_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` once the block succeeds.

    UserError: the file cannot be written.
    """
    try:
        with replacing(path) as temporary:
            yield temporary
    except OSError as error:
        raise UserError(f"output: {path} cannot be written ({error.strerror or error})") from None


def write_output_figure(figure: "Figure", path: Path) -> None:
    """Write a figure; a .png has the same figure as .pdf and .svg beside it.

    UserError: a file cannot be written.
    """
    from rope_jax.plots.saving import save_figure

    try:
        save_figure(figure, path)
    except OSError as error:
        raise UserError(f"output: {path} cannot be written ({error.strerror or error})") from None


def figure_message(path: Path) -> str:
    """Return which files `write_output_figure` has written."""
    return f"figure: {path}" + (" (and .pdf, .svg)" if path.suffix == ".png" else "")
