"""The figure of a sweep's checkpoints: how perplexity curves evolve in training."""

from collections.abc import Collection, Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rope_jax.evaluation.results import Row
from rope_jax.plots.lines import draw_line
from rope_jax.plots.panels import mark_window, set_scales, shared_limits, x_label
from rope_jax.plots.style import LineStyle, literal_text

_MOST_COLUMNS = 4
# With more checkpoints than this, the legend names evenly spaced ones.
_MOST_STEPS_IN_LEGEND = 12


def draw_checkpoints(rows: Sequence[Row], *, windows: Collection[int], title: str) -> Figure:
    """Draw how curves evolve in training: one line per checkpoint, dark to light.

    Each scaling has a panel for each protocol; each protocol starts a new row of panels.
    rows: of several checkpoints. windows: their training windows, marked in every panel.
    """
    names = list(dict.fromkeys(row.name for row in rows))
    protocols = list(dict.fromkeys(row.protocol for row in rows))
    steps = sorted({row.step for row in rows})
    colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.92, len(steps)))
    styles = {
        step: LineStyle(tuple(colour), "o", linewidth=1.2)
        for step, colour in zip(steps, colours, strict=True)
    }
    lines = -(-len(names) // _MOST_COLUMNS)  # of panels, per protocol
    columns = -(-len(names) // lines)
    limits = shared_limits(rows, truncation=[], with_bands=False)
    with literal_text():
        figure = Figure(
            figsize=(1.5 + 3.4 * columns, 0.8 + 3.2 * lines * len(protocols)), layout="constrained"
        )
        grid = figure.subplots(lines * len(protocols), columns, sharey=True, squeeze=False)
        for protocol, panels in zip(protocols, np.split(grid, len(protocols)), strict=True):
            for axis in panels[:, 0]:
                axis.set_ylabel("perplexity")
            for axis in panels.ravel()[len(names) :]:
                axis.set_visible(False)
            for number, (name, axis) in enumerate(zip(names, panels.flat, strict=False)):
                shown = [row for row in rows if (row.protocol, row.name) == (protocol, name)]
                _draw_steps(axis, shown, styles)
                set_scales(axis, sorted({row.last_position for row in shown}), limits)
                axis.tick_params(axis="x", rotation=45)
                for window in windows:
                    mark_window(axis, window)
                axis.set_title(name if len(protocols) == 1 else f"{name}, {protocol}", fontsize=10)
                if number + columns >= len(names):  # no panel of this protocol below it
                    axis.set_xlabel(x_label(protocol))
        figure.suptitle(title, fontsize=11)
        _add_step_legend(figure, grid[0, 0])
    return figure


def _draw_steps(axis: Axes, rows: Sequence[Row], styles: Mapping[int, LineStyle]) -> None:
    """Draw one line per checkpoint; rows: of one scaling and protocol."""
    for step, style in styles.items():
        points = [row for row in rows if row.step == step]
        draw_line(axis, f"step {step:,}", style, points, band_opacity=0.0)


def _add_step_legend(figure: Figure, axis: Axes) -> None:
    """Add a legend of the lines of `axis`, or of evenly spaced ones if there are many."""
    handles, labels = axis.get_legend_handles_labels()
    count = min(len(labels), _MOST_STEPS_IN_LEGEND)
    chosen = np.linspace(0, len(labels) - 1, count).round().astype(int)
    figure.legend(
        [handles[i] for i in chosen],
        [labels[i] for i in chosen],
        loc="outside right center",
        frameon=False,
        fontsize=8,
    )
