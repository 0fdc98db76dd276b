"""Curves of perplexity over context length."""

from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from rope_jax.comparison.curves import Point
from rope_jax.plots.panels import perplexities
from rope_jax.plots.style import BACKGROUND, LineStyle


def draw_line(
    axis: Axes,
    label: str,
    style: LineStyle,
    points: Sequence[Point],
    *,
    band_opacity: float,
) -> None:
    """Draw one curve through its points, and its interval as a band (none where opacity is 0)."""
    if not points:
        return
    x = [point.last_position for point in points]
    drawn = perplexities(points)
    # nan leaves a gap; inf makes matplotlib warn
    middle, low, high = np.where(np.isfinite(drawn), drawn, np.nan)
    axis.plot(x, middle, label=label, **vars(style))
    if band_opacity and len(x) > 1:
        axis.fill_between(x, low, high, color=style.color, alpha=band_opacity, linewidth=0)
    elif band_opacity:  # a band needs two points
        axis.vlines(x, low, high, color=style.color, alpha=0.5, linewidth=style.linewidth)


def draw_background(axis: Axes, curves: Iterable[tuple[LineStyle, Sequence[Point]]]) -> None:
    """Draw the curves that other panels are about, in light grey and behind everything."""
    shown = [(style.linestyle, points) for style, points in curves if points]
    lines = []
    for _, points in shown:
        y = perplexities(points)[0]
        x = [point.last_position for point in points]
        lines.append(np.column_stack([x, np.where(np.isfinite(y), y, np.nan)]))
    # to matplotlib, a line costs as much as hundreds of points
    axis.add_collection(
        LineCollection(
            lines,
            colors=BACKGROUND,
            linewidths=0.7,
            linestyles=[dashes for dashes, _ in shown],
            zorder=1.2,
        ),
        autolim=False,
    )
