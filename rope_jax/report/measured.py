"""What was measured, as text and as tables: losses by length, and differences."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from rope_jax.comparison.curves import Comparison, Curve, Point
from rope_jax.comparison.groups import MARK, Group, describe_settings
from rope_jax.config.presentation import Show
from rope_jax.protocols import BASELINE, PROTOCOLS
from rope_jax.report.table import BELOW_TRUNCATION, Cell, Line, Table
from rope_jax.results.statistics import RELIABLE_UNITS, Estimate, UsableLength, perplexity

QUANTITIES: Mapping[Show, str] = {
    "perplexity": "perplexity",
    "nats": "nats per token",
    "bits_per_byte": "bits per byte",
}
"""What a table lists, in words."""
Plotted = Mapping[Curve, Mapping[int, Point]]
"""The points of each curve from one protocol, by length."""


def caption(protocol: str, stride: int | None, *, in_full: bool = False) -> str:
    """Return what a protocol's lengths are; in_full: with the tokens that are scored."""
    about = PROTOCOLS[protocol]
    text = about.caption.format(stride="" if stride is None else f"{stride:,}")
    return f"{text}, {about.scored}" if in_full and about.scored else text


def value_text(nll: float, bpb: float | None, show: Show) -> str:
    """Return a loss as text in the quantity to show; nats where bits per byte are unknown."""
    if show == "perplexity":
        return perplexity_text(nll)
    return f"{bpb if show == 'bits_per_byte' and bpb is not None else nll:.3f}"


def perplexity_text(nll: float) -> str:
    """Return exp(nll) as text, as a power of e if it is too large to read."""
    if nll > math.log(1e5):
        return f"e^{nll:.1f}"
    return f"{math.exp(nll):.2f}" if nll < math.log(100) else f"{math.exp(nll):,.0f}"


def interval_text(loss: Estimate, show: Show = "perplexity", digits: int = 2) -> str:
    """Return "±" and half the width of the 95% interval; "" if there is no interval.

    If that exceeds the value itself, return the interval: "[0.05, 2,981]". loss: in nats per token
    for a perplexity, otherwise in the unit to show.
    """
    if not (math.isfinite(loss.low) and math.isfinite(loss.high)):
        return ""
    shown = loss.mapped(perplexity) if show == "perplexity" else loss
    half = (shown.high - shown.low) / 2
    if half <= shown.value and math.isfinite(half):
        return half_width_text(half, digits)
    low, high = (value_text(end, end, show) for end in (loss.low, loss.high))
    return f"[{low}, {high}]"


def half_width_text(half: float, digits: int = 2) -> str:
    """Return "±" and a number with so many digits, and all before the point: "±0.57", "±150"."""
    if half < 1e-3:
        return f"±{half:.{digits}g}"
    rounded = float(f"{half:.{digits}g}")  # 0.996 to 1.0
    decimals = max(0, digits - 1 - math.floor(math.log10(rounded)))
    return f"±{half:,.{decimals}f}"


def signed_text(nats: float) -> str:
    """Return a difference in nats per token with its sign; "0" if it rounds to zero."""
    return "0" if abs(nats) < 0.0005 else f"{nats:+.3f}"


def difference_text(estimate: Estimate | None) -> str:
    """Return a difference with its interval, which need not be symmetric; "" for None."""
    if estimate is None:
        return ""
    shown, *ends = map(signed_text, estimate)
    is_known = math.isfinite(estimate.low) and math.isfinite(estimate.high)
    return f"{shown} [{', '.join(ends)}]" if is_known and {shown, *ends} != {"0"} else shown


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
    columns = {n: _column(plotted, n, comparison.show) for n in sorted(first)}
    groups = list(dict.fromkeys(curve.group for curve in plotted))
    has_settings = any(group.settings for group in groups)
    has_usable = any(curve.usable for curve in plotted) and protocol == BASELINE
    lines = []
    for place, curve in enumerate(plotted):
        label = curve.group.label, describe_settings(curve.group.settings, briefly=True)
        labels = () if comparison.only else label[: 1 + has_settings]
        cells = [cells[place] for cells in columns.values()]
        cells += [Cell(usable_text(curve.usable))] * has_usable
        lines.append(Line((*labels, curve.name), cells))
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
