"""What was measured, as text and as tables: losses by length, and differences."""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rope_jax.comparison.curves import Comparison, Curve, Point
from rope_jax.comparison.groups import MARK, Group, describe_settings
from rope_jax.config.presentation import Show
from rope_jax.console import signed_text
from rope_jax.protocols import BASELINE, PROTOCOLS
from rope_jax.report.table import BELOW_TRUNCATION, Cell, Line, Table
from rope_jax.results.statistics import RELIABLE_UNITS, Estimate, UsableLength, perplexity

QUANTITIES: Mapping[str, str] = {
    "perplexity": "perplexity",
    "nats": "nats per token",
    "bits_per_byte": "bits per byte",
    "above_truncation": "nats per token above truncation",
}
"""What a table lists, in words."""
Plotted = Mapping[Curve, Mapping[int, Point]]
"""The points of each curve from one protocol, by length."""


def caption(protocol: str, stride: int | None, *, in_full: bool = False) -> str:
    """Return what a protocol's lengths are; in_full: with the tokens that are scored."""
    about = PROTOCOLS[protocol]
    text = about.caption.format(stride="" if stride is None else f"{stride:,}")
    return f"{text}, {about.scored}" if in_full and about.scored else text


def shown_by(comparison: Comparison, protocol: str) -> Show:
    """Return the quantity to show of a protocol: nats where truncation scores other tokens."""
    is_unknown = comparison.how.show == "above_truncation" and protocol != BASELINE
    return "nats" if is_unknown else comparison.how.show


def quantity_text(comparison: Comparison, protocol: str) -> str:
    """Return what a table of a protocol lists, in words, and why it is not what was asked for."""
    show = shown_by(comparison, protocol)
    text = QUANTITIES[show]
    return text if show == comparison.how.show else f"{text}, as truncation scores other tokens,"


def value_text(value: float, show: Show, decimals: int = 3) -> str:
    """Return a loss as text; a perplexity, from nats, as a power of e above 100,000."""
    if show == "above_truncation":
        return signed_text(value, decimals)
    if show == "perplexity":
        return f"e^{value:.1f}" if value > math.log(1e5) else f"{math.exp(value):,.{decimals}f}"
    return f"{value:.{decimals}f}"


def interval_text(loss: Estimate, show: Show = "perplexity", decimals: int = 2) -> str:
    """Return "±" and half the width of the 95% interval; "" if there is no interval.

    If that exceeds the value itself, or the value is a power of e, return the interval: "[0.05,
    2,981.00]"; not of differences.
    loss: in nats per token for a perplexity, otherwise in the unit to show.
    """
    if not (math.isfinite(loss.low) and math.isfinite(loss.high)):
        return ""
    shown = loss.mapped(perplexity) if show == "perplexity" else loss
    half = (shown.high - shown.low) / 2
    if show == "above_truncation" or half <= shown.value <= 1e5:
        return f"±{half:,.{decimals}f}"
    return f"[{value_text(loss.low, show, decimals)}, {value_text(loss.high, show, decimals)}]"


def difference_text(estimate: Estimate | None) -> str:
    """Return a difference with its interval, which need not be symmetric; "" for None."""
    if estimate is None:
        return ""
    shown, *ends = map(signed_text, estimate)
    is_known = math.isfinite(estimate.low) and math.isfinite(estimate.high)
    return f"{shown} [{', '.join(ends)}]" if is_known and {shown, *ends} != {"0.000"} else shown


def usable_text(usable: UsableLength | None) -> str:
    """Return a usable length as text; "" if it was not measured.

    "≥ 1,024" if the last tested length passes, "none" if the window fails, "512 (no interval)" if
    the next length has no interval, "–" if the window itself has none.
    """
    if usable is None:
        return ""
    if usable.length is None:
        return "none" if usable.is_known else "–"
    if not usable.is_known:
        return f"{usable.length:,} (no interval)"
    return f"{'≥ ' if usable.is_last else ''}{usable.length:,}"


def effective_text(
    length: int | None, at_least: int | None, at_most: int | None, is_last: bool
) -> str:
    """Return an `EffectiveLength`: "512 [256, 1,024]", "none" if the shortest length fails, or
    "≥ 2,048" if the longest passes; without an interval where its ends are equal.
    """

    shown, low, high = ("none" if n is None else f"{n:,}" for n in (length, at_least, at_most))
    return "≥ " * is_last + shown + (f" [{low}, {high}]" if low != high else "")


