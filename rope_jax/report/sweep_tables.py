"""results.md and results.tex: a sweep's newest checkpoint, with one row per scaling."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from rope_jax.config.presentation import Show
from rope_jax.protocols import BASELINE, PROTOCOLS
from rope_jax.report.latex import escape_latex, format_tabular, latex_value
from rope_jax.report.markdown import escape_markdown
from rope_jax.report.text import (
    QUANTITIES,
    caption,
    half_width,
    half_width_text,
    interval_text,
    usable_text,
    value_text,
)
from rope_jax.results.rows import Row
from rope_jax.results.statistics import Estimate
from rope_jax.results.summary import CheckpointSummary


class _Cell(NamedTuple):
    value: str
    interval: str = ""
    is_best: bool = False


class _Table(NamedTuple):
    """The table of one protocol, before it is formatted."""

    protocol: str
    caption: str
    heading: list[str]
    rows: list[tuple[str, list[_Cell], str]]
    """Name, cells by length, usable length."""
    truncation: list[_Cell]
    """What truncation to the window gives; empty if it is unknown or another protocol's."""
    has_usable: bool


def format_results_markdown(
    rows: Sequence[Row], checkpoint: CheckpointSummary, *, split: str, show: Show
) -> str:
    """Return a page with one table per protocol: value ± half its 95% interval, the best bold.

    rows: of this checkpoint. show: the quantity; without the bytes per token, bits per byte turn
    into nats per token.
    """
    parts = [f"# {escape_markdown(f'{checkpoint.run}, step {checkpoint.step}')}\n"]
    for table in _tables(rows, checkpoint, split, show):
        parts.append(f"## `{table.protocol}`\n\n{escape_markdown(table.caption)}\n")
        lines = [table.heading, ["---", *["---:"] * (len(table.heading) - 1)]]
        blank = [""] * table.has_usable
        for name, cells, usable in table.rows:
            shown = [_markdown_cell(cell) for cell in cells]
            lines.append([escape_markdown(name), *shown, *[usable] * table.has_usable])
        if table.truncation:
            lines.append(["truncation", *map(_markdown_cell, table.truncation), *blank])
        parts.append("".join(f"| {' | '.join(line)} |\n" for line in lines))
    return "\n".join(parts)


def format_results_latex(
    rows: Sequence[Row], checkpoint: CheckpointSummary, *, split: str, show: Show
) -> str:
    """Return one tabular environment per protocol, for a table environment in a paper.

    The comments above it say what a caption has to. Arguments as for `format_results_markdown`.
    """
    parts = []
    for table in _tables(rows, checkpoint, split, show):
        blank = [""] * table.has_usable
        curves = [
            [
                escape_latex(name),
                *(latex_value(*cell[:2], is_best=cell.is_best) for cell in cells),
                *[escape_latex(usable)] * table.has_usable,
            ]
            for name, cells, usable in table.rows
        ]
        last = [latex_value(*cell[:2], is_best=False) for cell in table.truncation]
        blocks = [curves, [["truncation", *last, *blank]]] if last else [curves]
        notes = [table.protocol, table.caption, r"Needs \usepackage{booktabs}."]
        heading = list(map(escape_latex, table.heading))
        parts.append(format_tabular(heading, blocks, left=1, notes=notes))
    return "\n".join(parts)


def _tables(
    rows: Sequence[Row], checkpoint: CheckpointSummary, split: str, show: Show
) -> list[_Table]:
    if show == "bits_per_byte" and any(row.bpb is None for row in rows):
        show = "nats"
    return [
        _table([row for row in rows if row.protocol == protocol], checkpoint, split, show)
        for protocol in dict.fromkeys(row.protocol for row in rows)
    ]


def _table(rows: Sequence[Row], checkpoint: CheckpointSummary, split: str, show: Show) -> _Table:
    """Return the table of one protocol."""
    protocol = rows[0].protocol
    lengths = sorted({row.last_position for row in rows})
    first = {row.last_position: row.first_position for row in rows}
    is_compared = protocol == BASELINE and checkpoint.has_baseline
    best = {length: _best(rows, length, show) for length in lengths}
    lines = []
    for name in dict.fromkeys(row.name for row in rows):
        own = {row.last_position: row for row in rows if row.name == name}
        cells = [_cell(own[n], show, best[n]) if n in own else _Cell("") for n in lengths]
        usable = ""
        if is_compared and name in checkpoint.curves:
            usable = usable_text(**checkpoint.curves[name].usable._asdict())
        lines.append((name, cells, usable))
    truncation: list[_Cell] = []
    nll, bpb = checkpoint.nll_at_window, checkpoint.bpb_at_window
    if is_compared and nll is not None:
        at_window = _Cell(value_text(nll, bpb, show))
        truncation = [at_window if n >= checkpoint.window else _Cell("") for n in lengths]
    what = caption(protocol, rows[0].stride)
    if PROTOCOLS[protocol].scored:
        what += f", {PROTOCOLS[protocol].scored}"
    about = (
        f"{QUANTITIES[show].capitalize()} by {what}: {checkpoint.run}, step "
        f"{checkpoint.step}, trained at {checkpoint.window:,} tokens; {split} split, "
        f"{rows[0].documents:,} document{'s' * (rows[0].documents != 1)}. ± half of the 95% "
        f"interval, by resampling {_resampled(rows)}."
    )
    if not rows[0].reliable:
        about += " They are too few for a reliable interval."
    if any(cell.is_best for _, cells, _ in lines for cell in cells):
        about += " The best of each column is bold."
    if truncation:
        about += f" Truncation: only the last {checkpoint.window:,} tokens are kept."
    if is_compared:
        about += (
            " Usable: the longest length up to which the loss stays within "
            f"{checkpoint.tolerance:g} nats per token of truncation."
        )
    if PROTOCOLS[protocol].by_position:
        heading = [f"{first[n]:,}–{n:,}" for n in lengths]
    else:
        heading = [f"{n:,}" for n in lengths]
    heading = ["scaling", *heading, *["usable"] * is_compared]
    return _Table(protocol, about, heading, lines, truncation, is_compared)


def _resampled(rows: Sequence[Row]) -> str:
    """Return what the intervals resample."""
    units = rows[0].units
    return f"{units:,} of their blocks" if units > rows[0].documents else "the documents"


def _best(rows: Sequence[Row], length: int, show: Show) -> str:
    """Return the lowest value at a length as text; "" if most curves share it, as at the window."""
    own = [row for row in rows if row.last_position == length and not math.isnan(row.nll)]
    if len(own) < 2:
        return ""
    values = [value_text(row.nll, row.bpb, show) for row in own]
    lowest = min(own, key=lambda row: row.nll)
    best = value_text(lowest.nll, lowest.bpb, show)
    return best if 2 * values.count(best) <= len(values) else ""


def _cell(row: Row, show: Show, best: str) -> _Cell:
    value = value_text(row.nll, row.bpb, show)
    if show == "perplexity":
        interval = interval_text(Estimate(value=row.nll, low=row.ci_low, high=row.ci_high))
    else:
        half = half_width(row, show)
        interval = half_width_text(half) if math.isfinite(half) else ""
    return _Cell(value, interval, value == best)


def _markdown_cell(cell: _Cell) -> str:
    value = escape_markdown(cell.value)
    if cell.is_best:
        value = f"**{value}**"
    return f"{value} {escape_markdown(cell.interval)}".rstrip()
