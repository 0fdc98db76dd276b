"""A sweep's results as a small HTML table, which a notebook shows for them."""

import math
from collections.abc import Sequence
from html import escape

from rope_jax.evaluation.frame import origin
from rope_jax.evaluation.results import Row, rows
from rope_jax.evaluation.statistics import Estimate
from rope_jax.evaluation.sweep import SweepResult
from rope_jax.evaluation.text import interval_text, perplexity_text


def results_html(result: SweepResult) -> str:
    """Return one table per protocol: a row for each scaling, a column for each context length.

    A cell has the perplexity, or the nats per token if the sweep's `show` is not perplexity (bits
    per byte would need to know the texts), and half of its 95% interval, or the interval itself
    where half of it is larger than the perplexity. The lowest value of a column is bold, unless all
    are equal.
    """
    measured = rows(result, origin(None))
    protocols = dict.fromkeys(row.protocol for row in measured)
    return "\n".join(_table(result, [r for r in measured if r.protocol == p]) for p in protocols)


def _table(result: SweepResult, measured: Sequence[Row]) -> str:
    """Return the table of one protocol."""
    lengths = sorted({row.length for row in measured})
    columns = {n: [row.nll for row in measured if row.length == n] for n in lengths}
    best = {n: min(column) for n, column in columns.items() if min(column) < max(column)}
    as_nats = result.config.show != "perplexity"
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
        cells = [
            _cell(own[n], is_best=own[n].nll == best.get(n), as_nats=as_nats) if n in own else ""
            for n in lengths
        ]
        lines.append(
            f'<tr><th style="text-align: left; font-weight: normal">{escape(name)}</th>'
            + "".join(f'<td style="text-align: right">{cell}</td>' for cell in cells)
            + "</tr>"
        )
    return "\n".join([*lines, "</tbody>", "</table>"])


def _cell(row: Row, *, is_best: bool, as_nats: bool) -> str:
    """Return a value with its interval, in bold if it is the best of its column."""
    nll = Estimate(value=row.nll, low=row.ci_low, high=row.ci_high)
    value, interval = _nats(nll) if as_nats else (perplexity_text(row.nll), interval_text(nll))
    text = escape(f"{value} {interval.replace('±', '± ')}".strip())
    return f"<strong>{text}</strong>" if is_best else text


def _nats(nll: Estimate) -> tuple[str, str]:
    """Return a loss and half of its interval; "" for the latter if there is no interval."""
    half = (nll.high - nll.low) / 2
    return f"{nll.value:.3f}", f"±{half:.3f}" if math.isfinite(half) else ""
