"""The points of a curve, and the line through them."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from rope_jax.plots.style import BACKGROUND, LineStyle


@runtime_checkable
class PlottedPoint(Protocol):
    """One point of a curve: a row of results.csv, or several seeds pooled."""

    @property
    def protocol(self) -> str: ...
    @property
    def last_position(self) -> int: ...
    @property
    def nll(self) -> float: ...
    @property
    def ci_low(self) -> float: ...
    @property
    def ci_high(self) -> float: ...
    @property
    def bpb(self) -> float | None: ...


def draw_line(
    axis: Axes,
    label: str,
    style: LineStyle,
    points: Sequence[PlottedPoint],
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


def draw_background(axis: Axes, curves: Iterable[tuple[LineStyle, Sequence[PlottedPoint]]]) -> None:
    """Draw the curves that other panels are about, in light grey and behind everything.

    Curves with the same dashes are one line with gaps: to matplotlib, a line costs as much as
    hundreds of points.
    """
    by_dashes: dict[str, list[tuple[LineStyle, Sequence[PlottedPoint]]]] = {}
    for style, points in curves:
        if points:
            by_dashes.setdefault(str(style.linestyle), []).append((style, points))
    for alike in by_dashes.values():
        style = replace(alike[0][0], color=BACKGROUND, marker="", linewidth=0.7)
        x = [[*(point.last_position for point in points), np.nan] for _, points in alike]
        y = [np.append(perplexities(points)[0], np.nan) for _, points in alike]
        drawn = np.concatenate(y)
        drawn = np.where(np.isfinite(drawn), drawn, np.nan)
        axis.plot(np.concatenate(x), drawn, zorder=1.2, **vars(style))


def line_end(points: Sequence[PlottedPoint]) -> tuple[float, float] | None:
    """Return the last point of a curve that is drawn, as (length, perplexity); None without one."""
    for point in reversed(points):
        if math.isfinite(point.nll) and point.nll <= _MOST_NATS:
            return float(point.last_position), math.exp(point.nll)
    return None


_MOST_NATS = 700  # e^700 is nearly the largest float


def perplexities(points: Sequence[PlottedPoint]) -> NDArray[np.float64]:
    """Return perplexities and the ends of their intervals, [3, points]; inf above e^700."""
    nll = np.array([(point.nll, point.ci_low, point.ci_high) for point in points]).T
    return np.where(nll > _MOST_NATS, np.inf, np.exp(np.minimum(nll, _MOST_NATS)))
