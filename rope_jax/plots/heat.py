"""Heat maps of a task: the share of exact answers by length and depth, one panel per scaling."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize

from rope_jax.config.presentation import FigureWidth
from rope_jax.plots.figure import ShownFigure
from rope_jax.plots.labels import fold_text
from rope_jax.plots.panels import fold_title
from rope_jax.plots.style import NOTE, SMALL_SIZE, TEXT_SIZE, WIDTHS, figure_style

# Perceptually uniform, also in grey and for colour-blind readers: dark is not found, light is.
_COLOURS = "viridis"
_TAKEN_OUT = "taken out"
_COLUMNS: Mapping[FigureWidth, int] = {"column": 2, "page": 4}
_ROW_HEIGHT = 0.17  # inches, of a depth
_SMALLEST_NUMBER = 5.0  # points


@runtime_checkable
class TaskPoint(Protocol):
    """One metric of a task at one length and depth, such as a row of tasks.csv."""

    @property
    def name(self) -> str: ...
    @property
    def length(self) -> int: ...
    @property
    def depth(self) -> float | None: ...
    @property
    def taken_out(self) -> bool: ...
    @property
    def metric(self) -> str: ...
    @property
    def value(self) -> float: ...
    @property
    def chance(self) -> float | None: ...


def draw_heat(
    points: Sequence[TaskPoint],
    *,
    window: int,
    effective: Mapping[str, str],
    title: str,
    width: FigureWidth = "page",
) -> ShownFigure:
    """Draw the share of exact answers by length and depth, one panel per scaling.

    A row below the depths, set apart, is what remains when what is asked for is taken out. A line
    marks the training window: the lengths to its right were never trained.

    points: of one task and checkpoint; those of other metrics are left aside. effective: the
    effective length of each scaling as text. width: of a paper's column or page.
    """
    exact = [point for point in points if point.metric == "exact"]
    names = list(dict.fromkeys(point.name for point in exact))
    lengths = sorted({point.length for point in exact})
    depths = sorted({point.depth for point in exact if point.depth is not None})
    columns = min(_COLUMNS[width], len(names))
    rows = -(-len(names) // columns)
    inches = WIDTHS[width]
    labels = [f"{100 * depth:g}" for depth in depths] or ["asked"]
    with figure_style():
        heading = fold_title(title, inches)
        panel = 0.55 + _ROW_HEIGHT * (len(labels) + 1.3)
        height = rows * panel + 0.35 + 0.16 * len(heading.splitlines())
        figure = ShownFigure(figsize=(inches, height), layout="constrained")
        figure.suptitle(heading)
        axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        room = int(15.5 * inches / columns)
        for place, axis in enumerate(axes.flat):
            if place >= len(names):
                axis.set_visible(False)
                continue
            name = names[place]
            own = [point for point in exact if point.name == name]
            _draw_panel(axis, own, lengths, depths, labels, inches / columns)
            _mark_window(axis, lengths, window)
            heading = f"{name}\neffective: {effective[name]}" if name in effective else name
            axis.set_title(fold_text(heading, room), fontsize=SMALL_SIZE)
            is_lowest = place + columns >= len(names)
            axis.tick_params(labelbottom=is_lowest, length=0)
            if is_lowest:
                axis.set_xlabel("length (tokens)", fontsize=SMALL_SIZE)
            if place % columns == 0 and depths:
                axis.set_ylabel("depth (%)", fontsize=SMALL_SIZE)
        chance = next((point.chance for point in exact if point.chance is not None), None)
        _add_colour_bar(figure, list(axes.flat), chance)
    return figure


def _draw_panel(
    axis: Axes,
    points: Sequence[TaskPoint],
    lengths: Sequence[int],
    depths: Sequence[float],
    labels: Sequence[str],
    inches: float,
) -> None:
    """Draw one scaling's cells, with a number in each where there is room for it."""
    colours = matplotlib.colormaps[_COLOURS]
    rows: dict[float | None, float] = {depth: float(row) for row, depth in enumerate(depths)}
    if not depths:
        rows[None] = 0.0
    below = len(labels) + 0.3
    size = min(SMALL_SIZE - 0.5, 72 * 0.72 * inches / len(lengths) / 2.1)
    for point in points:
        y = below if point.taken_out else rows[point.depth]
        x = lengths.index(point.length)
        if math.isnan(point.value):
            continue
        axis.fill(
            [x - 0.5, x + 0.5, x + 0.5, x - 0.5],
            [y - 0.5, y - 0.5, y + 0.5, y + 0.5],
            color=colours(point.value),
            linewidth=0,
        )
        if size >= _SMALLEST_NUMBER:
            text = f"{100 * point.value:.0f}"
            colour = "white" if point.value < 0.6 else "black"
            axis.text(x, y, text, ha="center", va="center", fontsize=size, color=colour)
    axis.set_xlim(-0.5, len(lengths) - 0.5)
    axis.set_ylim(below + 0.5, -0.5)
    axis.set_xticks(range(len(lengths)), [f"{n:,}" for n in lengths], rotation=45, ha="right")
    axis.set_yticks([*range(len(labels)), below], [*labels, _TAKEN_OUT])
    for side in ("left", "bottom"):
        axis.spines[side].set_visible(False)


def _mark_window(axis: Axes, lengths: Sequence[int], window: int) -> None:
    trained = sum(length <= window for length in lengths)
    if 0 < trained < len(lengths):
        axis.axvline(trained - 0.5, color="white", linewidth=2.0)
        axis.axvline(trained - 0.5, color=NOTE, linewidth=0.8, linestyle=(0, (2, 1)))


def _add_colour_bar(figure: ShownFigure, axes: list[Axes], chance: float | None) -> None:
    shown = ScalarMappable(Normalize(0, 1), _COLOURS)
    bar = figure.colorbar(shown, ax=axes, fraction=0.025, pad=0.01, aspect=25)
    bar.set_ticks(np.linspace(0, 1, 6).tolist(), labels=[f"{n}" for n in range(0, 101, 20)])
    bar.set_label("exact answers (%)", fontsize=TEXT_SIZE)
    outline: Any = bar.outline
    outline.set_visible(False)
    if chance is not None:
        bar.ax.axhline(chance, color="white", linewidth=1.2)
        bar.ax.axhline(chance, color="black", linewidth=0.8, linestyle=(0, (2, 1)))
