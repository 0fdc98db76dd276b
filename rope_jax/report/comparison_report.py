"""A comparison as a Markdown page of tables."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rope_jax.comparison.curves import Comparison, Curve, Point
from rope_jax.comparison.differences import describe_settings
from rope_jax.config.presentation import Show
from rope_jax.protocols import BASELINE
from rope_jax.report.comparison_cells import (
    BELOW_TRUNCATION,
    best_at,
    cell,
    has_single_seeds,
    pairing_text,
    sampling_text,
    signed_text,
    units_text,
)
from rope_jax.report.comparison_tasks import format_effective_lengths
from rope_jax.report.markdown import escape_markdown
from rope_jax.report.text import QUANTITIES, usable_text
from rope_jax.results.statistics import Estimate

_INTERVALS = (
    "Each cell is in {quantity}, ± half the width of its 95% interval over {sampled}, or with "
    "the interval itself where half its width exceeds the value. {seeds}The best value of a column "
    "is bold."
)
_SINGLE_SEEDS = "The interval of a group with one seed says nothing about other seeds. "


@dataclass(frozen=True)
class PlottedCurve:
    """A curve's points from one protocol, keyed by length."""

    curve: Curve
    points: Mapping[int, Point]


def format_markdown(comparison: Comparison) -> str:
    """Return notes, sources, remarks, and tables by protocol of each group's newest checkpoint."""
    curves = [curve for curve in comparison.curves if curve.is_newest]
    parts = [f"# {escape_markdown(describe_groups(comparison))}\n"]
    parts += [f"> {escape_markdown(note)}\n" for note in comparison.notes]
    heading, *rows = describe_sources(comparison)
    rows = [[escape_markdown(cell) for cell in row] for row in rows]
    parts.append(_format_table(heading, *rows, alignment="---"))
    parts += [f"{escape_markdown(remark)}.\n" for remark in comparison.remarks]
    for protocol in dict.fromkeys(point.protocol for curve in curves for point in curve.points):
        parts.append(_format_protocol(protocol, curves, comparison))
    parts.append(
        "Usable is the longest length up to which the loss on the same tokens, at the upper end of "
        f"its interval, stays within {comparison.tolerance:g} nats per token of "
        f"{_code(comparison.baseline)} at the window.\n"
    )
    sweeps = [sweep for group in comparison.groups for sweep in group.sweeps]
    if effective := format_effective_lengths(sweeps):
        parts.append(effective)
    return "\n".join(parts)


def describe_groups(comparison: Comparison) -> str:
    """Return the groups' labels, or only their number if there are more than four."""
    groups = comparison.groups
    if len(groups) > 4:
        return f"{len(groups)} groups of runs"
    return "; ".join(group.label for group in groups)


def describe_sources(comparison: Comparison) -> list[list[str]]:
    """Return a heading, and one row per group with its runs, steps, windows and corpora.

    If groups differ in settings, the last column has all of these.
    """
    with_settings = any(group.settings for group in comparison.groups)
    lines = [["group", "runs (seed)", "steps", "window", "sweep", "corpus"]]
    lines[0] += ["differs in"] * with_settings
    for group in comparison.groups:
        windows = [sweep.windows[step] for step in group.steps for sweep in group.sweeps_at(step)]
        columns = (
            [f"{sweep.run} ({sweep.seed})" for sweep in group.sweeps],
            map(str, group.steps),
            map(str, dict.fromkeys(windows)),
            dict.fromkeys(sweep.name for sweep in group.sweeps),
            sorted({row.corpus for sweep in group.sweeps for row in sweep.rows}),
        )
        settings = [describe_settings(group.settings, briefly=False)] * with_settings
        lines.append([group.label, *map(", ".join, columns), *settings])
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


