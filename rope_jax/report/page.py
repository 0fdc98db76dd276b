"""The interactive page of a comparison: one HTML file with its figures, made by plotly, and tables.

Plotly's own controls switch quantities, axes and intervals, zoom, and hide curves.
"""

import html
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rope_jax.comparison.curves import Comparison, Curve, Point
from rope_jax.comparison.groups import Sweep
from rope_jax.errors import printable
from rope_jax.extras import needs_extra
from rope_jax.plots import style
from rope_jax.plots.style import LineStyle
from rope_jax.protocols import BASELINE, PROTOCOLS
from rope_jax.report import measured
from rope_jax.report.figure import curve_styles, vertical_limits
from rope_jax.report.table import Line, Table, format_html
from rope_jax.report.tasks import effective_tables, effective_text, heat_panels
from rope_jax.results.statistics import Estimate, perplexity
from rope_jax.results.tasks import TaskRow

PAGE = "comparison.html"
# The browser refuses whatever the page would fetch, and it fetches nothing.
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; \
script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:">
<title>{title}</title>
<style>
  body {{ margin: 0 auto; max-width: 1320px; padding: 12px 24px; font: 15px/1.5 sans-serif; }}
  table {{ border-collapse: collapse; font-size: 13.5px; }}
  th, td {{ padding: 3px 14px 3px 0; text-align: right; border-bottom: 1px solid #d9dee4; }}
  th.text, td.text {{ text-align: left; }}
  .note {{ border-left: 4px solid #d9b44a; background: #fdf8e8; padding: 5px 10px; }}
  small, .soft {{ color: #5b6573; }}
</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""
_HELP = (
    "Hover over a point for its values. The menu chooses the quantity; a click on a name in the "
    "legend hides its curve, a double click all others; drag to zoom, and double-click to zoom "
    "out. comparison.csv beside this page has every number."
)
_DASHES = {"-": "solid", "--": "dash", ":": "dot", "-.": "dashdot"}
_SYMBOLS = {
    **{"o": "circle", "s": "square", "^": "triangle-up", "D": "diamond", "v": "triangle-down"},
    **{"<": "triangle-left", ">": "triangle-right", "P": "cross"},
}
_DIFFERENCES = ("above_truncation", "difference", "from_first", "above_own")
_CONFIG = {
    "displaylogo": False,
    "responsive": True,
    "modeBarButtons": [["toImage"], ["zoom2d", "pan2d", "resetScale2d"]],
    "toImageButtonOptions": {"format": "svg", "filename": "comparison"},
}
_Trace = dict[str, Any]


class View(NamedTuple):
    """What the chart can show: a quantity by a protocol, of the newest checkpoints or of all."""

    protocol: str
    quantity: str
    name: str
    """The quantity in words."""
    every_step: bool

    @property
    def title(self) -> str:
        text = f"{self.name}; {self.protocol}"
        return _text(f"{text}, every checkpoint" if self.every_step else text)


def format_page(comparison: Comparison) -> str:
    """Return a self-contained HTML page, which includes plotly.js.

    UserError: plotly is not installed.
    """
    with needs_extra("page", PAGE):
        import plotly.io  # of the extra `page`

    charts = [_chart(comparison)]
    for sweep in comparison.sweeps:
        step = max(sweep.windows)
        exact = [row for row in sweep.tasks if row.step == step and row.metric == "exact"]
        for task in dict.fromkeys(row.task for row in exact):
            charts.append(_heat_map(sweep, [row for row in exact if row.task == task]))
    parts = [f'<p class="note">{_text(note)}</p>' for note in comparison.notes]
    parts.append(f'<p class="soft">{_HELP}</p>')
    for number, chart in enumerate(charts):
        name = f"chart-{number}"
        how = {"config": _CONFIG, "full_html": False, "include_plotlyjs": number == 0}
        parts.append(plotly.io.to_html(chart, div_id=name, **how))
    parts.append("<h2>What was compared</h2>")
    heading, *sources = measured.describe_sources(comparison)
    lines = [Line(tuple(row), []) for row in sources]
    parts.append(format_html(Table("", "", tuple(heading), (), lines)))
    parts += [f'<p class="soft">{_text(remark)}.</p>' for remark in comparison.remarks]
    for protocol in comparison.protocols:
        parts.append(f"<h2>{_text(protocol)}</h2>")
        parts.append(format_html(measured.measured_table(comparison, protocol)))
        parts += map(format_html, measured.difference_tables(comparison, protocol))
    parts += map(format_html, effective_tables(comparison.sweeps))
    title = _text(measured.describe_groups(comparison))
    return _PAGE.format(title=title, body="\n".join(parts))


def _text(text: str) -> str:
    """Return text without markup; plotly, too, takes some tags for markup."""
    return html.escape(printable(text))


def _quantities(comparison: Comparison) -> dict[str, str]:
    """Return the quantities that any point has, in words; the one to show comes first."""
    several = len(comparison.groups) > 1
    names: dict[str, str] = {
        **dict(measured.QUANTITIES.items()),
        "above_truncation": "nats above truncation" + several * " of the first group",
        "difference": f"difference from {comparison.baseline} (nats)",
        "from_first": "difference from the first group (nats)",
        "above_own": "nats above truncation of the same runs",
    }
    points = [point for curve in comparison.curves for point in curve.points]
    known = {name for name in names if any(_value(point, name) for point in points)}
    if not several:
        known.discard("above_own")
    first = comparison.how.show
    return {name: names[name] for name in sorted(names, key=lambda n: n != first) if name in known}


def _value(point: Point, quantity: str) -> Estimate | None:
    if quantity in _DIFFERENCES:
        found: Estimate | None = getattr(point, quantity)
        return found
    if quantity == "bits_per_byte":
        return measured.loss(point, "bits_per_byte")
    nats = Estimate(point.nll, point.ci_low, point.ci_high)
    return nats.mapped(perplexity) if quantity == "perplexity" else nats


def _chart(comparison: Comparison) -> dict[str, Any]:
    """Return one chart with the curves of all views, of which a menu shows one."""
    quantities = _quantities(comparison)
    steps = [False, True] if len(comparison.newest) < len(comparison.curves) else [False]
    by_view: dict[View, tuple[list[_Trace], dict[str, Any]]] = {}
    for every_step, protocol in itertools.product(steps, comparison.protocols):
        for quantity, name in quantities.items():
            view = View(protocol, quantity, name, every_step)
            traces, axes = _view(comparison, view, quantities)
            if traces:
                by_view[view] = traces, axes
    start = next(iter(by_view))
    owners = [view for view, (traces, _) in by_view.items() for _ in traces]
    traces = [trace for traces, _ in by_view.values() for trace in traces]
    bands = [number for number, trace in enumerate(traces) if "fill" in trace]
    has_bands = len(comparison.newest) <= style.MAX_CURVES
    for number, (view, trace) in enumerate(zip(owners, traces, strict=True)):
        trace["visible"] = view == start
        if number in bands:
            trace["opacity"] = int(has_bands)

    def scales(axis: str, what: str) -> list[dict[str, Any]]:
        changes = [(s, {f"{axis}.type": s, f"{axis}.autorange": True}) for s in ("log", "linear")]
        return [{"label": f"{s} {what}", "method": "relayout", "args": [c]} for s, c in changes]

    menus = [
        [
            {
                "label": view.title,
                "method": "update",
                "args": [{"visible": [owner == view for owner in owners]}, axes],
            }
            for view, (_, axes) in by_view.items()
        ],
        [
            {"label": label, "method": "restyle", "args": [{"opacity": opacity}, bands]}
            for label, opacity in (("no intervals", 0), ("intervals", 1))
        ],
        scales("xaxis", "lengths"),
        scales("yaxis", "values"),
    ]
    axes = by_view[start][1]
    lengths = sorted({p.last_position for curve in comparison.curves for p in curve.points})
    layout = {
        "template": "plotly_white",
        "height": 620,
        "margin": {"t": 70, "b": 60},
        "xaxis": {
            "title": {"text": axes["xaxis.title.text"]},
            "type": "log",
            **{"tickvals": lengths, "ticktext": [f"{n:,}" for n in lengths]},
        },
        "yaxis": {
            "title": {"text": axes["yaxis.title.text"]},
            **{"type": axes["yaxis.type"], "range": axes["yaxis.range"]},
            "minorloglabels": "complete",
        },
        "updatemenus": [
            {
                "buttons": menu,
                "active": int(menu is menus[1] and has_bands),
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
            for window in sorted({curve.window for curve in comparison.curves})
        ],
    }
    return {"data": traces, "layout": layout}


def _view(
    comparison: Comparison, view: View, quantities: Mapping[str, str]
) -> tuple[list[_Trace], dict[str, Any]]:
    """Return the curves of a view, none if no point has its quantity, and its axes."""
    curves = comparison.curves if view.every_step else comparison.newest
    styles = curve_styles(comparison, curves)
    traces: list[_Trace] = []
    values: list[Estimate] = []
    for curve in curves:
        points = [point for point in curve.points if point.protocol == view.protocol]
        known = [(p, v) for p in points if (v := _value(p, view.quantity)) is not None]
        values += [value for _, value in known]
        name = curve.name if len(comparison.groups) == 1 else curve.label
        if known:
            texts = [_hover(name, point, quantities) for point, _ in known]
            traces += _traces(curve, name, known, styles[curve], texts, view)
    if not traces:
        return [], {}
    levels = list(measured.truncation_levels(curves)) if view.protocol == BASELINE else []
    if view.quantity == "perplexity":
        levels = [perplexity(nll) for nll in levels]
    elif view.quantity != "nats":
        levels = []
    if levels:
        lengths = [point.last_position for curve in curves for point in curve.points]
        traces.append(
            {
                "name": "truncation to the window",
                "x": [min(lengths), max(lengths), None] * len(levels),
                "y": [y for level in levels for y in (level, level, None)],
                "line": {"color": "#666666", "dash": "dot", "width": 1.2},
                **{"mode": "lines", "hoverinfo": "skip"},
            }
        )
    is_log = view.quantity not in _DIFFERENCES
    limits = vertical_limits(np.array(values).T, levels, is_above=not is_log)
    return traces, {
        "yaxis.title.text": _text(view.name),
        "yaxis.type": "log" if is_log else "linear",
        "yaxis.range": np.log10(limits).tolist() if is_log else list(limits),
        "xaxis.title.text": PROTOCOLS[view.protocol].axis_label,
    }


def _traces(
    curve: Curve,
    name: str,
    known: Sequence[tuple[Point, Estimate]],
    look: LineStyle,
    texts: Sequence[str],
    view: View,
) -> list[_Trace]:
    """Return a curve's line and, in a view of the newest checkpoints, the band of its intervals."""
    opacity = 1.0
    if view.every_step:
        name = f"{name}, step {curve.step:,}"
        opacity = 0.25 + 0.75 * curve.step / curve.group.newest
    dash = look.linestyle
    if isinstance(dash, tuple):
        dash = ",".join(f"{2 * length}px" for length in dash[1])
    group = {"name": _text(name), "legendgroup": name}
    x = [point.last_position for point, _ in known]
    line = {
        **group,
        **{"x": x, "y": [value.value for _, value in known], "mode": "lines+markers"},
        "line": {"color": look.color, "dash": _DASHES.get(dash, dash), "width": 2},
        "marker": {"symbol": _SYMBOLS[look.marker], "size": 7},
        **{"opacity": opacity, "text": texts, "hovertemplate": "%{text}<extra></extra>"},
    }
    ends = [(n, v) for n, (_, v) in zip(x, known, strict=True) if np.isfinite(v).all()]
    if view.every_step or len(ends) < 2:
        return [line]
    outline = [(n, v.low) for n, v in ends] + [(n, v.high) for n, v in reversed(ends)]
    band = {
        **group,
        **{"x": [n for n, _ in outline], "y": [end for _, end in outline], "mode": "lines"},
        **{"fill": "toself", "fillcolor": f"{look.color}26", "line": {"width": 0}},
        **{"hoverinfo": "skip", "showlegend": False},
    }
    return [line, band]


def _hover(name: str, point: Point, quantities: Mapping[str, str]) -> str:
    """Return every known quantity of a point, with its interval."""
    positions = f"{point.first_position:,} to {point.last_position:,}"
    lines = [f"<b>{_text(name)}</b>", f"length {point.length:,}, positions {positions}"]
    for quantity, words in quantities.items():
        if (value := _value(point, quantity)) is not None:
            sign = "+" if quantity in _DIFFERENCES else ","
            shown, low, high = (f"{number:{sign}.3f}" for number in value)
            lines.append(f"{_text(words)}: {shown} [{low}, {high}]")
    lines.append(f"{point.tokens:,} tokens in {measured.units_text(point.units, point.documents)}")
    if len(point.nll_by_seed) > 1:
        lines.append(f"seeds: {', '.join(f'{nll:.3f}' for nll in point.nll_by_seed)} nats")
    return "<br>".join(lines)


def _heat_map(sweep: Sweep, rows: Sequence[TaskRow]) -> dict[str, Any]:
    """Return the shares of exact answers of one task, in % by length and depth."""
    task, lengths = rows[0].task, sorted({row.length for row in rows})
    labels = {row.name: row.name for row in rows}
    for name, effective in sweep.effective.get(task, {}).items():
        labels[name] = f"{name}: {effective_text(*effective)}"
    panels = heat_panels(rows, labels)
    columns = min(4, len(panels))
    lines = math.ceil(len(panels) / columns)
    trained = f"trained at {sweep.windows[rows[0].step]:,} tokens"
    title = f"{sweep.label}, step {rows[0].step:,}: {task}, exact answers in %; {trained}"
    if rows[0].chance is not None:
        title += f"; chance {100 * rows[0].chance:.2g}%"
    layout: dict[str, Any] = {
        "template": "plotly_white",
        "title": {"text": _text(title)},
        "height": 130 + lines * (80 + 22 * max(map(len, panels.values()))),
        "grid": {"rows": lines, "columns": columns, "pattern": "independent"},
        "annotations": [],
    }
    traces = []
    for number, (heading, cells) in enumerate(panels.items(), start=1):
        place = "" if number == 1 else str(number)
        shown = [[by_length.get(n) for n in lengths] for by_length in cells.values()]
        values = [[100 * row.value if row else None for row in line] for line in shown]
        ends = [[[100 * row.ci_low, 100 * row.ci_high] if row else None for row in line]
                for line in shown]  # fmt: skip
        traces.append(
            {
                **{"type": "heatmap", "xaxis": f"x{place}", "yaxis": f"y{place}", "z": values},
                **{"x": [f"{n:,}" for n in lengths], "y": [_text(label) for label in cells]},
                **{"zmin": 0, "zmax": 100, "colorscale": "Viridis", "showscale": number == 1},
                **{"texttemplate": "%{z:.0f}", "customdata": ends, "xgap": 1, "ygap": 1},
                "hovertemplate": "%{y}, %{x} tokens: %{z:.1f}% [%{customdata[0]:.1f}, "
                "%{customdata[1]:.1f}]<extra></extra>",
            }
        )
        layout[f"xaxis{place}"] = {"type": "category"}
        layout[f"yaxis{place}"] = {"type": "category", "autorange": "reversed"}
        layout["annotations"].append(
            {
                **{"text": _text(heading), "showarrow": False, "x": 0.5, "y": 1},
                **{"xref": f"x{place} domain", "yref": f"y{place} domain", "yanchor": "bottom"},
            }
        )
    return {"data": traces, "layout": layout}
