"""The interactive page of a comparison: one HTML file that includes its data and scripts."""

import html
import json
from importlib import resources
from typing import Any

from plotly.offline import get_plotlyjs

from rope_jax.comparison.curves import Comparison, Curve
from rope_jax.comparison.groups import Group, describe_settings
from rope_jax.errors import printable
from rope_jax.protocols import BASELINE, PROTOCOLS
from rope_jax.report.figure import assign_curve_styles, assign_group_styles, dash_of
from rope_jax.report.measured import (
    caption,
    describe_groups,
    describe_sources,
    pairing_text,
    unit_kinds,
    units_text,
    usable_text,
)
from rope_jax.report.tasks import task_maps
from rope_jax.runs.logs import finite

# With more curves than this, bands would hide everything else.
MOST_BANDS = 6
_SYMBOLS = {
    **{"o": "circle", "s": "square", "D": "diamond", "P": "cross"},
    **{"^": "triangle-up", "v": "triangle-down", "<": "triangle-left", ">": "triangle-right"},
}

# What stands for each colour of a curve on the dark page. Made lighter one by one, they would fall
# together: here, any two are at least 30 apart in CIELAB, and all have a contrast of 4 to the page.
DARK_COLOURS = {
    "#000000": "#E6EBF0",
    "#888888": "#878787",
    "#D55E00": "#D75F00",
    "#0072B2": "#237DBE",
    "#009E73": "#009B6E",
    "#E69F00": "#E6A000",
    "#CC79A7": "#D78CB4",
    "#56B4E9": "#64C8FA",
    "#882255": "#CD4673",
    "#332288": "#8264D7",
    "#999933": "#9B9B37",
    "#44AA99": "#64B9B4",
    "#661100": "#BE5A41",
    "#DDCC77": "#F5E191",
    "#AA4499": "#B950A5",
}


def format_page(comparison: Comparison) -> str:
    """Return a self-contained HTML page, which includes plotly.js and the data."""
    template = resources.files("rope_jax.report").joinpath("page.html").read_text("utf-8")
    data = json.dumps(finite(_page_data(comparison)), allow_nan=False).replace("<", "\\u003c")
    title = html.escape(printable(describe_groups(comparison)))
    before, _, after = template.partition("PLOTLY")
    return before.replace("TITLE", title, 1) + get_plotlyjs() + after.replace("DATA", data, 1)


def _page_data(comparison: Comparison) -> dict[str, Any]:
    groups, curves = comparison.groups, comparison.curves
    points = [point for curve in curves for point in curve.points]
    return {
        "title": printable(describe_groups(comparison)),
        "notes": [*map(printable, comparison.notes)],
        "remarks": [*map(printable, comparison.remarks)],
        "tolerance": comparison.tolerance,
        "show": comparison.show,
        "baseline": comparison.baseline,
        "most_bands": MOST_BANDS,
        "units": " and ".join(f"{kind}s" for kind in unit_kinds(points)),
        "paired": pairing_text(points),
        "captions": {p.protocol: caption(p.protocol, p.stride) for p in points},
        "axes": {p.protocol: PROTOCOLS[p.protocol].axis_label for p in points},
        "comparable": BASELINE,
        "groups": [_group_data(group, comparison) for group in groups],
        "names": [
            {"name": name, "color": style.color, "symbol": _SYMBOLS[style.marker]}
            for name, style in assign_curve_styles(curves).items()
        ],
        "dark": DARK_COLOURS,
        "sources": [[*map(printable, row)] for row in describe_sources(comparison)],
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
        "dash": "solid" if style else dash_of(group, comparison.groups)[1],
        "color": style.color if style else None,
        "symbol": _SYMBOLS[style.marker] if style else None,
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
            "resampled": units_text(point.units, point.documents),
        }
        for point in curve.points
    ]
    return {
        "group": group,
        "name": curve.name,
        "step": curve.step,
        "newest": curve.is_newest,
        "window": curve.window,
        "usable": usable_text(usable),
        "usable_at": order,
        "points": points,
    }
