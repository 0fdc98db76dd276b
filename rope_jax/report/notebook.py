"""A sweep's results in a notebook: a pandas DataFrame, and a small HTML table."""

import math
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from rope_jax.config.presentation import Show
from rope_jax.report.text import (
    QUANTITIES,
    half_width,
    half_width_text,
    interval_text,
    value_text,
)
from rope_jax.results.rows import Row, UnitKind
from rope_jax.results.statistics import Estimate

if TYPE_CHECKING:
    import pandas

# Columns of results.csv that are about a run's folder, which a model of one's own need not have.
_OF_A_RUN = ["step", "run", "seed", "corpus", "split"]


def results_frame(rows: Sequence[Row]) -> "pandas.DataFrame":
    """Return one row per measurement, with the columns of results.csv but those about a run."""
    import pandas  # half a second, and only needed here

    frame = pandas.DataFrame(rows, columns=list(Row._fields)).drop(columns=_OF_A_RUN)
    # Without a type of its own, a column of nothing but None could not be computed with.
    floats = dict.fromkeys(("factor", "bpb", "bpb_low", "bpb_high"), "float64")
    return frame.astype({**floats, "stride": "Int64"})


def results_html(rows: Sequence[Row], show: Show, unit_kind: UnitKind) -> str:
    """Return one table per protocol: a row for each scaling, a column for each context length.

    A cell has what `show` names (nats per token for bits per byte that are not known) and half of
    its 95% interval, or the interval itself where half of it is larger than the perplexity. The
    lowest value of a column is bold, unless most scalings share it, as at the window.
    """
    protocols = dict.fromkeys(row.protocol for row in rows)
    return "\n".join(
        _table([r for r in rows if r.protocol == p], show, unit_kind) for p in protocols
    )


def _table(measured: Sequence[Row], show: Show, unit_kind: UnitKind) -> str:
    """Return the table of one protocol."""
    lengths = sorted({row.length for row in measured})
    if show == "bits_per_byte" and any(row.bpb is None for row in measured):
        show = "nats"
    best = {n: _best([row for row in measured if row.length == n], show) for n in lengths}
    caption = (
        f"{QUANTITIES[show].capitalize()} by context length, ± half of its 95% interval "
        f"({unit_kind}: {measured[0].units:,}; protocol: {measured[0].protocol})"
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
