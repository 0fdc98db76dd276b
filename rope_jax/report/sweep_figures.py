"""The figures of a sweep: its newest checkpoint, and how its curves evolve in training."""

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rope_jax.comparison.curves import compare_checkpoints
from rope_jax.config.presentation import FigureWidth
from rope_jax.plots.panels import draw_line, finish_panels, make_panels, window_handle
from rope_jax.plots.style import MARKERS, LineStyle, figure_style
from rope_jax.report.figure import draw_run
from rope_jax.report.text import units_text
from rope_jax.results.rows import Row
from rope_jax.results.summary import CheckpointSummary

# With more checkpoints than this, the legend names evenly spaced ones.
_MOST_STEPS_IN_LEGEND = 12


def draw_sweep(
    rows: Sequence[Row], checkpoints: Sequence[CheckpointSummary], *, width: FigureWidth
) -> dict[str, Figure]:
    """Return the figures of a sweep by file name: curve.png, and steps.png of several checkpoints.

    rows: of all checkpoints. checkpoints: the newest first.
    """
    newest = checkpoints[0]
    of_newest = [row for row in rows if row.step == newest.step]
    split = of_newest[0].split
    scored = units_text(of_newest[0].units, of_newest[0].documents)
    trained = f"trained at {newest.window:,} tokens"
    figures: dict[str, Figure] = {
        "curve.png": draw_run(
            of_newest,
            newest,
            title=f"{newest.run}, step {newest.step}: {trained}; {split} split, {scored}",
            width=width,
        )
    }
    if len(checkpoints) > 1:
        figures["steps.png"] = draw_checkpoints(
            rows,
            checkpoints,
            title=f"{newest.run}, by training step; {split} split, {scored}",
            width=width,
        )
    return figures


def draw_checkpoints(
    rows: Sequence[Row],
    checkpoints: Sequence[CheckpointSummary],
    *,
    title: str,
    width: FigureWidth = "page",
) -> Figure:
    """Draw how curves evolve in training: one line per checkpoint, dark to light.

    Each scaling has a panel for each protocol; each protocol starts a new row of panels.
    """
    curves = sorted(compare_checkpoints(rows, checkpoints).curves, key=lambda curve: curve.step)
    windows = sorted({curve.window for curve in curves})
    steps = sorted({curve.step for curve in curves})
    styles = _step_styles(steps)
    with figure_style():
        panels = make_panels(
            [point for curve in curves for point in curve.points],
            windows=windows,
            truncation=[],
            banded=[],
            title=title,
            width=width,
            keys=list(dict.fromkeys(curve.name for curve in curves)),
        )
        for curve in curves:
            for protocol in dict.fromkeys(point.protocol for point in curve.points):
                points = [point for point in curve.points if point.protocol == protocol]
                axis, label = panels.axes[protocol, curve.name], f"step {curve.step:,}"
                draw_line(axis, label, styles[curve.step], points, band_opacity=0.0)
        chosen = np.linspace(0, len(steps) - 1, min(len(steps), _MOST_STEPS_IN_LEGEND))
        handles: list[Artist] = [
            Line2D([], [], label=f"step {steps[i]:,}", **vars(styles[steps[i]]))
            for i in chosen.round().astype(int)
        ]
        if len(windows) > 1:
            handles.append(window_handle())
        finish_panels(panels, handles)
    return panels.figure


def _step_styles(steps: Sequence[int]) -> dict[int, LineStyle]:
    """Return a style for each step: colours that get lighter, in grey as well, and markers."""
    # the lightest colours of the map are too faint on white
    colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.85, len(steps)))
    return {
        step: LineStyle(to_hex(colour), MARKERS[place % len(MARKERS)], linewidth=1.0)
        for place, (step, colour) in enumerate(zip(steps, colours, strict=True))
    }
