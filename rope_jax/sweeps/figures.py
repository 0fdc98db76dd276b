"""The figures of one sweep: perplexity curves by scaling, and how they evolve in training."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rope_jax.evaluation.results import Row
from rope_jax.plots import (
    BAND_OPACITY,
    LineStyle,
    assign_styles,
    draw_line,
    draw_panels,
    literal_text,
    mark_window,
    set_scales,
    shared_limits,
    x_label,
)

# With more curves than this, their bands would hide one another.
_MOST_BANDS = 8
_MOST_COLUMNS = 4
# With more checkpoints than this, the legend names evenly spaced ones.
_MOST_STEPS_IN_LEGEND = 12


def draw_curves(
    rows: Sequence[Row], *, window: int, truncation: float | None, title: str
) -> Figure:
    """Draw perplexity over context length, log-log: one panel per protocol, one line per scaling.

    rows: of one checkpoint. window: the training window, marked in every panel. truncation: the NLL
    at the window, which is what dropping all earlier text gives at any length; None if unknown.
    """
    names = list(dict.fromkeys(row.name for row in rows))
    styles = _row_styles(rows)
    opacity = BAND_OPACITY if len(names) <= _MOST_BANDS else 0.0
    with literal_text():
        figure, axes = draw_panels(
            rows,
            windows=[window],
            truncation=[] if truncation is None else [truncation],
            legend_lines=len(names),
            with_bands=opacity > 0,
        )
        for protocol, axis in axes.items():
            for name in names:
                points = [row for row in rows if (row.protocol, row.name) == (protocol, name)]
                draw_line(axis, name, styles[name], points, band_opacity=opacity)
        figure.suptitle(title, fontsize=11)
        handles, labels = next(iter(axes.values())).get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=9)
    return figure


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


def _row_styles(rows: Sequence[Row]) -> dict[str, LineStyle]:
    """Return each curve's style by name; curves with a fixed factor above 1 are dashed."""
    last = {row.name: row for row in rows}
    kinds = {name: name if name == "trained" else row.kind for name, row in last.items()}
    styles = assign_styles(kinds)
    for name, row in last.items():
        if name != "trained" and not row.auto and (row.factor or 1) > 1:
            styles[name] = replace(styles[name], linestyle="--")
    return styles


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
