"""Curves of perplexity over context length, in panels with common limits."""

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from rope_jax.comparison.curves import Curve, Point
from rope_jax.config.presentation import FigureWidth
from rope_jax.plots.panels import (
    add_legend,
    fold_text,
    label_lowest,
    label_powers,
    make_grid,
    mark_windows,
    panel_columns,
    scale_lengths,
)
from rope_jax.plots.style import (
    BACKGROUND,
    BAND_OPACITY,
    MOST_CURVES,
    NOTE,
    REFERENCE,
    SMALL_SIZE,
    WIDTHS,
    LineStyle,
    figure_style,
)
from rope_jax.protocols import BASELINE, PROTOCOLS
from rope_jax.report.measured import truncation_levels

_TRUNCATION: dict[str, Any] = {"color": "0.4", "linestyle": ":", "linewidth": 1.1}
_ROW_HEIGHTS: Mapping[FigureWidth, Mapping[int, float]] = {
    "column": {1: 2.3, 2: 1.35},
    "page": {1: 2.9, 2: 2.1, 3: 1.65, 4: 1.3},
}
"""Inches, by the number of panels in a row."""
_MOST_NATS = 700  # e^700 is nearly the largest float; matplotlib warns of infinities
# With more curves in a panel than this, bands become fainter.
_MOST_FULL_BANDS = 4


@dataclass(frozen=True)
class Plan:
    """Which panel shows which curves, and what explains their styles.

    key: by curve, the title of its panel; "" if there is one panel per protocol. legend: by label,
    the styles to explain. apart: whether each panel shows one curve in front of the others.
    reference: by curve, the dashed one that its panel shows as well, if any. has_intervals: whether
    intervals, seeds and truncation are drawn.
    """

    key: Mapping[Curve, str]
    styles: Mapping[Curve, LineStyle]
    legend: Mapping[str, LineStyle]
    apart: bool = False
    reference: Mapping[Curve, Curve] = field(default_factory=dict)
    has_intervals: bool = True

    @property
    def most(self) -> int:
        """The number of curves in the fullest panel."""
        return max(Counter(self.key.values()).values())

    @property
    def compares(self) -> bool:
        """Whether most panels have several curves, and none too many."""
        counts = Counter(self.key.values()).values()
        return self.most <= MOST_CURVES and 2 * sum(n > 1 for n in counts) > len(counts)


def draw_plan(plan: Plan, meanings: Sequence[Artist], *, title: str, width: FigureWidth) -> Figure:
    """Draw curves in panels; meanings: what the legend has behind `plan.legend`."""
    points = [point for curve in plan.key for point in curve.points]
    windows = sorted({curve.window for curve in plan.key})
    levels = truncation_levels(plan.key) if plan.has_intervals else {}
    protocols = list(dict.fromkeys(point.protocol for point in points))
    keys = list(dict.fromkeys(plan.key.values()))
    is_by_key = keys != [""]
    if is_by_key and len(protocols) == 1:  # the panels' titles are the keys alone
        title += f"\n{PROTOCOLS[protocols[0]].title}"
    panels = list(itertools.product(protocols, keys))
    count = len(keys) if is_by_key else len(protocols)  # with keys, each protocol begins a row
    columns = panel_columns(count, width)
    inches = WIDTHS[width] / columns  # of a panel
    headings = []
    for protocol, key in panels:
        heading = f"{key}\n{protocol}" if key and len(protocols) > 1 else key
        heading = heading or PROTOCOLS[protocol].title
        headings.append(fold_text(heading, max(20, int(14 * inches))))
    row_height = _ROW_HEIGHTS[width][columns]
    row_height += 0.13 * max(heading.count("\n") for heading in headings)
    if not is_by_key and columns > 1:  # every row of panels has labels below it
        row_height += 0.3
    with figure_style():
        blocks = len(panels) // count
        figure, axes = make_grid(
            count, columns, blocks=blocks, row_height=row_height, title=title, width=width
        )
        limits = _limits(points, list(levels), has_intervals=plan.has_intervals)
        # once, not in each panel: matplotlib repeats for all panels whatever is set in one
        axes[0].set_yscale("log")
        axes[0].set_ylim(*limits)
        label_powers(axes[0].yaxis, *limits)
        for number, (protocol, key) in enumerate(panels):
            axis, place = axes[number], number % count
            at = [point for point in points if point.protocol == protocol]
            scale_lengths(axis, sorted({point.last_position for point in at}), 0.75 * inches)
            label = "length (tokens)" if inches < 2 else "context length (tokens)"
            if PROTOCOLS[protocol].by_position:
                label = "position"
            if is_by_key:
                label_lowest(axis, label, place, count, columns)
            else:
                axis.set_xlabel(label)
            # labels of windows are between the title and the panel
            axis.set_title(headings[number], pad=3 if is_by_key and place >= columns else 11)
            mark_windows(axis, windows, with_label=not is_by_key or place == 0)
            if place % columns == 0:
                axis.set_ylabel("perplexity")
            # beside an empty place, it would move the panels of the next column to the right
            if place % columns == columns - 1:
                _add_bits_per_byte_axis(axis, at)
            _draw_panel(axis, protocol, key, plan)
        handles: list[Artist] = [
            Line2D([], [], label=fold_text(label, int(13 * WIDTHS[width])), **vars(style))
            for label, style in plan.legend.items()
        ]
        handles += meanings
        if levels and BASELINE in protocols:
            handles.append(Line2D([], [], label="truncation to the window", **_TRUNCATION))
        if len(windows) > 1:
            mark: dict[str, Any] = {"marker": "|", "markersize": 8, "markeredgewidth": 0.8}
            mark |= {"linestyle": "none", "color": "0.6"}
            handles.append(Line2D([], [], label="training window", **mark))
        add_legend(figure, handles, may_be_beside=len(axes) == 1)
    return figure


