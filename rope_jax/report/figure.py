"""The figure of a comparison: the mean over seeds with its interval, and each seed as a thin line.

Up to six curves share a panel: colours for scalings, dashes for groups of runs, or colours for
groups that have one and the same curve. More have one panel per scaling or per group, whichever
compares several in most panels and at most six; else each has one, with the others in grey.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from rope_jax.comparison.curves import Comparison, Curve, Point, compare_checkpoints
from rope_jax.comparison.groups import MARK, Group, describe_settings
from rope_jax.config.presentation import FigureWidth
from rope_jax.plots.panels import (
    apart_handles,
    draw_background,
    draw_line,
    finish_panels,
    fold_text,
    fold_title,
    make_panels,
    mark_truncation,
    truncation_handle,
    window_handle,
)
from rope_jax.plots.style import (
    BAND_OPACITY,
    MOST_CURVES,
    REFERENCE,
    WIDTHS,
    LineStyle,
    assign_styles,
    distinct_styles,
    figure_style,
)
from rope_jax.protocols import BASELINE
from rope_jax.report.measured import describe_groups, newest_curves
from rope_jax.results.rows import Row
from rope_jax.results.summary import CheckpointSummary

# With more curves in a panel than this, bands become fainter.
_MOST_FULL_BANDS = 4


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


@dataclass(frozen=True)
class Plan:
    """Which panel shows which curves, and what explains their styles.

    key: by curve, the title of its panel; "" if there is one panel per protocol.
    styles: by curve. legend: by label, the styles to explain. apart: whether each panel shows one
    curve in front of the others. colours: by group's label, where colours stand for groups that
    share a panel. reference: by curve, the dashed one that its panel shows as well;
    without it, there is none. has_intervals: whether intervals, seeds and truncation are drawn.
    """

    key: Mapping[Curve, str]
    styles: Mapping[Curve, LineStyle]
    legend: Mapping[str, LineStyle]
    apart: bool = False
    colours: Mapping[str, LineStyle] = field(default_factory=dict)
    reference: Mapping[Curve, Curve] = field(default_factory=dict)
    has_intervals: bool = True

    @property
    def compares(self) -> bool:
        """Whether most panels have several curves, and none too many."""
        counts = Counter(self.key.values()).values()
        return max(counts) <= MOST_CURVES and 2 * sum(n > 1 for n in counts) > len(counts)


def draw_comparison(comparison: Comparison, *, title: str | None = None) -> Figure:
    """Draw each group's newest checkpoint; title: in place of one that names the groups."""
    width = comparison.figure_width
    curves = newest_curves(comparison)
    plan = _plan(comparison, curves)
    panels = {(point.protocol, plan.key[curve]) for curve in curves for point in curve.points}
    if comparison.only and len(panels) == 1:  # as the right ends, which are beside it
        ends = {curve.name: curve.points[-1].nll for curve in curves}
        legend = sorted(plan.legend.items(), key=lambda entry: -ends[entry[0]])
        plan = replace(plan, legend=dict(legend))
    meanings = _meanings(plan, curves, comparison)
    title = _title(comparison, width) if title is None else title
    return draw_plan(plan, meanings, title=title, width=width)


def draw_plan(plan: Plan, meanings: Sequence[Artist], *, title: str, width: FigureWidth) -> Figure:
    """Draw curves in panels; meanings: what the legend has behind `plan.legend`."""
    curves = list(plan.key)
    points = [point for curve in curves for point in curve.points]
    windows = sorted({curve.window for curve in curves})
    levels = truncation_levels(curves) if plan.has_intervals else {}
    keys = list(dict.fromkeys(plan.key.values()))
    with figure_style():
        panels = make_panels(
            points,
            windows=windows,
            truncation=list(levels),
            banded=points if plan.has_intervals else [],
            title=title,
            width=width,
            keys=None if keys == [""] else keys,
        )
        for (protocol, key), axis in panels.axes.items():
            _draw_panel(axis, protocol, key, plan)
        handles: list[Artist] = [
            Line2D([], [], label=fold_text(label, int(13 * WIDTHS[width])), **vars(style))
            for label, style in plan.legend.items()
        ]
        handles += meanings
        if levels and BASELINE in {protocol for protocol, _ in panels.axes}:
            handles.append(truncation_handle())
        if len(windows) > 1:
            handles.append(window_handle())
        finish_panels(panels, handles)
    return panels.figure


