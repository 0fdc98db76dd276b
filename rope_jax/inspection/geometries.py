"""Geometries side by side: base against distance, rotations of each pair. Imports no jax."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullLocator
from rich.console import Console

from rope_jax import stopping
from rope_jax.config.inspection import ModelGeometry
from rope_jax.console import plain_console
from rope_jax.errors import printable
from rope_jax.inspection.output import print_table, short_number
from rope_jax.plots.saving import save_output
from rope_jax.plots.style import MARKERS, OKABE_ITO, WIDTHS, figure_style
from rope_jax.rope import RotaryGeometry
from rope_jax.rope.decay import first_negative_distance
from rope_jax.rope.pairs import Pairwise, turns, unseen_share, wavelengths

_FARTHEST = 2**18  # tokens; farther negative scores are not searched for


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
        self.first_negative = first_negative_distance(self._theta, _FARTHEST)
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
    _print_table(console, geometries)
    stopping.check()
    with figure_style():
        figure = draw(geometries)
    save_output(figure, output)
    files = " (and .pdf, .svg)" if output.suffix == ".png" else ""
    console.print(printable(f"figure: {output}{files}"))


def _print_table(console: Console, geometries: Sequence[Geometry]) -> None:
    distances = ("longest wavelength", "score < 0 from", "full circles")
    rows = [
        (
            made.name,
            f"{made.geometry.rotary_dim}",
            short_number(made.geometry.base),
            f"{made.geometry.train_length:,}",
            short_number(made.longest_wavelength),
            f"{made.first_negative:,}" if made.first_negative else f"> {_FARTHEST:,}",
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


def base_figure(geometries: Sequence[Geometry]) -> Figure:
    """Draw the longest wavelength, first negative score and training windows against the base."""
    figure = Figure(figsize=(WIDTHS["page"], 3.6), layout="constrained")
    axis, legends = figure.subplots(1, 2, width_ratios=(1, 0.32))
    known = [made.geometry.base for made in geometries]
    bases = np.geomspace(min(100.0, *known), 10 * max(known), 81)
    dims = sorted({made.geometry.rotary_dim for made in geometries})
    shades = matplotlib.colormaps["viridis"](np.linspace(0, 0.8, len(dims)))
    for d, shade in zip(dims, shades, strict=True):
        thetas = [RotaryGeometry(d, base).inv_freq() for base in bases]
        axis.plot(bases, [2 * np.pi / theta[-1] for theta in thetas], color=shade)
        found = (first_negative_distance(theta, _FARTHEST) for theta in thetas)
        distances = list(itertools.takewhile(lambda distance: distance is not None, found))
        axis.plot(bases[: len(distances)], distances, color=shade, linestyle="--", linewidth=1)
    windows = []
    for nth, made in enumerate(geometries):
        style = _style(nth) | {"linestyle": "none", "markersize": 5.5}
        label = f"{made.name} (d {made.geometry.rotary_dim})"
        windows += axis.plot(made.geometry.base, made.geometry.train_length, label=label, **style)
    axis.set_xlabel("base b")
    axis.set_ylabel("distance (tokens)")
    axis.set_xscale("log")
    axis.set_yscale("log")
    _label_decades(axis.xaxis)
    _label_decades(axis.yaxis)
    axis.grid(True, which="major")
    lines = [
        Line2D([], [], color="0.4", label="longest wavelength"),
        Line2D([], [], color="0.4", linestyle="--", linewidth=1, label="first negative score"),
        *(Line2D([], [], color=c, label=f"d {d}") for d, c in zip(dims, shades, strict=True)),
    ]
    legends.axis("off")
    shared: dict[str, Any] = {"alignment": "left"}
    legends.add_artist(legends.legend(handles=lines, loc="upper left", title="by base", **shared))
    legends.legend(handles=windows, loc="lower left", title="training windows", **shared)
    return figure


def turns_figure(geometries: Sequence[Geometry], windows: int) -> Figure:
    """Draw each pair's rotations in the window, and the angles unseen in so many windows."""
    figure = Figure(figsize=(WIDTHS["page"], 5.6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1.3, 1))
    for nth, made in enumerate(geometries):
        place = np.arange(made.turns.size) / made.turns.size
        style = _style(nth) | {"markersize": 3, "linewidth": 1.0}
        shown = made.geometry
        base = short_number(shown.base)
        label = f"{made.name} (d {shown.rotary_dim}, b {base}, L {shown.train_length:,})"
        above.plot(place, made.turns, label=label, **style)
        below.plot(place, made.unseen(windows), **style)
    above.axhline(1, color="0.4", linewidth=1)
    above.set_ylabel("turns in the window, L·θ/2π")
    below.set_ylabel(f"unseen share in {windows} windows")
    below.set_ylim(-0.03, 1.03)
    below.set_xlabel("pair as a share of all pairs, 2i/d (fastest first)")
    for axis in (above, below):
        axis.grid(True, which="major")
    above.set_yscale("log")
    _label_decades(above.yaxis)
    figure.align_ylabels()
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def _style(nth: int) -> dict[str, Any]:
    return {"color": OKABE_ITO[nth % len(OKABE_ITO)], "marker": MARKERS[nth % len(MARKERS)]}


def _label_decades(axis: Axis) -> None:
    axis.set_major_formatter(FuncFormatter(lambda value, _: short_number(value)))
    axis.set_minor_locator(NullLocator())
