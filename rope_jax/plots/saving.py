"""Figures that a notebook shows and that are saved, with the same bytes every time."""

import io
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from rope_jax.plots.style import figure_style
from rope_jax.sealed import replacing

# Without these, matplotlib writes the time of saving.
_NO_DATE: dict[str, dict[str, Any]] = {
    ".png": {},
    ".pdf": {"CreationDate": None, "ModDate": None},
    ".svg": {"Date": None},
}


class ShownFigure(Figure):
    """A figure made without pyplot that a notebook shows all the same.

    matplotlib takes some settings, such as how tick labels are written, when a figure is drawn and
    not when it is made, so both happen in the style of this package.
    """

    def draw(self, renderer: Any) -> None:  # for a PDF or SVG it is no RendererBase
        with figure_style():
            super().draw(renderer)

    def savefig(self, fname: Any, **settings: Any) -> None:
        with figure_style():
            super().savefig(fname, **settings)

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure, for a .png also as .pdf and .svg: all files complete, or none.

    Raises OSError.
    """
    suffixes = tuple(_NO_DATE) if path.suffix == ".png" else (path.suffix,)
    with ExitStack() as stack:
        for suffix in suffixes:
            write_figure(figure, stack.enter_context(replacing(path.with_suffix(suffix))))


def write_figure(figure: Figure, path: Path) -> None:
    """Write a figure to one file, whose suffix is the format. Raises OSError."""
    with figure_style():
        figure.savefig(path, metadata=_NO_DATE[path.suffix])