def draw_run(
    rows: Sequence[Row], checkpoint: CheckpointSummary, *, title: str, width: FigureWidth = "page"
) -> Figure:
    """Draw the curves of one checkpoint; curves with a fixed factor are dashed."""
    comparison = compare_checkpoints(rows, [checkpoint], figure_width=width)
    return draw_comparison(comparison, title=title)


def _plan(comparison: Comparison, curves: Sequence[Curve]) -> Plan:
    groups, by_name = comparison.groups, assign_curve_styles(curves)
    if comparison.only:
        for curve in curves:  # a factor above 1 that is the same at every length
            if curve.name != "trained" and not curve.auto and (curve.points[-1].factor or 1) > 1:
                by_name[curve.name] = replace(by_name[curve.name], linestyle="--")
    key = shared_key(groups)
    names = {group.label: describe_group(group, key=key) for group in groups}
    titles_of = {group.label: describe_group(group, "\n", key=key) for group in groups}
    by_group = assign_group_styles(comparison)
    if len(curves) <= MOST_CURVES:
        if by_group:
            own = {curve: by_group[curve.group.label] for curve in curves}
            legend = {names[label]: style for label, style in by_group.items()}
            return Plan(dict.fromkeys(curves, ""), own, legend, colours=by_group)
        own = {curve: by_name[curve.name] for curve in curves}
        legend = dict(by_name)
        if len(groups) > 1 or groups[0].marked:
            own = {
                curve: replace(style, linestyle=dash_of(curve.group, groups).matplotlib)
                for curve, style in own.items()
            }
            legend |= {
                names[g.label]: LineStyle("0.3", "", dash_of(g, groups).matplotlib) for g in groups
            }
        return Plan(dict.fromkeys(curves, ""), own, legend)
    by_label = distinct_styles([group.label for group in groups])
    facets = [
        Plan(
            {curve: curve.name for curve in curves},
            {curve: by_label[curve.group.label] for curve in curves},
            {names[label]: style for label, style in by_label.items()},
            colours=by_label,
        ),
        Plan(
            {curve: titles_of[curve.group.label] for curve in curves},
            {curve: by_name[curve.name] for curve in curves},
            by_name,
        ),
    ]
    for plan in facets:
        if plan.compares:
            return plan
    if by_group:
        titles = {curve: titles_of[curve.group.label] for curve in curves}
    elif len(groups) == 1:
        titles = {curve: curve.name for curve in curves}
    else:
        titles = {curve: curve.label for curve in curves}
    own = {c: by_group[c.group.label] if by_group else by_name[c.name] for c in curves}
    baselines = {curve.group: curve for curve in curves if curve.name == comparison.baseline}
    reference = {c: baselines[c.group] for c in curves if baselines.get(c.group, c) is not c}
    return Plan(titles, own, {}, apart=True, reference=reference)


def shared_key(groups: Sequence[Group]) -> str | None:
    """Return the key in which all groups differ, if there is one and no other."""
    keys = {key for group in groups for key in group.settings}
    return keys.pop() if len(keys) == 1 and all(group.settings for group in groups) else None


def describe_group(group: Group, separator: str = "", *, key: str | None = None) -> str:
    """Return a group's label with what distinguishes it: "wide (rope.base 500000)".

    separator: written between the two, in place of parentheses. key: the key in which all groups
    differ, which the figure's title names, so that here only its value is written.
    """
    if not group.settings:
        return group.label
    text = describe_settings(group.settings, briefly=True) if key is None else group.settings[key]
    if separator:
        return f"{group.label}{separator}{text}"
    if group.label.endswith(" seeds)"):
        return f"{group.label[:-1]}; {text})"
    return f"{group.label} ({text})"


