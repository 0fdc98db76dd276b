"""Models' geometries before any scaling: what plot_base.py and plot_turns.py both show."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from rope_jax import stopping
from rope_jax.config.inspection import ModelGeometry
from rope_jax.console import plain_console
from rope_jax.errors import printable
from rope_jax.inspection.output import print_table, short_number
from rope_jax.plots.saving import save_output
from rope_jax.plots.style import MARKERS, OKABE_ITO, figure_style
from rope_jax.rope.decay import first_negative_distance
from rope_jax.rope.pairs import Pairwise, turns, unseen_share, wavelengths

FARTHEST = 2**18  # tokens; farther negative scores are not searched for


class Geometry:
    """A model's geometry, and the rotations of each pair in the training window, L·θ_i/(2π)."""

    def __init__(self, model: ModelGeometry) -> None:
        self.name, self.geometry = model.name, model.geometry
        self.theta = model.geometry.inv_freq()
        self.turns = turns(self.theta, model.train_length)

    def unseen(self, windows: int) -> Pairwise:
        """Return the share of the circle that only a text of `windows`·L tokens covers."""
        length = self.geometry.train_length
        return unseen_share(self.theta, windows * length, self.theta, length)


def show_geometries(
    models: Sequence[ModelGeometry], output: Path, draw: Callable[[Sequence[Geometry]], Figure]
) -> None:
    """Print one row per model, and save what `draw` makes of them."""
    stopping.check()
    geometries = [Geometry(model) for model in models]
    console = plain_console()
    distances = ("longest wavelength", "score < 0 from", "full circles")
    rows = []
    for made in geometries:
        geometry, negative = made.geometry, first_negative_distance(made.theta, FARTHEST)
        row = (
            *(made.name, f"{geometry.rotary_dim}", short_number(geometry.base)),
            *(f"{geometry.train_length:,}", short_number(wavelengths(made.theta)[-1])),
            f"{negative:,}" if negative else f"> {FARTHEST:,}",
            f"{(made.turns >= 1).sum()} of {made.turns.size}",
        )
        rows.append(row)
    print_table(console, ("model", "d", "base", "window", *distances), rows)
    console.print(
        "score < 0 from: first distance at which equal queries and keys score below 0\n"
        "full circles: pairs that turn at least once in the window\n",
        style="dim",
    )
    stopping.check()
    with figure_style():
        figure = draw(geometries)
    save_output(figure, output)
    files = " (and .pdf, .svg)" if output.suffix == ".png" else ""
    console.print(printable(f"figure: {output}{files}"))


def geometry_style(nth: int) -> dict[str, Any]:
    return {"color": OKABE_ITO[nth % len(OKABE_ITO)], "marker": MARKERS[nth % len(MARKERS)]}


def label_decades(axis: Axis) -> None:
    """Write the powers of ten beside a logarithmic axis as short numbers."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: short_number(value)))
    axis.set_minor_locator(NullLocator())
