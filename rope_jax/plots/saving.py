"""Saving figures."""

from pathlib import Path

from matplotlib.figure import Figure

from rope_jax.plots.style import literal_text
from rope_jax.runs.files import replacing


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure to a file, complete or not at all."""
    with literal_text(), replacing(path) as temporary:
        figure.savefig(temporary, dpi=150)
