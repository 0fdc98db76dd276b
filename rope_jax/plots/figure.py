"""A figure that a notebook shows, and that has this package's style wherever it is drawn."""

import io
from typing import Any

from matplotlib.figure import Figure

from rope_jax.plots.style import figure_style


class ShownFigure(Figure):
    """A figure made without pyplot that is the last value of a notebook's cell is shown.

    matplotlib registers its figures with notebooks only once pyplot was imported. It also takes
    some settings, such as how tick labels are written, when a figure is drawn and not when it is
    made, so both happen in the style of this package.
    """

    def draw(self, renderer: Any) -> None:  # for a PDF or SVG it is no RendererBase
        with figure_style():
            super().draw(renderer)

    def savefig(self, fname: Any, **settings: Any) -> None:
        with figure_style():
            super().savefig(fname, **settings)

    def _repr_png_(self) -> bytes:
        """Return the picture that a notebook shows."""
        file = io.BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()
