"""Saving figures: PNG for the web, PDF for papers, SVG for editing; the same bytes every time."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from rope_jax.plots.style import figure_style
from rope_jax.sealed import replacing

SUFFIXES = (".png", ".pdf", ".svg")
# Without these, matplotlib writes the time of saving.
_NO_DATE: dict[str, dict[str, Any]] = {
    ".png": {},
    ".pdf": {"CreationDate": None, "ModDate": None},
    ".svg": {"Date": None},
}


def figure_files(path: Path) -> tuple[Path, ...]:
    """Return the files that `save_figure` writes: for a .png, the .pdf and .svg as well."""
    if path.suffix != ".png":
        return (path,)
    return tuple(path.with_suffix(suffix) for suffix in SUFFIXES)


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure to `figure_files(path)`: all of them, complete, or none.

    Raises OSError.
    """
    with ExitStack() as stack:
        for file in figure_files(path):
            write_figure(figure, stack.enter_context(replacing(file)))


def write_figure(figure: Figure, path: Path) -> None:
    """Write a figure to one file, whose suffix is the format. Raises OSError."""
    with figure_style():
        figure.savefig(path, metadata=_NO_DATE[path.suffix])
