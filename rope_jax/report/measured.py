"""The tables of a comparison, such as that of one run: losses by length, and differences."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from rope_jax.comparison.curves import Comparison, Curve, Point
from rope_jax.comparison.groups import MARK, Group, describe_settings
from rope_jax.config.presentation import Show
from rope_jax.protocols import BASELINE, PROTOCOLS
from rope_jax.report.table import BELOW_TRUNCATION, Cell, Line, Table
from rope_jax.report.text import (
    QUANTITIES,
    caption,
    difference_text,
    half_width_text,
    interval_text,
    signed_text,
    unit_kinds,
    units_text,
    usable_text,
    value_text,
)
from rope_jax.results.statistics import RELIABLE_UNITS, Estimate

Plotted = Mapping[Curve, Mapping[int, Point]]
"""The points of each curve from one protocol, by length."""


def plotted_by(protocol: str, comparison: Comparison) -> Plotted:
    """Return the newest checkpoints' curves that have points from a protocol, with these points."""
    curves = comparison.newest
    plotted = {c: {p.length: p for p in c.points if p.protocol == protocol} for c in curves}
    return {curve: points for curve, points in plotted.items() if points}


def _all_points(plotted: Plotted) -> list[Point]:
    return [point for points in plotted.values() for point in points.values()]


def measured_table(comparison: Comparison, protocol: str) -> Table:
    """Return a line per curve and a column per length, of each group's newest checkpoint.

    Below the curves of a single group stands truncation to its window.
    """
    plotted = plotted_by(protocol, comparison)
    points = _all_points(plotted)
    first = {point.length: point.first_position for point in points}
    columns = {n: _column(plotted, n, comparison.show) for n in sorted(first)}
    groups = list(dict.fromkeys(curve.group for curve in plotted))
    has_settings = any(group.settings for group in groups)
    has_usable = any(curve.usable for curve in plotted) and protocol == BASELINE
    lines = []
    for place, curve in enumerate(plotted):
        label = curve.group.label, describe_settings(curve.group.settings, briefly=True)
        labels = () if comparison.only else label[: 1 + has_settings]
        cells = [cells[place] for cells in columns.values()]
        usable = [Cell(usable_text(curve.usable))] * has_usable
        lines.append(Line((*labels, curve.name), cells, usable))
    heading = () if comparison.only else ("runs", "differs in")[: 1 + has_settings]
    below = []
    levels = truncation_levels(plotted)
    if protocol == BASELINE and len(comparison.groups) == 1 and levels:
        nll, window = next(iter(levels)), next(iter(plotted)).window
        bits = (nll * p.bpb / p.nll for p in points if p.bpb and math.isfinite(p.bpb))
        text = value_text(nll, next(bits, None), comparison.show)
        below = [Line(("truncation",), [Cell(text * (n >= window)) for n in columns])]
    by_position = PROTOCOLS[protocol].by_position
    table = Table(
        title=protocol,
        caption="",
        labels=(*heading, "scaling"),
        columns=tuple(f"{first[n]:,}–{n:,}" if by_position else f"{n:,}" for n in columns),
        lines=lines,
        details=("usable",) * has_usable,
        below=below,
    )
    return dataclasses.replace(table, caption=_caption(comparison, plotted, table))


def measured_cell(point: Point, show: Show) -> Cell:
    """Return a point's value and interval in the quantity to show; empty where that is unknown."""
    loss = Estimate(point.nll, point.ci_low, point.ci_high)
    if show == "bits_per_byte":
        if point.bpb is None or point.bpb_low is None or point.bpb_high is None:
            return Cell()
        loss = Estimate(point.bpb, point.bpb_low, point.bpb_high)
    return loss_cell(loss, show)._replace(is_below=point.is_below_truncation)