def _draw_panel(axis: Axes, protocol: str, key: str, plan: Plan) -> None:
    def points_of(curve: Curve) -> list[Point]:
        return [point for point in curve.points if point.protocol == protocol]

    shown = [curve for curve, title in plan.key.items() if title == key]
    if plan.apart:
        references = [plan.reference[curve] for curve in shown if curve in plan.reference]
        others = {c: style for c, style in plan.styles.items() if c not in (*references, *shown)}
        draw_background(axis, ((style, points_of(curve)) for curve, style in others.items()))
        for curve in references:
            draw_line(axis, curve.label, REFERENCE, points_of(curve), band_opacity=0.0)
    most = max(Counter(plan.key.values()).values())
    opacity = BAND_OPACITY * min(1, _MOST_FULL_BANDS / most) * plan.has_intervals
    for curve in shown:
        own = points_of(curve)
        draw_line(axis, curve.label, plan.styles[curve], own, band_opacity=opacity)
        if plan.has_intervals:
            _draw_seeds(axis, plan.styles[curve], own)
    levels = truncation_levels(shown) if protocol == BASELINE and plan.has_intervals else {}
    for nll, labels in levels.items():
        # of several, each in its group's colour if it has one
        style = plan.colours.get(labels[0]) if len(levels) > 1 and len(labels) == 1 else None
        mark_truncation(axis, nll, None if style is None else style.color)


def _meanings(plan: Plan, curves: Sequence[Curve], comparison: Comparison) -> list[Artist]:
    handles: list[Artist] = []
    if any(len(point.nll_by_seed) > 1 for curve in curves for point in curve.points):
        handles.append(Line2D([], [], color="0.3", linewidth=0.5, label="each seed"))
    if plan.apart:
        whose = " of the same runs" if len(comparison.groups) > 1 else ""
        others = "the other scalings" if comparison.only else "the others"
        dashed = f"{comparison.baseline}{whose}" if plan.reference else None
        return [*apart_handles(others, dashed), *handles]
    if comparison.only:
        return handles
    return [*handles, Patch(color="0.4", alpha=BAND_OPACITY, linewidth=0, label="95% interval")]


def assign_curve_styles(curves: Sequence[Curve]) -> dict[str, LineStyle]:
    """Return a style for each scaling by name, without dashes, which distinguish groups."""
    kinds: dict[str, str] = {}
    for curve in curves:
        kinds.setdefault(curve.name, "trained" if curve.name == "trained" else curve.kind)
    return assign_styles(kinds)


def assign_group_styles(comparison: Comparison) -> dict[str, LineStyle]:
    """Return a style for each group by label, if all have the same single curve; else none."""
    groups = comparison.groups
    if len(groups) < 2 or len({curve.name for curve in comparison.curves}) > 1:
        return {}
    return distinct_styles([group.label for group in groups])


def dash_of(group: Group, groups: Sequence[Group]) -> Dash:
    """Return a group's dash pattern; from the ninth group on, they repeat."""
    return _DASHES[groups.index(group) % len(_DASHES)]


def truncation_levels(curves: Sequence[Curve]) -> dict[float, list[str]]:
    """Return the labels of the groups by what truncation to the window costs them, in nats."""
    levels = {
        curve.group.label: point.nll + point.gain.value
        for curve in curves
        for point in curve.points
        if point.gain is not None and math.isfinite(point.gain.value)
    }
    levels |= {c.group.label: c.truncation for c in curves if c.truncation is not None}
    groups: dict[float, list[str]] = {}
    for label, nll in levels.items():
        groups.setdefault(round(nll, 9), []).append(label)
    return groups


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


def _title(comparison: Comparison, width: FigureWidth) -> str:
    groups, key = comparison.groups, shared_key(comparison.groups)
    by = "" if key is None else f", by {key}"
    title = describe_groups(comparison) + by
    if len(groups) > 1 and "\n" in fold_title(title, WIDTHS[width]):
        title = f"{len(groups)} groups of runs{by}"  # legend, panels or labels name them
    if any(group.marked for group in groups):
        title += f"\n{MARK} CANNOT BE COMPARED with the groups before it; comparison.md says why"
    return title
