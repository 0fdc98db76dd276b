"""The figure of a comparison: colour by scaling, dashes by group of runs, a band over seeds."""

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.lines import Line2D

from rope_jax.comparison.curves import Comparison, Curve, Group
from rope_jax.comparison.report import title
from rope_jax.plots import BAND, MARKERS, colours, draw_line, panels, save


class Dash(NamedTuple):
    """A kind of line."""

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


def figure(path: Path, comparison: Comparison) -> None:
    """Of each group's newest checkpoint: the mean over seeds, and each seed as a thin line."""
    curves = [curve for curve in comparison.curves if curve.is_newest]
    points = [point for curve in curves for point in curve.points]
    groups, styles = comparison.groups, styles_of(curves)
    drawn, axes = panels(
        points,
        windows=sorted({curve.window for curve in curves}),
        truncation=truncation(curves),
        lines_of_legend=len(styles) + len(groups) + 4,
    )
    band = BAND * min(1, 6 / len(curves))
    for protocol, axis in axes.items():
        for curve in curves:
            own = [point for point in curve.points if point.protocol == protocol]
            style = styles[curve.name] | {"linestyle": dash(curve.group, groups).matplotlib}
            draw_line(axis, curve.label, style, own, band=band)
            seeds = len(own[0].of_seeds) if own else 0
            for seed in range(seeds if seeds > 1 else 0):
                x = [point.last_position for point in own]
                y = [point.of_seeds[seed] for point in own]
                with np.errstate(over="ignore"):
                    axis.plot(x, np.exp(y), lw=0.5, alpha=0.6, **(style | {"marker": ""}))
    legend: list[Line2D] = [Line2D([], [], label=name, **style) for name, style in styles.items()]
    if len(groups) > 1 or groups[0].marked:
        legend += [
            Line2D([], [], color="0.3", linestyle=dash(group, groups).matplotlib, label=group.label)
            for group in groups
        ]
    if any(len(point.of_seeds) > 1 for point in points):
        legend.append(Line2D([], [], color="0.3", lw=0.5, label="each seed"))
    legend.append(
        Line2D([], [], lw=7, color="0.85", label="95% interval over\ndocuments and seeds")
    )
    drawn.legend(handles=legend, loc="outside right center", frameon=False, fontsize=9)
    drawn.suptitle(_heading(comparison), fontsize=11)
    save(drawn, path)


def _heading(comparison: Comparison) -> str:
    """What is compared; a mark where something cannot be."""
    about = textwrap.fill(title(comparison), 100)
    if any(group.marked for group in comparison.groups):
        about += "\n† NOT COMPARABLE with what stands before it: see the table's notes"
    return about


def styles_of(curves: Sequence[Curve]) -> dict[str, dict[str, Any]]:
    """By scaling's name: a colour by type, a marker for each of one colour."""
    kinds: dict[str, str] = {}
    for curve in curves:
        kinds.setdefault(curve.name, "trained" if curve.name == "trained" else curve.scaling)
    by_kind = colours(kinds.values())
    seen: dict[str, int] = {}
    styles = {}
    for name, kind in kinds.items():
        nth = seen[by_kind[kind]] = seen.get(by_kind[kind], -1) + 1
        styles[name] = {"color": by_kind[kind], "marker": MARKERS[nth % len(MARKERS)]}
    return styles


def dash(group: Group, groups: Sequence[Group]) -> Dash:
    """A group's own; from the ninth on they repeat."""
    return _DASHES[groups.index(group) % len(_DASHES)]


def truncation(curves: Sequence[Curve]) -> list[float]:
    """NLL of `trained` at the window of each group that measured it."""
    found = {
        curve.group.label: point.nll + point.gain.value
        for curve in curves
        for point in curve.points
        if point.gain is not None and math.isfinite(point.gain.value)
    }
    return list(dict.fromkeys(round(nll, 9) for nll in found.values()))