def loss_cell(loss: Estimate, show: Show = "perplexity") -> Cell:
    """Return a loss and its interval; loss: in nats per token, or in bits per byte to show them."""
    interval = interval_text(loss, show)
    brief = "" if interval.startswith("[") else interval_text(loss, show, digits=1)
    return Cell(value_text(loss.value, loss.value, show), interval, brief)


def estimate_cell(estimate: Estimate | None, text: Callable[[float], str] = signed_text) -> Cell:
    """Return a gain in nats, or what `text` writes, with half its interval; "" if unknown."""
    if estimate is None:
        return Cell()
    shown, low, high = map(text, estimate)
    half = (estimate.high - estimate.low) / 2
    is_zero = shown == low == high == "0"
    return Cell(shown, half_width_text(half) if math.isfinite(half) and not is_zero else "")


def _column(plotted: Plotted, length: int, show: Show) -> list[Cell]:
    """Return a cell for each curve, with the lowest value marked as the best.

    Marked groups do not compete. What most curves share, as inside the window, is not the best.
    """
    at = {curve: points[length] for curve, points in plotted.items() if length in points}
    cells = {c: measured_cell(at[c], show) if c in at else Cell() for c in plotted}
    competing = [
        c for c in at if cells[c].value and not c.group.marked and not math.isnan(at[c].nll)
    ]
    if competing:
        best = cells[min(competing, key=lambda c: at[c].nll)].value
        sharing = [c for c in competing if cells[c].value == best]
        if 2 * len(sharing) <= len(competing):
            cells |= {c: cells[c]._replace(is_best=True) for c in sharing}
    return list(cells.values())


def truncation_levels(curves: Iterable[Curve]) -> dict[float, list[str]]:
    """Return the labels of the groups by what truncation to the window costs them, in nats."""
    levels = {
        curve.group.label: point.nll + point.gain.value
        for curve in curves
        for point in curve.points
        if point.gain is not None and math.isfinite(point.gain.value)
    }
    levels |= {c.group.label: c.truncation for c in curves if c.truncation is not None}
    groups: dict[float, list[str]] = {}
    for label, nll in levels.items():
        groups.setdefault(round(nll, 9), []).append(label)
    return groups


def difference_tables(comparison: Comparison, protocol: str) -> Iterator[Table]:
    """Yield a table for each kind of difference that is known, in nats per token."""
    plotted = plotted_by(protocol, comparison)
    points = _all_points(plotted)
    lengths = sorted({point.length for point in points})
    columns = tuple(f"{n:,}" for n in lengths)
    abouts = {
        "difference": f"The difference from {comparison.baseline} at the same length",
        "from_first": "The difference from the same scaling of the first group",
        "gain": "The gain over truncation to the window",
        "above_truncation": "The loss above truncation to the window of the first group",
    }
    for name, about in abouts.items():
        lines = []
        for curve, own in plotted.items():
            found = [getattr(own[n], name) if n in own else None for n in lengths]
            if any(found):
                cells = [Cell(difference_text(estimate)) for estimate in found]
                lines.append(Line((curve.group.label, curve.name), cells))
        if lines:
            about = f"{about}, in nats per token, {pairing_text(points)}."
            yield Table(protocol, about, ("runs", "scaling"), columns, lines)