def _draw_panel(axis: Axes, protocol: str, key: str, plan: Plan) -> None:
    def draw(curve: Curve, style: LineStyle, *, opacity: float = 0.0, **settings: Any) -> None:
        own = [point for point in curve.points if point.protocol == protocol]
        if not own:
            return
        x, (middle, low, high) = [point.last_position for point in own], _perplexities(own)
        axis.plot(x, middle, **(vars(style) | settings))
        if opacity and len(x) > 1:
            axis.fill_between(x, low, high, color=style.color, alpha=opacity, linewidth=0)
        elif opacity:  # a band needs two points
            axis.vlines(x, low, high, color=style.color, alpha=0.5, linewidth=style.linewidth)
        if opacity and len(own[0].nll_by_seed) > 1:
            thin = replace(style, marker="", linewidth=0.5)
            with np.errstate(over="ignore"):
                seeds = np.exp([point.nll_by_seed for point in own])
            axis.plot(x, seeds, alpha=0.6, **vars(thin))

    shown = [curve for curve, title in plan.key.items() if title == key]
    if plan.apart:
        references = [plan.reference[curve] for curve in shown if curve in plan.reference]
        for curve, style in plan.styles.items():
            if curve not in (*references, *shown):
                grey = replace(style, color=BACKGROUND, marker="", linewidth=0.7)
                draw(curve, grey, zorder=1.2)
        for curve in references:
            draw(curve, REFERENCE, label=curve.label)
    opacity = BAND_OPACITY * min(1, _MOST_FULL_BANDS / plan.most) * plan.has_intervals
    for curve in shown:
        draw(curve, plan.styles[curve], opacity=opacity, label=curve.label)
    levels = truncation_levels(shown) if protocol == BASELINE and plan.has_intervals else {}
    for nll, labels in levels.items():
        # of several, each in its group's colour if that has one
        own = {plan.styles[curve].color for curve in shown if [curve.group.label] == labels}
        colour = {"color": own.pop()} if len(levels) > 1 and len(own) == 1 else {}
        axis.axhline(np.exp(nll), zorder=1.6, **(_TRUNCATION | colour))


def _perplexities(points: Sequence[Point]) -> NDArray[np.float64]:
    """Return perplexities and the ends of their intervals, [3, points]; nan above e^700."""
    nll = np.array([(point.nll, point.ci_low, point.ci_high) for point in points]).T
    return np.exp(np.where(nll > _MOST_NATS, np.nan, nll))


def _limits(
    points: Sequence[Point], truncation: Sequence[float], *, has_intervals: bool
) -> tuple[float, float]:
    """Return the vertical limits that all panels share.

    They include every finite point and truncation line. Intervals, if drawn, may widen them on
    either side by half the points' logarithmic range, or by a factor of 1.5 if that is more: an
    interval over a few documents can be orders of magnitude wider than the curve.
    """
    values = np.append(_perplexities(points)[0], np.exp(truncation))
    values = values[np.isfinite(values)]
    if not values.size:
        return 1.0, 10.0
    low, high = values.min(), values.max()
    if has_intervals:
        room = max(math.sqrt(high / low), 1.5)
        ends = _perplexities(points)[1:].ravel()
        values = np.append(values, np.clip(ends, low / room, high * room))
    low, high = np.nanmin(values), np.nanmax(values)
    margin = max(1.05, (high / low) ** 0.05)
    return float(low / margin), float(high * margin)


def _add_bits_per_byte_axis(axis: Axes, points: Sequence[Point]) -> None:
    """Add a right-hand axis in bits per byte, if the points have them and score the same bytes."""
    ratios = [point.nll / point.bpb for point in points if point.bpb and math.isfinite(point.bpb)]
    if not ratios or np.ptp(ratios) > 1e-9 * ratios[0]:  # one axis cannot show several
        return
    nats_per_bpb = ratios[0]  # nats per token that equal one bit per byte

    def to_bits(perplexity: Any) -> Any:
        return np.log(np.maximum(perplexity, 1e-9)) / nats_per_bpb

    def to_perplexity(bits: Any) -> Any:  # matplotlib also asks for values far off the page
        return np.exp(np.clip(np.multiply(bits, nats_per_bpb), -700, 700))

    right = axis.secondary_yaxis("right", functions=(to_bits, to_perplexity))
    low, high = to_bits(axis.get_ylim())
    ticks = MaxNLocator(5).tick_values(low, high)
    right.set_yticks([tick for tick in ticks if low <= tick <= high])
    right.yaxis.set_major_formatter("{x:g}")
    right.minorticks_off()
    right.set_ylabel("bits per byte", fontsize=SMALL_SIZE, color=NOTE)
    right.tick_params(colors=NOTE)
    right.spines["right"].set_visible(False)
