"""Heat maps of a task: the share of exact answers by length and depth, one panel per scaling."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize

from rope_jax.config.presentation import FigureWidth
from rope_jax.plots.figure import ShownFigure
from rope_jax.plots.labels import fold_text
from rope_jax.plots.panels import fold_title
from rope_jax.plots.style import NOTE, SMALL_SIZE, WIDTHS, figure_style

# Perceptually uniform, also in grey and for colour-blind readers: dark is not found, light is.
_COLOURS = "viridis"
_TAKEN_OUT = "taken out"
_COLUMNS: Mapping[FigureWidth, int] = {"column": 2, "page": 4}
_ROW_HEIGHT = 0.17  # inches, of a depth
_SMALLEST_NUMBER = 5.0  # points
_NUMBER_WIDTH = 2.2  # of three digits and a gap, in font sizes
_LENGTH = "length (tokens)"
_SLANTED: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}


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


class _Panel(NamedTuple):
    """The cells of a panel: shares of exact answers by length."""

    title: str
    rows: Mapping[str, Mapping[int, float]]
    """By the row's label, from the top."""
    taken_out: Mapping[int, float]


def draw_heat(
    points: Sequence[TaskPoint],
    *,
    window: int,
    effective: Mapping[str, str],
    title: str,
    width: FigureWidth = "page",
) -> ShownFigure:
    """Draw the share of exact answers by length and depth, one panel per scaling.

    A task without depths has one panel, with a row per scaling. A row below, set apart, is what
    remains when what is asked for is taken out: in one panel for all, the largest of the scalings.
    A line marks the training window: the lengths to its right were never trained.

    points: of one task and checkpoint; those of other metrics are left aside. effective: the
    effective length of each scaling as text. width: of a paper's column or page.
    """
    exact = [point for point in points if point.metric == "exact"]
    lengths = sorted({point.length for point in exact})
    has_depths = any(point.depth is not None for point in exact)
    panels = _panels(exact, effective) if has_depths else [_panel_of_scalings(exact, effective)]
    columns = min(_COLUMNS[width], len(panels))
    rows = -(-len(panels) // columns)
    inches = WIDTHS[width]
    with figure_style():
        heading = fold_title(title, inches)
        labels = max(len(panel.rows) for panel in panels)
        height = rows * (0.42 + _ROW_HEIGHT * (labels + 1.3)) + 0.55
        height += 0.16 * len(heading.splitlines()) + 0.4 * (width == "column")
        figure = ShownFigure(figsize=(inches, height), layout="constrained")
        figure.suptitle(heading)
        axes = figure.subplots(rows, columns, sharey=True, squeeze=False)
        room = int(15.5 * inches / columns)
        for axis in axes.flat[len(panels) :]:
            axis.set_visible(False)
        above_gap = []
        for place, (panel, axis) in enumerate(zip(panels, axes.flat, strict=False)):
            _draw_panel(axis, panel, lengths)
            _mark_window(axis, lengths, window)
            axis.set_title(fold_text(panel.title, room), fontsize=SMALL_SIZE)
            is_lowest = place // columns == rows - 1
            axis.tick_params(labelbottom=is_lowest, length=0)
            if is_lowest:
                axis.set_xlabel(_LENGTH, fontsize=SMALL_SIZE)
            elif place + columns >= len(panels):
                above_gap.append(axis)
            if place % columns == 0 and has_depths:
                axis.set_ylabel("depth (%)", fontsize=SMALL_SIZE)
        chance = next((point.chance for point in exact if point.chance is not None), None)
        _add_colour_bar(figure, list(axes.flat), chance, is_below=width == "column")
        figure.draw_without_rendering()  # lays out the panels
        for axis in axes.flat[: len(panels)]:
            _fit_numbers(axis, len(lengths))
        for axis in above_gap:
            _label_below(axis, lengths)
    return figure


def _panels(points: Sequence[TaskPoint], effective: Mapping[str, str]) -> list[_Panel]:
    """Return one panel per scaling, with a row per depth."""
    panels = []
    depths = sorted({point.depth for point in points if point.depth is not None})
    for name in dict.fromkeys(point.name for point in points):
        own = [point for point in points if point.name == name]
        rows = {
            f"{100 * depth:g}": {p.length: p.value for p in own if p.depth == depth}
            for depth in depths
        }
        title = f"{name}\neffective: {effective[name]}" if name in effective else name
        panels.append(_Panel(title, rows, {p.length: p.value for p in own if p.taken_out}))
    return panels


def _panel_of_scalings(points: Sequence[TaskPoint], effective: Mapping[str, str]) -> _Panel:
    """Return a panel with one row per scaling."""
    rows: dict[str, dict[int, float]] = {}
    taken_out: dict[int, float] = {}
    for point in points:
        if point.taken_out:
            taken_out[point.length] = max(taken_out.get(point.length, 0.0), point.value)
            continue
        label = point.name
        if point.name in effective:
            label += f", effective: {effective[point.name]}"
        rows.setdefault(label, {})[point.length] = point.value
    return _Panel("", rows, taken_out)


def _draw_panel(axis: Axes, panel: _Panel, lengths: Sequence[int]) -> None:
    """Draw a panel's cells, with a number in each; a length that was not measured stays empty."""
    colours = matplotlib.colormaps[_COLOURS]
    below = len(panel.rows) + 0.3
    places = {**dict(zip(panel.rows, range(len(panel.rows)), strict=True)), _TAKEN_OUT: below}
    cells = {**panel.rows, **({_TAKEN_OUT: panel.taken_out} if panel.taken_out else {})}
    for label, by_length in cells.items():
        y = places[label]
        for length, value in by_length.items():
            if math.isnan(value):
                continue
            x = lengths.index(length)
            axis.fill(
                [x - 0.5, x + 0.5, x + 0.5, x - 0.5],
                [y - 0.5, y - 0.5, y + 0.5, y + 0.5],
                color=colours(value),
                linewidth=0,
            )
            colour = "white" if value < 0.6 else "black"
            axis.text(x, y, share_text(value), ha="center", va="center", color=colour)
    axis.set_xlim(-0.5, len(lengths) - 0.5)
    axis.set_ylim(below + 0.5 if panel.taken_out else len(panel.rows) - 0.5, -0.5)
    axis.set_xticks(range(len(lengths)), [f"{n:,}" for n in lengths], **_SLANTED)
    axis.set_yticks([places[label] for label in cells], list(cells))
    for side in ("left", "bottom"):
        axis.spines[side].set_visible(False)


def share_text(share: float) -> str:
    """Return a share in %, such as "97"; only all are "100", and only none are "0"."""
    if 0 < share < 0.01:
        return "<1"
    return ">99" if 0.99 < share < 1 else f"{100 * share:.0f}"


def _fit_numbers(axis: Axes, lengths: int) -> None:
    """Write a panel's numbers as large as its cells allow, or not at all."""
    figure = axis.get_figure(root=True)
    assert figure is not None
    cell = axis.get_window_extent().width * 72 / figure.dpi / lengths  # points
    size = min(SMALL_SIZE - 0.5, cell / _NUMBER_WIDTH)
    for text in list(axis.texts):
        if size < _SMALLEST_NUMBER:
            text.remove()
        else:
            text.set_fontsize(size)


def _label_below(axis: Axes, lengths: Sequence[int]) -> None:
    """Write the lengths into the empty place below a panel, which the layout may ignore.

    As labels of the axis they would move the next row of panels down.
    """
    style: dict[str, Any] = {"fontsize": SMALL_SIZE, "textcoords": "offset points", "va": "top"}
    place = "data", "axes fraction"
    made = [
        axis.annotate(f"{n:,}", (x, 0), xycoords=place, xytext=(0, -3), **style | _SLANTED)
        for x, n in enumerate(lengths)
    ]
    middle: dict[str, Any] = {"xycoords": "axes fraction", "xytext": (0, -25), "ha": "center"}
    made.append(axis.annotate(_LENGTH, (0.5, 0), **style | middle))
    for text in made:
        text.set_in_layout(False)


def _mark_window(axis: Axes, lengths: Sequence[int], window: int) -> None:
    trained = sum(length <= window for length in lengths)
    if 0 < trained < len(lengths):
        axis.axvline(trained - 0.5, color="white", linewidth=2.0)
        axis.axvline(trained - 0.5, color=NOTE, linewidth=0.8, linestyle=(0, (2, 1)))


def _add_colour_bar(
    figure: ShownFigure, axes: list[Axes], chance: float | None, *, is_below: bool
) -> None:
    """Add the scale of all panels, with the level of chance marked and named."""
    shown = ScalarMappable(Normalize(0, 1), _COLOURS)
    place: dict[str, Any] = {"fraction": 0.025, "pad": 0.01, "aspect": 25}
    if is_below:
        place = {"location": "bottom", "fraction": 0.02, "pad": 0.01, "aspect": 40}
    bar = figure.colorbar(shown, ax=axes, **place)
    bar.set_ticks(np.linspace(0, 1, 6).tolist(), labels=[f"{n}" for n in range(0, 101, 20)])
    label = "exact (%)"
    if chance is not None:
        label += f"; chance: {100 * chance:.2g}"
        mark = bar.ax.axvline if is_below else bar.ax.axhline
        mark(chance, color="white", linewidth=1.2)
        mark(chance, color="black", linewidth=0.8, linestyle=(0, (2, 1)))
    bar.set_label(label, fontsize=SMALL_SIZE)
    outline: Any = bar.outline
    outline.set_visible(False)