def documents_text(documents: int) -> str:
    """Return "1 document" or "64 documents"."""
    return f"{documents:,} document{'s' * (documents != 1)}"


def units_text(units: int, documents: int) -> str:
    """Return what an interval resamples: "64 documents", or "33 blocks of 3 documents"."""
    text = documents_text(documents)
    return text if units <= documents else f"{units:,} blocks of {text}"


def unit_kinds(points: Iterable[Point]) -> list[str]:
    """Return what the intervals of points resample: "document", "block", or both."""
    kinds = {"block" if point.units > point.documents else "document" for point in points}
    return sorted(kinds, reverse=True)


def plotted_by(protocol: str, curves: Iterable[Curve]) -> Plotted:
    """Return the curves that have points from a protocol, with these points."""
    plotted = {c: {p.length: p for p in c.points if p.protocol == protocol} for c in curves}
    return {curve: points for curve, points in plotted.items() if points}


def _all_points(plotted: Plotted) -> list[Point]:
    return [point for points in plotted.values() for point in points.values()]


def measured_table(comparison: Comparison, protocol: str) -> Table:
    """Return a line per curve and a column per length, of each group's newest checkpoint.

    Below the curves of a single group stands truncation to its window.
    """
    plotted = plotted_by(protocol, comparison.newest)
    points = _all_points(plotted)
    first = {point.length: point.first_position for point in points}
    show, levels = shown_by(comparison, protocol), truncation_levels(plotted)
    has_usable = any(curve.usable for curve in plotted) and protocol == BASELINE
    has_truncation = protocol == BASELINE and len(comparison.groups) == 1 and bool(levels)
    truncation: dict[int, Estimate] = {}
    if has_truncation and show != "above_truncation":  # it would be 0
        window = next(iter(plotted)).window
        units = (p.bpb / p.nll for p in points if p.bpb and math.isfinite(p.bpb))
        unit = next(units, 1.0) if show == "bits_per_byte" else 1.0
        level = Estimate(unit * next(iter(levels)), math.nan, math.nan)
        truncation = dict.fromkeys((n for n in first if n >= window), level)
    columns = {n: _column(plotted, n, show, truncation.get(n)) for n in sorted(first)}
    lines = []
    for number, curve in enumerate(plotted):
        cells = [cells[number] for cells in columns.values()]
        cells += [Cell(usable_text(curve.usable))] * has_usable
        lines.append(Line((*_runs(comparison, curve), curve.name), cells))
    by_position = PROTOCOLS[protocol].by_position
    table = Table(
        title=protocol,
        caption="",
        labels=(*_runs(comparison), "scaling"),
        columns=tuple(f"{first[n]:,}–{n:,}" if by_position else f"{n:,}" for n in columns),
        lines=lines,
        details=("usable",) * has_usable,
        below=[Line(("truncation",), [cells[-1] for cells in columns.values()])][: len(truncation)],
    )
    return dataclasses.replace(table, caption=_caption(comparison, plotted, table))


def _column(plotted: Plotted, length: int, show: Show, truncation: Estimate | None) -> list[Cell]:
    """Return a cell for each curve, and for truncation; the lowest value is marked as the best.

    Marked groups do not compete. What most curves share, as inside the window, is not the best.
    """
    points = [by_length.get(length) for by_length in plotted.values()]
    losses = [loss(point, show) for point in points]
    cells, competing = loss_cells([*losses, truncation], show), {}
    for number, (curve, point, value) in enumerate(zip(plotted, points, losses, strict=True)):
        if point is None or value is None:
            continue
        is_below = point.is_below_truncation
        if show == "above_truncation":  # of the first group
            is_below = point.units >= RELIABLE_UNITS and value.at_most < 0
        cells[number] = cells[number]._replace(is_below=is_below)
        if not curve.group.marked and not math.isnan(value.value):
            competing[number] = value.value
    if competing:
        best = cells[min(competing, key=competing.__getitem__)].value
        sharing = [number for number in competing if cells[number].value == best]
        if 2 * len(sharing) <= len(competing):
            for number in sharing:
                cells[number] = cells[number]._replace(is_best=True)
    return cells


