"""The interactive page of a comparison: one file that holds its data and its script."""

import html
import json
import math
from importlib import resources
from typing import Any

from plotly.offline import get_plotlyjs

from rope_jax.comparison.curves import Comparison, Curve, Point
from rope_jax.comparison.figure import dash, styles_of
from rope_jax.comparison.report import sources, title, usable
from rope_jax.evaluation.statistics import Estimate
from rope_jax.sweeps.terminal import caption

_SYMBOLS = {
    "o": "circle",
    "s": "square",
    "^": "triangle-up",
    "D": "diamond",
    "v": "triangle-down",
    "<": "triangle-left",
    ">": "triangle-right",
    "P": "cross",
}


def page(comparison: Comparison) -> str:
    """HTML that needs nothing else: plotly.js and the figures are in it."""
    template = resources.files("rope_jax.comparison").joinpath("page.html").read_text("utf-8")
    data = json.dumps(_data(comparison), allow_nan=False).replace("<", "\\u003c")
    name = html.escape(title(comparison))
    before, _, after = template.partition("PLOTLY")
    return before.replace("TITLE", name, 1) + get_plotlyjs() + after.replace("DATA", data, 1)


def _data(comparison: Comparison) -> dict[str, Any]:
    groups, curves = comparison.groups, comparison.curves
    protocols = dict.fromkeys(point.protocol for curve in curves for point in curve.points)
    strides = {r.protocol: r.stride for group in groups for s in group.sweeps for r in s.rows}
    return {
        "title": title(comparison),
        "notes": comparison.notes,
        "tolerance": comparison.tolerance,
        "captions": {p: caption(p, strides[p]) for p in protocols},
        "groups": [{"label": g.label, "dash": dash(g, groups).plotly} for g in groups],
        "names": {
            name: {"color": style["color"], "symbol": _SYMBOLS[style["marker"]]}
            for name, style in styles_of(curves).items()
        },
        "sources": sources(comparison),
        "curves": [_curve(curve, groups.index(curve.group)) for curve in curves],
    }


def _curve(curve: Curve, group: int) -> dict[str, Any]:
    return {
        "group": group,
        "name": curve.name,
        "step": curve.step,
        "newest": curve.is_newest,
        "window": curve.window,
        "usable": usable(curve),
        "points": [_point(point) for point in curve.points],
    }


def _point(point: Point) -> dict[str, Any]:
    return {
        "protocol": point.protocol,
        "length": point.length,
        "first": point.first_position,
        "last": point.last_position,
        "nll": _number(point.nll),
        "interval": [_number(point.ci_low), _number(point.ci_high)],
        "bits_per_nat": point.bits_per_nat,
        "tokens": point.tokens,
        "documents": point.documents,
        "seeds": [_number(nll) for nll in point.of_seeds],
        "difference": _estimate(point.difference),
        "gain": _estimate(point.gain),
        "from_first": _estimate(point.from_first),
    }


def _estimate(estimate: Estimate | None) -> list[Any] | None:
    return None if estimate is None else [_number(value) for value in estimate]


def _number(value: float) -> Any:
    """JSON has neither infinities nor nan: the page makes them of this."""
    if math.isnan(value):
        return None
    return value if math.isfinite(value) else {"∞": math.copysign(1, value)}