def _caption(comparison: Comparison, plotted: Plotted, table: Table) -> str:
    points, groups = _all_points(plotted), list(dict.fromkeys(curve.group for curve in plotted))
    counts = [(point.units, point.documents) for point in points]
    units = " to ".join(dict.fromkeys(units_text(*n) for n in (min(counts), max(counts))))
    rows = [row for group in groups for sweep in group.sweeps for row in sweep.rows]
    splits = " and ".join(dict.fromkeys(r.split for r in rows if r.protocol == table.title))
    by = caption(table.title, points[0].stride, in_full=True)
    text = [
        f"{QUANTITIES[comparison.show].capitalize()} by {by}; {splits} split, {units}.",
        f"± half of the 95% interval over {sampling_text(comparison)}, or the interval itself "
        "where half of it exceeds the value.",
    ]
    if min(counts)[0] < RELIABLE_UNITS:
        kinds = " and ".join(f"{kind}s" for kind in unit_kinds(points))
        text.append(f"{kinds.capitalize()} are too few for a reliable interval.")
    if has_single_seeds(comparison) and not comparison.only:
        text.append("The interval of a group with one seed says nothing about other seeds.")
    cells = [cell for line in table.lines for cell in line.cells]
    if any(cell.is_best for cell in cells):
        text.append("The best of each column is bold.")
    if any(cell.is_below for cell in cells):
        text.append(
            f"{BELOW_TRUNCATION} is below truncation by more than the interval of the difference."
        )
    text += _describe_runs({curve.group: curve.window for curve in plotted})
    if any(group.marked for group in groups):
        text.append(f"{MARK} cannot be compared.")
    if table.below:
        text.append(f"Truncation: only the last {next(iter(plotted)).window:,} tokens are kept.")
    if table.details:
        text.append(
            "Usable: the longest length up to which the loss, at the upper end of its interval, "
            f"stays within {comparison.tolerance:g} nats per token of truncation, which is "
            f"{comparison.baseline} at the window."
        )
    return " ".join(text)


def _describe_runs(windows: Mapping[Group, int]) -> list[str]:
    """Return the seeds, step and window of each group, or once if they are the same for all."""
    described = {}
    for group, window in windows.items():
        seeds = sorted(sweep.seed for sweep in group.sweeps_at(group.newest))
        described[group.label] = (
            f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}; step {group.newest:,}; "
            f"trained at {window:,} tokens"
        )
    described.pop("", None)  # a model without a run's folder
    if len(described) > 1 and len(set(described.values())) == 1:
        return [f"All groups: {next(iter(described.values()))}."]
    return [f"{label}: {text}." for label, text in described.items()]


def describe_groups(comparison: Comparison) -> str:
    """Return the groups' labels, or only their number if there are more than four."""
    labels = [group.label for group in comparison.groups]
    return "; ".join(labels) if len(labels) <= 4 else f"{len(labels)} groups of runs"


def describe_sources(comparison: Comparison) -> list[list[str]]:
    """Return a heading, and one row per group: its runs, steps, windows, corpora, and settings."""
    has_settings = any(group.settings for group in comparison.groups)
    lines = [["group", "runs (seed)", "steps", "window", "sweep", "corpus"]]
    lines[0] += ["differs in"] * has_settings
    for group in comparison.groups:
        windows = [sweep.windows[step] for step in group.steps for sweep in group.sweeps_at(step)]
        columns = (
            [f"{sweep.run} ({sweep.seed})" for sweep in group.sweeps],
            map(str, group.steps),
            map(str, dict.fromkeys(windows)),
            dict.fromkeys(sweep.name for sweep in group.sweeps),
            sorted({row.corpus for sweep in group.sweeps for row in sweep.rows}),
        )
        settings = [describe_settings(group.settings, briefly=False)] * has_settings
        lines.append([group.label, *map(", ".join, columns), *settings])
    return lines


def sampling_text(comparison: Comparison) -> str:
    """Return what the intervals of a comparison are over, such as "documents and seeds"."""
    several = [len(group.sweeps) > 1 for group in comparison.groups]
    seeds = " and seeds" if all(several) else " and, where a group has several, seeds"
    points = [point for curve in comparison.curves for point in curve.points]
    return " and ".join(f"{kind}s" for kind in unit_kinds(points)) + seeds * any(several)


def pairing_text(points: Sequence[Point]) -> str:
    """Return how the differences of points are paired: "paired by document", or "by block"."""
    return f"paired by {' or '.join(unit_kinds(points))}"


def has_single_seeds(comparison: Comparison) -> bool:
    """Whether a group has one seed, so that its intervals say nothing about other seeds."""
    return any(len(group.sweeps) == 1 for group in comparison.groups)
