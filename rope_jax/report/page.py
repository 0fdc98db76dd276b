"""The interactive page of a comparison: one HTML file with a chart per protocol, and the tables.

Plotly's own controls switch quantities, axes and intervals, zoom, and hide curves.
"""

import base64
import contextlib
import html
import math
from pathlib import Path
from typing import Any

import numpy as np

from rope_jax.comparison.curves import Comparison, Point
from rope_jax.comparison.groups import Sweep
from rope_jax.errors import printable
from rope_jax.extras import needs_extra
from rope_jax.plots import style
from rope_jax.protocols import BASELINE, PROTOCOLS
from rope_jax.report import measured
from rope_jax.report.figure import curve_styles, vertical_limits
from rope_jax.report.table import format_html
from rope_jax.report.tasks import effective_tables
from rope_jax.results.statistics import Estimate, perplexity

PAGE = "comparison.html"
# The browser refuses whatever the page would fetch, and it fetches nothing.
_PAGE = Path(__file__).with_name("page.html").read_text("utf-8")
_HELP = (
    "Hover over a point for its value. The first menu of a chart chooses the quantity; a click on "
    "a name in the legend hides its curve, a double click all others; drag to zoom, and "
    "double-click to zoom out. comparison.csv beside this page has every number."
)
_DASHES = {"-": "solid", "--": "dash", ":": "dot", "-.": "dashdot"}
_SYMBOLS = {
    **{"o": "circle", "s": "square", "^": "triangle-up", "D": "diamond", "v": "triangle-down"},
    **{"<": "triangle-left", ">": "triangle-right", "P": "cross"},
}
_DIFFERENCES = ("above_truncation", "difference", "from_first", "above_own")
_UNKNOWN = Estimate(math.nan, math.nan, math.nan)  # a gap in the curve
_CONFIG = {
    "displaylogo": False,
    "responsive": True,
    "modeBarButtons": [["toImage"], ["zoom2d", "pan2d", "resetScale2d"]],
    "toImageButtonOptions": {"format": "svg", "filename": "comparison"},
}


def format_page(comparison: Comparison) -> str:
    """Return a self-contained HTML page, which includes plotly.js.

    UserError: plotly is not installed.
    """
    with needs_extra("page", PAGE):
        import plotly.io  # of the extra `page`

    parts = [f'<p class="note">{_text(note)}</p>' for note in comparison.notes]
    parts.append(f'<p class="soft">{_HELP}</p>')
    for number, protocol in enumerate(comparison.protocols):
        how = {"config": _CONFIG, "full_html": False, "include_plotlyjs": number == 0}
        parts.append(f"<h2>{_text(protocol)}</h2>")
        chart = _chart(comparison, protocol)
        parts.append(plotly.io.to_html(chart, div_id=f"chart-{number}", **how))
        parts.append(format_html(measured.measured_table(comparison, protocol)))
        parts += map(format_html, measured.difference_tables(comparison, protocol))
    for sweep in comparison.sweeps:
        parts += [_task_figure(sweep, task) for task in sweep.effective]
    parts += map(format_html, effective_tables(comparison.sweeps))
    parts.append("<h2>What was compared</h2>")
    parts.append(format_html(measured.sources_table(comparison)))
    title = _text(measured.describe_groups(comparison))
    return _PAGE.format(title=title, body="\n".join(parts))


def _text(text: str) -> str:
    """Return text without markup; plotly, too, takes some tags for markup."""
    return html.escape(printable(text))


def _task_figure(sweep: Sweep, task: str) -> str:
    """Return the figure of a task in a sweep's folder, or nothing if it is no longer there."""
    with contextlib.suppress(OSError):
        image = base64.b64encode((sweep.folder / f"{task}.png").read_bytes()).decode()
        title = _text(f"{sweep.label}: {task}")
        return f'<h2>{title}</h2><img alt="{title}" src="data:image/png;base64,{image}">'
    return ""


def _quantities(comparison: Comparison) -> dict[str, str]:
    """Return the quantities that a chart can show, in words; the one to show comes first."""
    several = len(comparison.groups) > 1
    names: dict[str, str] = {
        **measured.QUANTITIES,
        "above_truncation": "nats above truncation" + several * " of the first group",
        "difference": f"difference from {comparison.baseline} (nats)",
    }
    if several:
        names["from_first"] = "difference from the first group (nats)"
        names["above_own"] = "nats above truncation of the same runs"
    return {name: names[name] for name in sorted(names, key=lambda n: n != comparison.how.show)}


def _value(point: Point, quantity: str) -> Estimate:
    if quantity in _DIFFERENCES:
        return getattr(point, quantity) or _UNKNOWN
    if quantity == "bits_per_byte":
        return measured.loss(point, "bits_per_byte") or _UNKNOWN
    nats = Estimate(point.nll, point.ci_low, point.ci_high)
    return nats.mapped(perplexity) if quantity == "perplexity" else nats


