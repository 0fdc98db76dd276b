"""A sweep's results as a small HTML table, which a notebook shows for them."""

import math
from collections.abc import Sequence
from html import escape

from rope_jax.evaluation.frame import origin
from rope_jax.evaluation.results import Row, rows
from rope_jax.evaluation.statistics import Estimate
from rope_jax.evaluation.sweep import SweepResult
from rope_jax.evaluation.text import half_width_text, interval_text, perplexity_text


def results_html(result: SweepResult) -> str:
    """Return one table per protocol: a row for each scaling, a column for each context length.

    A cell has the perplexity, or the nats per token if the sweep's `show` is not perplexity (bits
    per byte would need to know the texts), and half of its 95% interval, or the interval itself
    where half of it is larger than the perplexity. The lowest value of a column is bold, unless
    most scalings share it, as at the window.
    """
    measured = rows(result, origin(None))
    protocols = dict.fromkeys(row.protocol for row in measured)
    return "\n".join(_table(result, [r for r in measured if r.protocol == p]) for p in protocols)


def _table(result: SweepResult, measured: Sequence[Row]) -> str:
    """Return the table of one protocol."""
    lengths = sorted({row.length for row in measured})
    as_nats = result.config.show != "perplexity"
    best = {n: _best([row for row in measured if row.length == n], as_nats) for n in lengths}
    unit = "Nats per token" if as_nats else "Perplexity"
    caption = (
        f"{unit} by context length, ± half of its 95% interval ({result.unit_kind}: "
        f"{measured[0].units:,}; protocol: {measured[0].protocol})"
    )
    lines = [
        "<table>",
        f'<caption style="text-align: left">{escape(caption)}</caption>',
        "<thead><tr><th></th>" + "".join(f"<th>{n:,}</th>" for n in lengths) + "</tr></thead>",
        "<tbody>",
    ]
    for name in dict.fromkeys(row.name for row in measured):
        own = {row.length: row for row in measured if row.name == name}
        cells = [_cell(own[n], best=best[n], as_nats=as_nats) if n in own else "" for n in lengths]
        lines.append(
            f'<tr><th style="text-align: left; font-weight: normal">{escape(name)}</th>'
            + "".join(f'<td style="text-align: right">{cell}</td>' for cell in cells)
            + "</tr>"
        )
    return "\n".join([*lines, "</tbody>", "</table>"])


def _best(column: Sequence[Row], as_nats: bool) -> str:
    """Return the lowest value of a column as text; "" if most rows share it."""
    known = [row.nll for row in column if not math.isnan(row.nll)]
    texts = [_value(nll, as_nats) for nll in known]
    best = _value(min(known), as_nats) if known else ""
    return best if 2 * texts.count(best) <= len(texts) else ""


def _cell(row: Row, *, best: str, as_nats: bool) -> str:
    """Return a value with its interval, in bold if it is the best of its column."""
    nll = Estimate(value=row.nll, low=row.ci_low, high=row.ci_high)
    value = _value(row.nll, as_nats)
    interval = _half_of_nats(nll) if as_nats else interval_text(nll)
    text = escape(f"{value} {interval.replace('±', '± ')}".strip())
    return f"<strong>{text}</strong>" if value == best else text


def _value(nll: float, as_nats: bool) -> str:
    return f"{nll:.3f}" if as_nats else perplexity_text(nll)


def _half_of_nats(nll: Estimate) -> str:
    """Return half the width of a loss's interval; "" if there is none."""
    half = (nll.high - nll.low) / 2
    return half_width_text(half) if math.isfinite(half) else ""
