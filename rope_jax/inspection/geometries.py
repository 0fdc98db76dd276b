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
from rope_jax.rope.pairs import turns, wavelengths

FARTHEST = 2**18  # tokens; farther negative scores are not searched for


def show_geometries(
    models: Sequence[ModelGeometry], output: Path, draw: Callable[[Sequence[ModelGeometry]], Figure]
) -> None:
    """Print one row per model, and save what `draw` makes of them."""
    stopping.check()
    console = plain_console()
    distances = ("longest wavelength", "score < 0 from", "full circles")
    rows = []
    for model in models:
        theta = model.geometry.inv_freq()
        negative = first_negative_distance(theta, FARTHEST)
        row = (
            *(model.name, f"{model.rotary_dim}", short_number(model.base)),
            *(f"{model.train_length:,}", short_number(wavelengths(theta)[-1])),
            f"{negative:,}" if negative else f"> {FARTHEST:,}",
            f"{(turns(theta, model.train_length) >= 1).sum()} of {theta.size}",
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
        figure = draw(models)
    save_output(figure, output)
    files = " (and .pdf, .svg)" if output.suffix == ".png" else ""
    console.print(printable(f"figure: {output}{files}"))


def geometry_style(nth: int) -> dict[str, Any]:
    return {"color": OKABE_ITO[nth % len(OKABE_ITO)], "marker": MARKERS[nth % len(MARKERS)]}


def label_decades(axis: Axis) -> None:
    """Write the powers of ten beside a logarithmic axis as short numbers."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: short_number(value)))
    axis.set_minor_locator(NullLocator())
