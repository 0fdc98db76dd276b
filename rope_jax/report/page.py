"""The interactive page of a comparison: one HTML file that includes its data and scripts."""

import html
import json
from importlib import resources
from typing import Any

from rope_jax.comparison.curves import Comparison, Curve
from rope_jax.comparison.groups import Group, describe_settings
from rope_jax.errors import printable
from rope_jax.extras import needs_extra
from rope_jax.protocols import BASELINE, PROTOCOLS
from rope_jax.report import measured
from rope_jax.report.figure import assign_curve_styles, assign_group_styles
from rope_jax.report.tasks import task_maps
from rope_jax.runs.logs import finite

PAGE = "comparison.html"


def format_page(comparison: Comparison) -> str:
    """Return a self-contained HTML page, which includes plotly.js and the data.

    UserError: the package with plotly.js is not installed.
    """
    with needs_extra("page", PAGE):
        from plotly.offline import get_plotlyjs

    template = resources.files("rope_jax.report").joinpath("page.html").read_text("utf-8")
    data = json.dumps(finite(_page_data(comparison)), allow_nan=False).replace("<", "\\u003c")
    title = html.escape(printable(measured.describe_groups(comparison)))
    before, _, after = template.partition("PLOTLY")
    return before.replace("TITLE", title, 1) + get_plotlyjs() + after.replace("DATA", data, 1)


def _page_data(comparison: Comparison) -> dict[str, Any]:
    groups, curves = comparison.groups, comparison.curves
    points = [point for curve in curves for point in curve.points]
    return {
        "title": printable(measured.describe_groups(comparison)),
        "notes": [*map(printable, comparison.notes)],
        "remarks": [*map(printable, comparison.remarks)],
        "tolerance": comparison.tolerance,
        "show": comparison.how.show,
        "baseline": comparison.baseline,
        "units": " and ".join(f"{kind}s" for kind in measured.unit_kinds(points)),
        "paired": measured.pairing_text(points),
        "captions": {p.protocol: measured.caption(p.protocol, p.stride) for p in points},
        "axes": {p.protocol: PROTOCOLS[p.protocol].axis_label for p in points},
        "comparable": BASELINE,
        "groups": [_group_data(group, comparison) for group in groups],
        "names": [
            {"name": name, **vars(style)} for name, style in assign_curve_styles(comparison).items()
        ],
        "sources": [[*map(printable, row)] for row in measured.describe_sources(comparison)],
        "tasks": task_maps(comparison.sweeps),
        "curves": [_curve_data(curve, groups.index(curve.group)) for curve in curves],
    }


def _group_data(group: Group, comparison: Comparison) -> dict[str, Any]:
    style = assign_group_styles(comparison).get(group.label)
    return {
        "label": printable(group.label),
        "marked": group.marked,
        "differs": describe_settings(group.settings, briefly=True),
        "settings": describe_settings(group.settings, briefly=False),
        "color": style.color if style else None,
        "marker": style.marker if style else None,
    }


def _curve_data(curve: Curve, group: int) -> dict[str, Any]:
    usable = curve.usable
    order = None
    if usable is not None and (usable.length is not None or usable.is_known):
        order = (usable.length or 0) + 0.5 * usable.is_last  # "at least 1,024" is more than 1,024
    points = [
        {
            **vars(point),
            "is_below_truncation": point.is_below_truncation,
            "resampled": measured.units_text(point.units, point.documents),
        }
        for point in curve.points
    ]
    return {
        "group": group,
        "name": curve.name,
        "step": curve.step,
        "newest": curve.is_newest,
        "window": curve.window,
        "usable": measured.usable_text(usable),
        "usable_at": order,
        "points": points,
    }