def _chart(comparison: Comparison, protocol: str) -> dict[str, Any]:
    """Return a chart of the newest checkpoints, with intervals as error bars.

    Its menus choose the quantity, whether intervals are shown, and the scales of both axes.
    """
    plotted = measured.plotted_by(protocol, comparison.newest)
    lengths = sorted({p.last_position for points in plotted.values() for p in points.values()})
    truncation = measured.truncation_levels(plotted) if protocol == BASELINE else []
    quantities: list[dict[str, Any]] = []
    for quantity, words in _quantities(comparison).items():
        curves = [[_value(p, quantity) for p in points.values()] for points in plotted.values()]
        known = [value for values in curves for value in values if value is not _UNKNOWN]
        if not known:
            continue
        levels: list[float] = []
        if quantity in ("perplexity", "nats"):
            levels = [perplexity(n) if quantity == "perplexity" else n for n in truncation]
        is_log = quantity not in _DIFFERENCES
        limits = vertical_limits(np.array(known).T, levels, is_above=not is_log)
        data = {
            "y": [[v.value for v in values] for values in curves],
            "error_y.array": [[v.high - v.value for v in values] for values in curves],
            "error_y.arrayminus": [[v.value - v.low for v in values] for values in curves],
        }
        if truncation:
            data["y"].append([y for level in levels for y in (level, level, math.nan)])
        axis = {
            "yaxis.title.text": _text(words),
            "yaxis.type": "log" if is_log else "linear",
            "yaxis.range": np.log10(limits).tolist() if is_log else list(limits),
        }
        quantities.append({"label": _text(words), "method": "update", "args": [data, axis]})
    first, axis = quantities[0]["args"]
    traces: list[dict[str, Any]] = []
    for number, (curve, look) in enumerate(curve_styles(comparison, list(plotted)).items()):
        dash = look.linestyle
        if isinstance(dash, tuple):
            dash = ",".join(f"{2 * length}px" for length in dash[1])
        traces.append(
            {
                "name": _text(curve.name if len(comparison.groups) == 1 else curve.label),
                "x": [point.last_position for point in plotted[curve].values()],
                **{"y": first["y"][number], "yhoverformat": ",.4~g"},
                "error_y": {
                    "array": first["error_y.array"][number],
                    "arrayminus": first["error_y.arrayminus"][number],
                    **{"type": "data", "symmetric": False, "thickness": 1, "width": 3},
                    "visible": len(plotted) <= style.MAX_CURVES,
                },
                "line": {"color": look.color, "dash": _DASHES.get(dash, dash), "width": 2},
                "marker": {"symbol": _SYMBOLS[look.marker], "size": 7},
            }
        )
    if truncation:
        traces.append(
            {
                "name": "truncation to the window",
                "x": [lengths[0], lengths[-1], None] * len(truncation),
                "y": first["y"][-1],
                "line": {"color": "#666666", "dash": "dot", "width": 1.2},
                **{"mode": "lines", "hoverinfo": "skip"},
            }
        )

    def scales(axis: str, what: str) -> list[dict[str, Any]]:
        changes = [(s, {f"{axis}.type": s, f"{axis}.autorange": True}) for s in ("log", "linear")]
        return [{"label": f"{s} {what}", "method": "relayout", "args": [c]} for s, c in changes]

    intervals = [
        {"label": label, "method": "restyle", "args": [{"error_y.visible": is_shown}]}
        for label, is_shown in (("no intervals", False), ("intervals", True))
    ]
    menus = [quantities, intervals, scales("xaxis", "lengths"), scales("yaxis", "values")]
    layout = {
        **{"template": "plotly_white", "height": 620, "margin": {"t": 70, "b": 60}},
        "xaxis": {
            "title": {"text": PROTOCOLS[protocol].axis_label},
            "type": "log",
            **{"tickvals": lengths, "ticktext": [f"{n:,}" for n in lengths]},
        },
        "yaxis": {
            "title": {"text": axis["yaxis.title.text"]},
            **{"type": axis["yaxis.type"], "range": axis["yaxis.range"]},
            "minorloglabels": "complete",
        },
        "hoverlabel": {"namelength": -1},
        "updatemenus": [
            {
                "buttons": menu,
                "active": int(menu is intervals and len(plotted) <= style.MAX_CURVES),
                **{"x": left, "xanchor": "left", "y": 1.02, "yanchor": "bottom"},
            }
            for menu, left in zip(menus, (0.0, 0.45, 0.62, 0.79), strict=True)
        ],
        "shapes": [
            {
                **{"type": "line", "x0": window, "x1": window, "yref": "paper", "y0": 0, "y1": 1},
                **{"layer": "below", "line": {"color": "#999999", "width": 1.2}},
                "label": {
                    **{"text": f"window {window:,}", "textposition": "end", "textangle": 0},
                    **{"xanchor": "left", "yanchor": "top"},
                },
            }
            for window in sorted({curve.window for curve in plotted})
        ],
    }
    return {"data": traces, "layout": layout}
