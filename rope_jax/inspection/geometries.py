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
    """A model's geometry with what follows from it.

    longest_wavelength: 2π·b^((d − 2)/d), of the slowest pair, in tokens.
    first_negative:     see `first_negative_distance`; None beyond 2^18.
    turns:              L·θ_i/(2π), turns of each pair in the training window.
    full_circles:       the number of pairs that turn at least once in the training window.
    """

    def __init__(self, model: ModelGeometry) -> None:
        self.name, self.geometry = model.name, model.geometry
        self._theta = model.geometry.inv_freq()
        self.longest_wavelength = float(wavelengths(self._theta)[-1])
        self.first_negative = first_negative_distance(self._theta, FARTHEST)
        self.turns = turns(self._theta, model.train_length)
        self.full_circles = int((self.turns >= 1).sum())

    def unseen(self, windows: int) -> Pairwise:
        """Share of the circle that a text of `windows`·L tokens covers but training did not."""
        length = self.geometry.train_length
        return unseen_share(self._theta, windows * length, self._theta, length)


def show_geometries(
    models: Sequence[ModelGeometry], output: Path, draw: Callable[[Sequence[Geometry]], Figure]
) -> None:
    """Print one row per model, and save what `draw` makes of them."""
    stopping.check()
    geometries = [Geometry(model) for model in models]
    console = plain_console()
    distances = ("longest wavelength", "score < 0 from", "full circles")
    rows = [
        (
            made.name,
            f"{made.geometry.rotary_dim}",
            short_number(made.geometry.base),
            f"{made.geometry.train_length:,}",
            short_number(made.longest_wavelength),
            f"{made.first_negative:,}" if made.first_negative else f"> {FARTHEST:,}",
            f"{made.full_circles} of {made.turns.size}",
        )
        for made in geometries
    ]
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