def _format_protocol(protocol: str, curves: Sequence[Curve], comparison: Comparison) -> str:
    """Return a heading and tables: what was measured, then the differences that are known."""
    plotted = points_of(protocol, curves)
    counts = dict.fromkeys((p.units, p.documents) for one in plotted for p in one.points.values())
    # the fewest and the most
    units = " to ".join(dict.fromkeys(units_text(*n) for n in (min(counts), max(counts))))
    has_usable = protocol == BASELINE and any(one.curve.usable for one in plotted)
    about = _INTERVALS.format(
        quantity=QUANTITIES[comparison.show],
        sampled=sampling_text(comparison),
        seeds=_SINGLE_SEEDS if has_single_seeds(comparison) else "",
    )
    best = best_at([one.curve for one in plotted], protocol, comparison.show)
    measured = _format_measured(plotted, comparison.show, best, with_usable=has_usable)
    points = [point for one in plotted for point in one.points.values()]
    if any(cell(point, comparison.show).is_below_truncation for point in points):
        mark = escape_markdown(BELOW_TRUNCATION)
        about += f" {mark} is below truncation by more than the interval of the difference."
    parts = [f"## `{protocol}`, {units}\n", about + "\n", measured]
    for caption, difference in (
        (f"The difference from {_code(comparison.baseline)} at the same length", _difference_cell),
        ("The difference from the same scaling of the first group", _from_first_cell),
        ("The gain over truncation to the window", _gain_cell),
        ("The loss above truncation to the window of the first group", _above_truncation_cell),
    ):
        some = [one for one in plotted if any(map(difference, one.points.values()))]
        if some:
            parts.append(f"{caption}, in nats per token, {pairing_text(points)}:\n")
            parts.append(_format_differences(some, difference))
    return "\n".join(parts)


def _code(name: str) -> str:
    """Return a curve's name as code; a description as it is."""
    return name if " " in name else f"`{name}`"


def _format_measured(
    plotted: Sequence[PlottedCurve], show: Show, best: Mapping[int, str], *, with_usable: bool
) -> str:
    """Return a table of one row per curve and one column per length, with the best value bold."""
    lengths = _lengths(plotted)
    with_settings = any(one.curve.group.settings for one in plotted)
    heading = ["runs", "scaling", *["differs in"] * with_settings, *(f"{n:,}" for n in lengths)]
    rows = []
    for one in plotted:
        group = one.curve.group
        cells = []
        for n in lengths:
            shown = cell(one.points[n], show) if n in one.points else None
            text = "" if shown is None else escape_markdown(shown.text)
            if shown is not None and shown.value == best.get(n) and not group.marked:
                value, space, interval = text.partition(" ")
                text = f"**{value}**{space}{interval}"
            cells.append(text)
        settings = escape_markdown(describe_settings(group.settings, briefly=True))
        rows.append(
            [
                escape_markdown(group.label),
                escape_markdown(one.curve.name),
                *[settings] * with_settings,
                *cells,
                *[format_usable(one.curve)] * with_usable,
            ]
        )
    heading += ["usable"] * with_usable
    return _format_table(heading, *rows, alignment="---:", left=2 + with_settings)


def _format_differences(plotted: Sequence[PlottedCurve], difference: Callable[[Point], str]) -> str:
    """Return a table of one row per curve and one column per length."""
    lengths = _lengths(plotted)
    heading = ["runs", "scaling", *(f"{n:,}" for n in lengths)]
    rows = [
        [
            escape_markdown(one.curve.group.label),
            escape_markdown(one.curve.name),
            *(difference(one.points[n]) if n in one.points else "" for n in lengths),
        ]
        for one in plotted
    ]
    return _format_table(heading, *rows, alignment="---:")


def _lengths(plotted: Sequence[PlottedCurve]) -> list[int]:
    return sorted({length for one in plotted for length in one.points})


def _format_table(
    heading: Sequence[str], *rows: Sequence[str], alignment: str, left: int = 2
) -> str:
    """Return a Markdown table; alignment: for the columns after the first `left`."""
    rule = f"{'|---' * left}{f'|{alignment}' * (len(heading) - left)}|\n"
    lines = [f"| {' | '.join(cells)} |\n" for cells in (heading, *rows)]
    return lines[0] + rule + "".join(lines[1:])


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
    shown, ends = signed_text(value), (signed_text(low), signed_text(high))
    if not (math.isfinite(low) and math.isfinite(high)) or {shown, *ends} == {"0"}:
        return shown
    return f"{shown} [{', '.join(ends)}]"
