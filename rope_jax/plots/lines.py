"""The points of a curve, and the line through them."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from rope_jax.plots.style import LineStyle


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
    axis.plot(x, middle, ms=3.5, label=label, **vars(style))
    if band_opacity:
        axis.fill_between(x, low, high, color=style.color, alpha=band_opacity, linewidth=0)


def perplexities(points: Sequence[PlottedPoint]) -> NDArray[np.float64]:
    """Return perplexities and the ends of their intervals, [3, points]; inf above e^700."""
    nll = np.array([(point.nll, point.ci_low, point.ci_high) for point in points]).T
    return np.where(nll > 700, np.inf, np.exp(np.minimum(nll, 700)))
