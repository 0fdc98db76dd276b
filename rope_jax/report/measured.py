"""What was measured, as text and as tables: losses by length, and differences."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from rope_jax.comparison.curves import Comparison, Curve, Point
from rope_jax.comparison.groups import MARK, Group, describe_settings
from rope_jax.config.presentation import Show
from rope_jax.console import signed_text
from rope_jax.protocols import BASELINE, PROTOCOLS
from rope_jax.protocols.base import RELIABLE_UNITS
from rope_jax.report.table import Cell, Line, Table
from rope_jax.results.statistics import Estimate, UsableLength, perplexity

QUANTITIES: Mapping[str, str] = {
    "perplexity": "perplexity",
    "nats": "nats per token",
    "bits_per_byte": "bits per byte",
    "above_truncation": "nats per token above truncation",
}
Plotted = Mapping[Curve, Mapping[int, Point]]
"""The points of each curve from one protocol, by length."""


def shown_by(comparison: Comparison, protocol: str) -> Show:
    """Return the quantity to show of a protocol: nats where truncation scores other tokens."""
    is_unknown = comparison.how.show == "above_truncation" and protocol != BASELINE
    return "nats" if is_unknown else comparison.how.show


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


def difference_cell(estimate: Estimate | None) -> Cell:
    """Return a difference with its interval, which need not be symmetric; empty for None."""
    if estimate is None:
        return Cell()
    value, *ends = map(signed_text, estimate)
    is_known = math.isfinite(estimate.low) and math.isfinite(estimate.high)
    shows_more = is_known and {value, *ends} != {"0.000"}
    return Cell(value, f"[{', '.join(ends)}]" if shows_more else "")


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


def units_text(units: int, documents: int) -> str:
    """Return what an interval resamples: "64 documents", or "33 blocks of 3 documents"."""
    text = f"{documents:,} document{'s' * (documents != 1)}"
    return text if units <= documents else f"{units:,} blocks of {text}"


def _unit_kinds(points: Iterable[Point]) -> list[str]:
    """Return what the intervals of points resample: "document", "block", or both."""
    kinds = {"block" if point.units > point.documents else "document" for point in points}
    return sorted(kinds, reverse=True)


def plotted_by(protocol: str, curves: Iterable[Curve]) -> Plotted:
    """Return the curves that have points from a protocol, with these points."""
    plotted = {c: {p.length: p for p in c.points if p.protocol == protocol} for c in curves}
    return {curve: points for curve, points in plotted.items() if points}


def _all_points(plotted: Plotted) -> list[Point]:
    return [point for points in plotted.values() for point in points.values()]


def measured_table(comparison: Comparison, protocol: str, *, every_step: bool = False) -> Table:
    """Return a line per curve and a column per length, of each group's newest checkpoint.

    Below the curves of a single group stands truncation to its window. every_step: of every
    checkpoint, without truncation.
    """
    every = sorted(comparison.curves, key=lambda curve: curve.step)
    plotted = plotted_by(protocol, every if every_step else comparison.newest)
    show, points = shown_by(comparison, protocol), _all_points(plotted)
    first = {point.length: point.first_position for point in points}
    truncation: dict[int, Estimate] = {}
    if protocol == BASELINE and len(comparison.groups) == 1 and not every_step:
        truncation = _truncation(plotted, show)
    columns = {n: _column(plotted, n, show, truncation.get(n)) for n in sorted(first)}
    has_usable = any(curve.usable for curve in plotted) and protocol == BASELINE
    labels, lines = _labels(comparison, plotted), []
    if every_step:
        labels["step"] = lambda curve: f"step {curve.step:,}"
    for number, curve in enumerate(plotted):
        cells = [cells[number] for cells in columns.values()]
        cells += [Cell(usable_text(curve.usable))] * has_usable
        lines.append(Line(tuple(label(curve) for label in labels.values()), cells))
    if every_step:
        names = [line.labels[0] for line in lines]
        lines.sort(key=lambda line: names.index(line.labels[0]))
    below = []
    if truncation:
        below.append(Line(("truncation",), [cells[-1] for cells in columns.values()]))
    by_position = PROTOCOLS[protocol].by_position
    headings = [f"{first[n]:,}–{n:,}" if by_position else f"{n:,}" for n in columns]
    return Table(
        title=protocol,
        about=_about(comparison, plotted, protocol),
        labels=tuple(labels),
        columns=(*headings, *["usable"] * has_usable),
        lines=lines,
        below=below,
        intervals=_intervals_text(comparison, points, show, lines),
        notes=() if every_step else tuple(_notes(comparison, plotted, protocol)),
    )


def _labels(comparison: Comparison, plotted: Plotted) -> dict[str, Callable[[Curve], str]]:
    """Return what the first columns of a table say of a curve, by their headings."""
    labels: dict[str, Callable[[Curve], str]] = {}
    if len(comparison.groups) > 1:
        labels["runs"] = lambda curve: curve.group.label
    if len({curve.name for curve in plotted}) > 1 or not labels:
        labels["scaling"] = lambda curve: curve.name
    return labels


def _truncation(plotted: Plotted, show: Show) -> dict[int, Estimate]:
    """Return what truncation gives at each length from the window on, if it is known and not 0."""
    levels, points = truncation_levels(plotted), _all_points(plotted)
    if not levels or show == "above_truncation":
        return {}
    window, unit = next(iter(plotted)).window, 1.0
    if show == "bits_per_byte":
        units = (p.bpb / p.nll for p in points if p.bpb and math.isfinite(p.bpb))
        unit = next(units, 1.0)
    level = Estimate(unit * levels[0], math.nan, math.nan)
    return {point.length: level for point in points if point.length >= window}


def _about(comparison: Comparison, plotted: Plotted, protocol: str) -> str:
    """Return what a table lists, by which lengths, and why it is not the quantity asked for."""
    points, about = _all_points(plotted), PROTOCOLS[protocol]
    show = shown_by(comparison, protocol)
    text = QUANTITIES[show]
    if show != comparison.how.show:
        text += ", as truncation scores other tokens,"
    names = {curve.name for curve in plotted}
    if len(names) == 1 and len(comparison.groups) > 1:
        text += f" of {names.pop()}"
    stride = points[0].stride
    text += f" by {about.caption.format(stride='' if stride is None else f'{stride:,}')}"
    if about.scored:
        text += f", {about.scored}"
    return text


def _intervals_text(
    comparison: Comparison, points: Sequence[Point], show: Show, lines: Sequence[Line]
) -> str:
    text = f"± half of the 95% interval over {sampling_text(comparison)}"
    if show == "above_truncation":
        text += f", {pairing_text(points)}"
    if any("[" in cell.interval for line in lines for cell in line.cells):
        text += ", or [ ] its ends where half of it exceeds the value"
    return text


def _notes(comparison: Comparison, plotted: Plotted, protocol: str) -> Iterator[str]:
    """Yield what explains a table of the newest checkpoints besides intervals and marks."""
    curves, points = list(plotted), _all_points(plotted)
    rows = [row for sweep in comparison.sweeps for row in sweep.rows if row.protocol == protocol]
    splits = " and ".join(dict.fromkeys(row.split for row in rows))
    # windows of different lengths rarely cover the same tokens
    tokens = sorted(point.tokens for point in points)
    shown = " to ".join(f"{n:,}" for n in dict.fromkeys((tokens[0], tokens[-1])))
    counts = [(point.units, point.documents) for point in points]
    units = " to ".join(dict.fromkeys(units_text(*n) for n in (min(counts), max(counts))))
    yield f"{splits} split, {shown} tokens in {units}"
    if not comparison.only and any(len(group.sweeps) == 1 for group in comparison.groups):
        yield "one seed says nothing about other seeds"
    if any(curve.group.marked for curve in curves):
        yield f"{MARK} cannot be compared"
    is_above = shown_by(comparison, protocol) == "above_truncation"
    has_truncation = protocol == BASELINE and len(comparison.groups) == 1
    if is_above or (has_truncation and truncation_levels(curves)):
        yield f"truncation: only the last {curves[0].window:,} tokens are kept"
    if protocol == BASELINE and any(curve.usable for curve in curves):
        yield (
            f"usable: the longest length with a loss within {comparison.tolerance:g} nats per "
            "token of truncation, at the upper end of its interval"
        )
        if any(curve.usable and not curve.usable.is_known for curve in curves):
            yield "no interval: too few documents or blocks to know whether a longer one is usable"
    yield from _describe_runs({curve.group: curve.window for curve in curves})


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
        above = value if show == "above_truncation" else point.above_own
        is_below = point.units >= RELIABLE_UNITS and above is not None and above.at_most < 0
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


def truncation_levels(curves: Iterable[Curve]) -> list[float]:
    """Return what truncation to the window costs the groups, in nats, each value once."""
    levels = [curve.truncation for curve in curves if curve.truncation is not None]
    return list(dict.fromkeys(round(nll, 9) for nll in levels))


def difference_tables(comparison: Comparison, protocol: str) -> Iterator[Table]:
    """Yield a table for each kind of difference that is known, in nats per token."""
    plotted = plotted_by(protocol, comparison.newest)
    points = _all_points(plotted)
    lengths = sorted({point.length for point in points})
    several = len(comparison.groups) > 1
    first = next((group for group in comparison.groups if not group.marked), None)
    abouts = {
        "difference": f"the difference from {comparison.baseline} at the same length",
        "from_first": "the difference from the same scaling of the first group",
        "above_own": "the loss above truncation to the window of the same runs",
        "above_truncation": "the loss above truncation to the window of the first group",
    }
    if not several:
        del abouts["above_own"]
        abouts["above_truncation"] = "the loss above truncation to the window"
    if comparison.how.show == "above_truncation":  # the first table has it
        del abouts["above_truncation"]
    labels = _labels(comparison, plotted)
    for name, about in abouts.items():
        lines = []
        for curve, by_length in plotted.items():
            if name == "above_own" and curve.group is first:  # above_truncation is the same
                continue
            estimates = [getattr(by_length[n], name) if n in by_length else None for n in lengths]
            if any(estimates):
                cells = [difference_cell(estimate) for estimate in estimates]
                lines.append(Line(tuple(label(curve) for label in labels.values()), cells))
        if lines:
            yield Table(
                title="",
                about=f"{about}, in nats per token, {pairing_text(points)}",
                labels=tuple(labels),
                columns=tuple(f"{n:,}" for n in lengths),
                lines=lines,
                intervals="[ ] the 95% interval",
            )


def _describe_runs(windows: Mapping[Group, int]) -> list[str]:
    """Return the seeds, step and window of each group, or once if they are the same for all."""
    described = {}
    for group, window in windows.items():
        seeds = sorted(sweep.seed for sweep in group.sweeps_at(group.newest))
        described[group.label] = (
            f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}, step {group.newest:,}, "
            f"trained at {window:,} tokens"
        )
        if group.settings:
            described[group.label] += f", {describe_settings(group.settings, briefly=True)}"
    described.pop("", None)  # a model without a run's folder
    if len(described) > 1 and len(set(described.values())) == 1:
        return [f"all groups: {next(iter(described.values()))}"]
    return [f"{label}: {text}" for label, text in described.items()]


def describe_groups(comparison: Comparison) -> str:
    """Return the groups' labels, or only their number if there are more than four."""
    labels = [group.label for group in comparison.groups]
    return "; ".join(labels) if len(labels) <= 4 else f"{len(labels)} groups of runs"


def sources_table(comparison: Comparison) -> Table:
    """Return one line per group: its runs, steps, windows, corpora, and settings."""
    headings = ["group", "runs (seed)", "steps", "window", "sweep", "corpus"]
    has_settings = any(group.settings for group in comparison.groups)
    headings += ["differs in"] * has_settings
    lines = []
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
        lines.append(Line((group.label, *map(", ".join, columns), *settings), []))
    return Table("", "", tuple(headings), (), lines)


def sampling_text(comparison: Comparison) -> str:
    """Return what the intervals of a comparison are over, such as "documents and seeds"."""
    several = [len(group.sweeps) > 1 for group in comparison.groups]
    points = [point for curve in comparison.curves for point in curve.points]
    text = " and ".join(f"{kind}s" for kind in _unit_kinds(points))
    if not any(several):
        return text
    return f"{text} and seeds" if all(several) else f"{text} and, where a group has several, seeds"


def pairing_text(points: Sequence[Point]) -> str:
    """Return how the differences of points are paired: "paired by document", or "by block"."""
    return f"paired by {' or '.join(_unit_kinds(points))}"