def loss(point: Point | None, show: Show) -> Estimate | None:
    """Return a point's loss in the unit to show, but nats for a perplexity; None: unknown."""
    if point is None:
        return None
    if show == "above_truncation":
        return point.above_truncation
    if show != "bits_per_byte":
        return Estimate(point.nll, point.ci_low, point.ci_high)
    if point.bpb is None or point.bpb_low is None or point.bpb_high is None:
        return None
    return Estimate(point.bpb, point.bpb_low, point.bpb_high)


def loss_cells(losses: Iterable[Estimate | None], show: Show = "perplexity") -> list[Cell]:
    """Return the cells of a column: each value and its interval, all with the same decimals.

    losses: in nats per token for a perplexity, otherwise in the unit to show.
    """
    losses, decimals = list(losses), 3
    if show == "perplexity":
        has_small = any(loss is not None and loss.value < math.log(100) for loss in losses)
        decimals = 2 if has_small else 0
    return [
        Cell()
        if loss is None
        else Cell(value_text(loss.value, show, decimals), interval_text(loss, show, decimals))
        for loss in losses
    ]


def truncation_levels(curves: Iterable[Curve]) -> dict[float, list[str]]:
    """Return the labels of the groups by what truncation to the window costs them, in nats."""
    levels = {c.group.label: c.truncation for c in curves if c.truncation is not None}
    groups: dict[float, list[str]] = {}
    for label, nll in levels.items():
        groups.setdefault(round(nll, 9), []).append(label)
    return groups


def difference_tables(comparison: Comparison, protocol: str) -> Iterator[Table]:
    """Yield a table for each kind of difference that is known, in nats per token."""
    plotted = plotted_by(protocol, comparison.newest)
    points = _all_points(plotted)
    lengths = sorted({point.length for point in points})
    columns = tuple(f"{n:,}" for n in lengths)
    several = len(comparison.groups) > 1
    first = next((group for group in comparison.groups if not group.marked), None)
    abouts = {
        "difference": f"The difference from {comparison.baseline} at the same length",
        "from_first": "The difference from the same scaling of the first group",
        "above_own": "The loss above truncation to the window of the same runs",
        "above_truncation": "The loss above truncation to the window of the first group",
    }
    if not several:
        del abouts["above_own"]
        abouts["above_truncation"] = "The loss above truncation to the window"
    if comparison.how.show == "above_truncation":  # the first table has it
        del abouts["above_truncation"]
    for name, about in abouts.items():
        lines = []
        for curve, by_length in plotted.items():
            if name == "above_own" and curve.group is first:  # above_truncation is the same
                continue
            estimates = [getattr(by_length[n], name) if n in by_length else None for n in lengths]
            if any(estimates):
                cells = [Cell(difference_text(estimate)) for estimate in estimates]
                lines.append(Line((*_runs(comparison, curve), curve.name), cells))
        if lines:
            about = f"{about}, in nats per token, {pairing_text(points)}; [ ] the 95% interval."
            yield Table(protocol, about, (*_runs(comparison), "scaling"), columns, lines)


def _runs(comparison: Comparison, curve: Curve | None = None) -> tuple[str, ...]:
    """Return a label that names a curve's runs, or its heading; none in a sweep's own tables."""
    label = "runs" if curve is None else curve.group.label
    return () if comparison.only else (label,)


def _caption(comparison: Comparison, plotted: Plotted, table: Table) -> str:
    points, groups = _all_points(plotted), list(dict.fromkeys(curve.group for curve in plotted))
    counts = [(point.units, point.documents) for point in points]
    units = " to ".join(dict.fromkeys(units_text(*n) for n in (min(counts), max(counts))))
    rows = [row for group in groups for sweep in group.sweeps for row in sweep.rows]
    splits = " and ".join(dict.fromkeys(r.split for r in rows if r.protocol == table.title))
    by = caption(table.title, points[0].stride, in_full=True)
    show = shown_by(comparison, table.title)
    half = f"± half of the 95% interval over {sampling_text(comparison)}"
    if show == "above_truncation":
        half += f", {pairing_text(points)}"
    else:
        half += ", or the interval itself where half of it exceeds the value"
    what = quantity_text(comparison, table.title).capitalize()
    text = [f"{what} by {by}; {splits} split, {units}.", f"{half}."]
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
    if table.below or show == "above_truncation":
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
