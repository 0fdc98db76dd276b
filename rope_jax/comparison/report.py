"""A comparison as a Markdown page of tables."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rope_jax.comparison.curves import Comparison, Curve, Point
from rope_jax.evaluation.statistics import Estimate, perplexity
from rope_jax.evaluation.text import perplexity_text, usable_text
from rope_jax.runs.markdown import escape_markdown

_INTERVALS = (
    "Each cell is the perplexity ± half the width of its 95% interval over documents and seeds, or "
    "with the interval itself where half its width exceeds the perplexity. The interval of a group "
    "with one seed says nothing about other seeds."
)


@dataclass(frozen=True)
class PlottedCurve:
    """A curve's points from one protocol, keyed by length."""

    curve: Curve
    points: Mapping[int, Point]


def format_markdown(comparison: Comparison) -> str:
    """Return notes, sources, and tables by protocol of each group's newest checkpoint."""
    curves = [curve for curve in comparison.curves if curve.is_newest]
    parts = [f"# {escape_markdown(describe_groups(comparison))}\n"]
    parts += [f"> {escape_markdown(note)}\n" for note in comparison.notes]
    heading, *rows = describe_sources(comparison)
    rows = [[escape_markdown(cell) for cell in row] for row in rows]
    parts.append(_format_table(heading, *rows, alignment="---"))
    for protocol in dict.fromkeys(point.protocol for curve in curves for point in curve.points):
        parts.append(_format_protocol(protocol, curves))
    parts.append(
        "Usable is the longest length up to which the loss on the same tokens, at the upper end of "
        f"its interval, stays within {comparison.tolerance:g} nats per token of `trained` at the "
        "window.\n"
    )
    return "\n".join(parts)


def describe_groups(comparison: Comparison) -> str:
    """Return the groups' labels, or only their number if there are more than four."""
    groups = comparison.groups
    if len(groups) > 4:
        return f"{len(groups)} groups of runs"
    return "; ".join(group.label for group in groups)


def describe_sources(comparison: Comparison) -> list[list[str]]:
    """Return a heading, and one row per group with its runs, steps, windows and corpora."""
    lines = [["group", "runs (seed)", "steps", "window", "sweep", "corpus"]]
    for group in comparison.groups:
        windows = [sweep.windows[step] for step in group.steps for sweep in group.sweeps_at(step)]
        columns = (
            [f"{sweep.run} ({sweep.seed})" for sweep in group.sweeps],
            map(str, group.steps),
            map(str, dict.fromkeys(windows)),
            dict.fromkeys(sweep.name for sweep in group.sweeps),
            sorted({row.corpus for sweep in group.sweeps for row in sweep.rows}),
        )
        lines.append([group.label, *map(", ".join, columns)])
    return lines


def points_of(protocol: str, curves: Sequence[Curve]) -> list[PlottedCurve]:
    """Return the curves that have points from a protocol, with those points."""
    plotted = [
        PlottedCurve(curve, {p.length: p for p in curve.points if p.protocol == protocol})
        for curve in curves
    ]
    return [one for one in plotted if one.points]


def format_usable(curve: Curve) -> str:
    """Return the usable length as text; "" if it was not measured."""
    usable = curve.usable
    if usable is None:
        return ""
    return usable_text(length=usable.length, is_last=usable.is_last, is_known=usable.is_known)


def format_interval(point: Point) -> str:
    """Return "±" and half the width of a perplexity's interval; "" if there is no interval.

    If half the width exceeds the perplexity itself, return the interval.
    """
    if not (math.isfinite(point.ci_low) and math.isfinite(point.ci_high)):
        return ""
    half = (perplexity(point.ci_high) - perplexity(point.ci_low)) / 2
    if half <= perplexity(point.nll):
        return f"± {half:.2f}"
    return f"[{perplexity_text(point.ci_low)}, {perplexity_text(point.ci_high)}]"


def _format_protocol(protocol: str, curves: Sequence[Curve]) -> str:
    """Return a heading and tables: perplexity, then the differences that are known."""
    plotted = points_of(protocol, curves)
    counts = [p.documents for one in plotted for p in one.points.values()]
    documents = "–".join(dict.fromkeys(map(str, (min(counts), max(counts)))))
    has_usable = protocol == "same_tokens" and any(one.curve.usable for one in plotted)
    parts = [f"## `{protocol}`, {documents} documents\n", _INTERVALS + "\n"]
    parts.append(_format_grid(plotted, _perplexity_cell, with_usable=has_usable))
    for caption, cell in (
        ("The difference from `trained` at the same length", _difference_cell),
        ("The difference from the same scaling of the first group", _from_first_cell),
        ("The gain over truncation to the window", _gain_cell),
        ("The loss above truncation to the window of the first group", _above_truncation_cell),
    ):
        some = [one for one in plotted if any(map(cell, one.points.values()))]
        if some:
            parts.append(f"{caption}, in nats per token, paired by document:\n")
            parts.append(_format_grid(some, cell, with_usable=False))
    return "\n".join(parts)


def _format_grid(
    plotted: Sequence[PlottedCurve], cell: Callable[[Point], str], *, with_usable: bool
) -> str:
    """Return a table of one row per curve and one column per length."""
    lengths = sorted({length for one in plotted for length in one.points})
    heading = ["runs", "scaling", *(f"{n:,}" for n in lengths)]
    rows = [
        [
            escape_markdown(one.curve.group.label),
            escape_markdown(one.curve.name),
            *(cell(one.points[n]) if n in one.points else "" for n in lengths),
        ]
        for one in plotted
    ]
    if with_usable:
        heading.append("usable")
        for row, one in zip(rows, plotted, strict=True):
            row.append(format_usable(one.curve))
    return _format_table(heading, *rows, alignment="---:")


def _format_table(heading: Sequence[str], *rows: Sequence[str], alignment: str) -> str:
    """Return a Markdown table; alignment: for the columns after the first two."""
    rule = f"|---|---{f'|{alignment}' * (len(heading) - 2)}|\n"
    lines = [f"| {' | '.join(cells)} |\n" for cells in (heading, *rows)]
    return lines[0] + rule + "".join(lines[1:])


def _perplexity_cell(point: Point) -> str:
    return f"{perplexity_text(point.nll)} {format_interval(point)}".rstrip()


def _difference_cell(point: Point) -> str:
    return _format_nats(point.difference)


def _from_first_cell(point: Point) -> str:
    return _format_nats(point.from_first)


def _gain_cell(point: Point) -> str:
    return _format_nats(point.gain)


def _above_truncation_cell(point: Point) -> str:
    return _format_nats(point.above_truncation)


def _format_nats(estimate: Estimate | None) -> str:
    """Return an estimate with its interval, which need not be symmetric; "" for None."""
    if estimate is None:
        return ""
    value, low, high = estimate
    if value == low == high == 0:
        return "0"
    interval = f" [{low:+.3f}, {high:+.3f}]" if math.isfinite(low) and math.isfinite(high) else ""
    return f"{value:+.3f}{interval}"
