"""The figure of a comparison: colour by scaling, dashes by group of runs, a band over seeds.

Where all groups have one and the same curve, such as `trained`, colours tell the groups apart.
"""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rope_jax.comparison.curves import Comparison, Curve, Point
from rope_jax.comparison.groups import MARK, Group
from rope_jax.comparison.report import describe_groups
from rope_jax.plots.lines import draw_line
from rope_jax.plots.panels import draw_panels
from rope_jax.plots.style import (
    BAND_OPACITY,
    LineStyle,
    assign_styles,
    distinct_styles,
    literal_text,
)

# With more curves than this, bands become fainter.
_MOST_FULL_BANDS = 4
# With more curves than this, bands would hide everything else.
_MOST_BANDS = 12


class Dash(NamedTuple):
    """One dash pattern, in the notations of matplotlib and plotly."""

    matplotlib: Any
    plotly: str


_DASHES = (
    Dash("-", "solid"),
    Dash("--", "dash"),
    Dash(":", "dot"),
    Dash("-.", "dashdot"),
    Dash((0, (9, 2)), "14px,3px"),
    Dash((0, (1, 3)), "2px,6px"),
    Dash((0, (6, 2, 1, 2, 1, 2)), "9px,3px,2px,3px,2px,3px"),
    Dash((0, (3, 4)), "5px,7px"),
)


def draw_comparison(comparison: Comparison) -> Figure:
    """Draw each group's newest checkpoint: the mean over seeds, and each seed as a thin line."""
    curves = [curve for curve in comparison.curves if curve.is_newest]
    points = [point for curve in curves for point in curve.points]
    groups, styles = comparison.groups, assign_curve_styles(curves)
    by_group = assign_group_styles(comparison)
    opacity = BAND_OPACITY * min(1, _MOST_FULL_BANDS / len(curves))
    if len(curves) > _MOST_BANDS:
        opacity = 0.0
    with literal_text():
        figure, axes = draw_panels(
            points,
            windows=sorted({curve.window for curve in curves}),
            truncation=truncation_levels(curves),
            legend_lines=len(styles) + len(groups) + 4,
            with_bands=opacity > 0,
        )
        for protocol, axis in axes.items():
            for curve in curves:
                own = [point for point in curve.points if point.protocol == protocol]
                dash = dash_of(curve.group, groups)
                style = replace(styles[curve.name], linestyle=dash.matplotlib)
                style = by_group.get(curve.group.label, style)
                draw_line(axis, curve.label, style, own, band_opacity=opacity)
                _draw_seeds(axis, style, own)
        legend = _legend(comparison, styles, with_bands=opacity > 0)
        figure.legend(handles=legend, loc="outside right center", frameon=False, fontsize=9)
        figure.suptitle(_title(comparison), fontsize=11)
    return figure


def assign_curve_styles(curves: Sequence[Curve]) -> dict[str, LineStyle]:
    """Return a style for each scaling by name, without dashes, which distinguish groups."""
    kinds: dict[str, str] = {}
    for curve in curves:
        kinds.setdefault(curve.name, "trained" if curve.name == "trained" else curve.kind)
    return assign_styles(kinds)


def assign_group_styles(comparison: Comparison) -> dict[str, LineStyle]:
    """Return a style for each group by label where every group has the same single curve.

    Empty otherwise: colours then stand for scalings.
    """
    groups = comparison.groups
    if len(groups) < 2 or len({curve.name for curve in comparison.curves}) > 1:
        return {}
    return distinct_styles([group.label for group in groups])


def dash_of(group: Group, groups: Sequence[Group]) -> Dash:
    """Return a group's dash pattern; from the ninth group on, they repeat."""
    return _DASHES[groups.index(group) % len(_DASHES)]


def truncation_levels(curves: Sequence[Curve]) -> list[float]:
    """Return the distinct NLLs of `trained` at the window in the groups that measured it."""
    levels = {
        curve.group.label: point.nll + point.gain.value
        for curve in curves
        for point in curve.points
        if point.gain is not None and math.isfinite(point.gain.value)
    }
    return list(dict.fromkeys(round(nll, 9) for nll in levels.values()))


def _draw_seeds(axis: Axes, style: LineStyle, points: Sequence[Point]) -> None:
    seeds = len(points[0].nll_by_seed) if points else 0
    if seeds < 2:
        return
    thin = replace(style, marker="", linewidth=0.5)
    x = [point.last_position for point in points]
    for seed in range(seeds):
        with np.errstate(over="ignore"):
            y = np.exp([point.nll_by_seed[seed] for point in points])
        axis.plot(x, y, alpha=0.6, **vars(thin))


def _legend(
    comparison: Comparison, styles: dict[str, LineStyle], *, with_bands: bool
) -> list[Line2D]:
    groups, by_group = comparison.groups, assign_group_styles(comparison)
    lines = [
        Line2D([], [], label=textwrap.fill(name, 40), **vars(style))
        for name, style in (by_group or styles).items()
    ]
    if not by_group and (len(groups) > 1 or groups[0].marked):
        lines += [
            Line2D(
                [],
                [],
                color="0.3",
                linestyle=dash_of(group, groups).matplotlib,
                label=textwrap.fill(group.label, 40),
            )
            for group in groups
        ]
    if any(len(p.nll_by_seed) > 1 for c in comparison.curves if c.is_newest for p in c.points):
        lines.append(Line2D([], [], color="0.3", linewidth=0.5, label="each seed"))
    if with_bands:
        interval = "95% interval over\ndocuments and seeds"
        lines.append(Line2D([], [], color="0.85", linewidth=7, label=interval))
    return lines


def _title(comparison: Comparison) -> str:
    title = textwrap.fill(describe_groups(comparison), 100)
    if any(group.marked for group in comparison.groups):
        title += f"\n{MARK} CANNOT BE COMPARED with the groups before it; comparison.md says why"
    return title
