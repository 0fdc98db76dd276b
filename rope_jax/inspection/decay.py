"""The decay of scores with distance: tables by octave and a figure."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator
from numpy.typing import NDArray
from rich.console import Console

from rope_jax.inspection.output import print_table
from rope_jax.inspection.scalings import shortened
from rope_jax.plots.panels import fold_title, label_lowest, panel_columns
from rope_jax.plots.saving import save_output
from rope_jax.plots.style import WIDTHS, assign_styles, figure_style
from rope_jax.rope import RotaryGeometry
from rope_jax.rope.decay import (
    Scores,
    logarithmic_decay,
    mean_and_peak_by_octave,
    octave_means,
    octaves,
)

# A line through more points is an image in a PDF, which would otherwise take megabytes.
_MOST_POINTS = 4096


def print_decay_tables(console: Console, scores: Mapping[str, Scores]) -> None:
    """Print the mean and largest score by octave; scores: at distances 0 … n − 1, by curve."""
    length = next(iter(scores.values())).size
    names = [f"{a:,}–{b:,}" if a < b else f"{a:,}" for a, b in octaves(length)]
    both = [mean_and_peak_by_octave(score) for score in scores.values()]
    for place, title in enumerate(("mean score", "largest |score|")):
        columns = [names, *([f"{x:z.2f}" for x in values[place]] for values in both)]
        console.print(title, style="bold")
        print_table(console, ["distance", *scores], list(zip(*columns, strict=True)), left=0)


def write_decay_figure(
    path: Path,
    scores: Mapping[str, Scores],
    *,
    kinds: Mapping[str, str],
    unscaled: Mapping[str, RotaryGeometry],
    title: str,
) -> None:
    """Draw scores by distance: one panel per curve, and one with the octave means of all.

    scores: at distances 0 … n − 1, by curve. Every curve is in `kinds` (a scaling's type, or
    "trained") or in `unscaled`; the latter are coloured in order, with `logarithmic_decay` drawn.
    """
    count = len(scores) + (len(scores) > 1)
    columns = panel_columns(count, "page")
    rows = math.ceil(count / columns)
    length = next(iter(scores.values())).size
    last = max(1, math.ceil(length / 2**0.5) - 1)  # half an octave before the end
    centres = np.unique(np.geomspace(1, last, 300).astype(np.int64))
    # by type for scalings, from dark to light for the others
    colours = {name: style.color for name, style in assign_styles(kinds).items()}
    shades = matplotlib.colormaps["viridis"](np.linspace(0, 0.8, len(unscaled)))
    colours |= dict(zip(unscaled, shades, strict=True))
    with figure_style():
        height = 0.9 + (1.45 if columns > 2 else 2.2) * rows
        figure = Figure(figsize=(WIDTHS["page"], height), layout="constrained")
        panels = list(figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat)
        for axis, (name, score) in zip(panels, scores.items(), strict=False):
            means = octave_means(score, centres)
            _draw_curve(axis, score, centres, means, colours[name], unscaled.get(name))
            axis.set_title(shortened(name), color=colours[name])
            if len(scores) > 1:
                panels[count - 1].plot(centres, means, linewidth=1.1, color=colours[name])
        if len(scores) > 1:
            panels[count - 1].set_title("all octave means")
        for place, axis in enumerate(panels):
            axis.set_visible(place < count)
            axis.axhline(0, color="0.55", linewidth=0.9, zorder=0)
            axis.set_xscale("log", base=2)
            axis.xaxis.set_major_locator(LogLocator(base=2, numticks=5))
            axis.xaxis.set_major_formatter(FuncFormatter(lambda distance, _: f"{distance:,.0f}"))
            axis.minorticks_off()
            axis.grid(True, which="major")
            label_lowest(axis, "distance Δ (tokens)", place, count, columns)
            if place % columns == 0:
                axis.set_ylabel("score")
        figure.suptitle(fold_title(title, WIDTHS["page"]))
        meanings = [
            Line2D([], [], color="0.4", alpha=0.5, linewidth=0.8, label="score"),
            Line2D([], [], color="0.4", linewidth=1.4, label="mean from Δ/√2 to Δ√2"),
        ]
        if unscaled:
            label = "√d·(1 − (ln Δ + 0.577)/ln b)"
            dotted = Line2D([], [], color="black", linestyle=":", linewidth=0.9, label=label)
            meanings.append(dotted)
        figure.legend(handles=meanings, loc="outside lower center", ncols=3)
    save_output(figure, path)


def _draw_curve(
    axis: Axes,
    score: Scores,
    centres: NDArray[np.int64],
    means: NDArray[np.float64],
    colour: Any,
    geometry: RotaryGeometry | None,
) -> None:
    thin: dict[str, Any] = {"alpha": 0.4, "linewidth": 0.4, "rasterized": score.size > _MOST_POINTS}
    axis.plot(np.arange(1, score.size), score[1:], color=colour, **thin)
    axis.plot(centres, means, color=colour, linewidth=1.4)
    if geometry is not None and geometry.base > 1:
        distances = np.geomspace(1, min(geometry.base, score.size - 1), 100)
        expected = logarithmic_decay(geometry, distances)
        axis.plot(distances, expected, color="black", linestyle=":", linewidth=0.9)
