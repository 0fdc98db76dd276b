"""A sweep's results as a small HTML table, which a notebook shows for them."""

import math
from collections.abc import Sequence
from html import escape

from rope_jax.config.presentation import Show
from rope_jax.evaluation.frame import NO_ORIGIN
from rope_jax.evaluation.results import Row, rows
from rope_jax.evaluation.statistics import Estimate
from rope_jax.evaluation.sweep import SweepResult
from rope_jax.evaluation.text import (
    QUANTITIES,
    half_width,
    half_width_text,
    interval_text,
    value_text,
)


def results_html(result: SweepResult) -> str:
    """Return one table per protocol: a row for each scaling, a column for each context length.

    A cell has what the sweep's `show` names (nats per token for bits per byte that are not known)
    and half of its 95% interval, or the interval itself where half of it is larger than the
    perplexity. The lowest value of a column is bold, unless
    most scalings share it, as at the window.
    """
    measured = rows(result, NO_ORIGIN)
    protocols = dict.fromkeys(row.protocol for row in measured)
    return "\n".join(_table(result, [r for r in measured if r.protocol == p]) for p in protocols)


def _table(result: SweepResult, measured: Sequence[Row]) -> str:
    """Return the table of one protocol."""
    lengths = sorted({row.length for row in measured})
    show = result.config.show
    if show == "bits_per_byte" and any(row.bpb is None for row in measured):
        show = "nats"
    best = {n: _best([row for row in measured if row.length == n], show) for n in lengths}
    caption = (
        f"{QUANTITIES[show].capitalize()} by context length, ± half of its 95% interval "
        f"({result.unit_kind}: {measured[0].units:,}; protocol: {measured[0].protocol})"
    )
    lines = [
        "<table>",
        f'<caption style="text-align: left">{escape(caption)}</caption>',
        "<thead><tr><th></th>" + "".join(f"<th>{n:,}</th>" for n in lengths) + "</tr></thead>",
        "<tbody>",
    ]
    for name in dict.fromkeys(row.name for row in measured):
        own = {row.length: row for row in measured if row.name == name}
        cells = [_cell(own[n], best=best[n], show=show) if n in own else "" for n in lengths]
        lines.append(
            f'<tr><th style="text-align: left; font-weight: normal">{escape(name)}</th>'
            + "".join(f'<td style="text-align: right">{cell}</td>' for cell in cells)
            + "</tr>"
        )
    return "\n".join([*lines, "</tbody>", "</table>"])


def _best(column: Sequence[Row], show: Show) -> str:
    """Return the lowest value of a column as text; "" if most rows share it."""
    known = sorted((row for row in column if not math.isnan(row.nll)), key=lambda row: row.nll)
    texts = [value_text(row.nll, row.bpb, show) for row in known]
    best = texts[0] if texts else ""
    return best if 2 * texts.count(best) <= len(texts) else ""


def _cell(row: Row, *, best: str, show: Show) -> str:
    """Return a value with its interval, in bold if it is the best of its column."""
    value, half = value_text(row.nll, row.bpb, show), half_width(row, show)
    interval = half_width_text(half) if math.isfinite(half) else ""
    if show == "perplexity":
        interval = interval_text(Estimate(value=row.nll, low=row.ci_low, high=row.ci_high))
    text = escape(f"{value} {interval.replace('±', '± ')}".strip())
    return f"<strong>{text}</strong>" if value == best else text
