"""The figure of a comparison: the mean over seeds with its interval, and each seed as a thin line.

Up to six curves share a panel: colours for scalings, dashes for groups of runs, or colours for
groups that have one and the same curve. More have one panel per scaling or per group, whichever
compares several in most panels and at most six; else each has one, with the others in grey.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from rope_jax.comparison.curves import Comparison, Curve, compare_checkpoints
from rope_jax.comparison.groups import MARK, Group, describe_settings
from rope_jax.config.presentation import FigureWidth
from rope_jax.plots.panels import fold_title
from rope_jax.plots.style import (
    BACKGROUND,
    BAND_OPACITY,
    MOST_CURVES,
    REFERENCE,
    WIDTHS,
    LineStyle,
    assign_styles,
    distinct_styles,
)
from rope_jax.report.curves import Plan, draw_plan
from rope_jax.report.measured import describe_groups, newest_curves
from rope_jax.results.rows import Row
from rope_jax.results.summary import CheckpointSummary

# One dash pattern each, in the notations of matplotlib and plotly.
_DASHES: tuple[tuple[Any, str], ...] = (
    ("-", "solid"),
    ("--", "dash"),
    (":", "dot"),
    ("-.", "dashdot"),
    ((0, (9, 2)), "14px,3px"),
    ((0, (1, 3)), "2px,6px"),
    ((0, (6, 2, 1, 2, 1, 2)), "9px,3px,2px,3px,2px,3px"),
    ((0, (3, 4)), "5px,7px"),
)


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
    styles = {c: by_group[c.group.label] if by_group else by_name[c.name] for c in curves}
    if len(curves) <= MOST_CURVES:
        if by_group:
            legend = {names[label]: style for label, style in by_group.items()}
            return Plan(dict.fromkeys(curves, ""), styles, legend)
        legend = dict(by_name)
        if len(groups) > 1 or groups[0].marked:
            dashes = {group.label: dash_of(group, groups)[0] for group in groups}
            styles = {c: replace(s, linestyle=dashes[c.group.label]) for c, s in styles.items()}
            legend |= {names[label]: LineStyle("0.3", "", dash) for label, dash in dashes.items()}
        return Plan(dict.fromkeys(curves, ""), styles, legend)
    by_label = distinct_styles([group.label for group in groups])
    legend = {names[label]: style for label, style in by_label.items()}
    own = {curve: by_label[curve.group.label] for curve in curves}
    per_scaling = Plan({curve: curve.name for curve in curves}, own, legend)
    own = {curve: by_name[curve.name] for curve in curves}
    per_group = Plan({curve: titles_of[curve.group.label] for curve in curves}, own, by_name)
    for plan in (per_scaling, per_group):
        if plan.compares:
            return plan
    titles = {curve: curve.label for curve in curves}
    if by_group:
        titles = dict(per_group.key)
    elif len(groups) == 1:
        titles = dict(per_scaling.key)
    baselines = {curve.group: curve for curve in curves if curve.name == comparison.baseline}
    reference = {c: baselines[c.group] for c in curves if baselines.get(c.group, c) is not c}
    return Plan(titles, styles, {}, apart=True, reference=reference)


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


def _meanings(plan: Plan, curves: Sequence[Curve], comparison: Comparison) -> list[Artist]:
    handles: list[Artist] = []
    if plan.reference:
        whose = " of the same runs" if len(comparison.groups) > 1 else ""
        label = f"{comparison.baseline}{whose}"
        handles.append(Line2D([], [], label=label, **vars(REFERENCE)))
    if plan.apart:
        others = "the other scalings" if comparison.only else "the others"
        handles.append(Line2D([], [], label=others, color=BACKGROUND, linewidth=0.9))
    if any(len(point.nll_by_seed) > 1 for curve in curves for point in curve.points):
        handles.append(Line2D([], [], color="0.3", linewidth=0.5, label="each seed"))
    if plan.apart or not comparison.only:
        handles.append(Patch(color="0.4", alpha=BAND_OPACITY, linewidth=0, label="95% interval"))
    return handles


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


def dash_of(group: Group, groups: Sequence[Group]) -> tuple[Any, str]:
    """Return a group's dash pattern; from the ninth group on, they repeat."""
    return _DASHES[groups.index(group) % len(_DASHES)]


def _title(comparison: Comparison, width: FigureWidth) -> str:
    groups, key = comparison.groups, shared_key(comparison.groups)
    by = "" if key is None else f", by {key}"
    title = describe_groups(comparison) + by
    if len(groups) > 1 and "\n" in fold_title(title, WIDTHS[width]):
        title = f"{len(groups)} groups of runs{by}"  # legend, panels or labels name them
    if any(group.marked for group in groups):
        title += f"\n{MARK} CANNOT BE COMPARED with the groups before it; comparison.md says why"
    return title
