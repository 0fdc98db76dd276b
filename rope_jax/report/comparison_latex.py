"""comparison.tex: the tables of a comparison for a paper, without its differences."""

import math
from collections.abc import Mapping, Sequence

from rope_jax.comparison.curves import Comparison, Point
from rope_jax.comparison.differences import describe_settings
from rope_jax.comparison.groups import MARK, Group
from rope_jax.config.presentation import Show
from rope_jax.protocols import BASELINE
from rope_jax.report.comparison_cells import (
    EMPTY,
    best_at,
    cell,
    sampling_text,
    units_of,
    units_text,
)
from rope_jax.report.comparison_report import PlottedCurve, format_usable, points_of
from rope_jax.report.latex import escape_latex, format_tabular, latex_value
from rope_jax.report.text import QUANTITIES, caption, perplexity_text
from rope_jax.results.statistics import RELIABLE_UNITS


def format_latex(comparison: Comparison) -> str:
    """Return one tabular environment per protocol, with a rule between groups of runs.

    Each is for a table environment in a paper; the comments above it say what a caption has to.
    """
    curves = [curve for curve in comparison.curves if curve.is_newest]
    protocols = dict.fromkeys(point.protocol for curve in curves for point in curve.points)
    return "\n".join(_format_protocol(protocol, comparison) for protocol in protocols)


def _format_protocol(protocol: str, comparison: Comparison) -> str:
    curves = [curve for curve in comparison.curves if curve.is_newest]
    plotted = points_of(protocol, curves)
    lengths = sorted({length for one in plotted for length in one.points})
    has_usable = protocol == BASELINE and any(one.curve.usable for one in plotted)
    has_settings = any(one.curve.group.settings for one in plotted)
    best = best_at([one.curve for one in plotted], protocol, comparison.show)
    blocks: list[list[list[str]]] = []
    for group in dict.fromkeys(one.curve.group for one in plotted):
        names = [escape_latex(group.label)]
        if has_settings:
            names.append(escape_latex(describe_settings(group.settings, briefly=True)))
        block = []
        for one in plotted:
            if one.curve.group is not group:
                continue
            line = [*names, escape_latex(one.curve.name)]
            for length in lengths:
                point = one.points.get(length)
                shown = EMPTY if point is None else cell(point, comparison.show)
                is_best = shown.value == best.get(length) and not group.marked
                line.append(latex_value(shown.value, shown.interval, is_best=is_best))
            block.append([*line, *[escape_latex(format_usable(one.curve))] * has_usable])
            names = [""] * len(names)  # written once
        blocks.append(block)
    truncation = _truncation(plotted, lengths, comparison.show) if len(blocks) == 1 else []
    if truncation:
        first = ["truncation", *[""] * (1 + has_settings)]
        blocks.append([[*first, *truncation, *[""] * has_usable]])
    notes = [protocol, *_notes(plotted, comparison, protocol, has_usable=has_usable)]
    if truncation:
        window = plotted[0].curve.window
        notes.append(f"Truncation: only the last {window:,} tokens are kept.")
    notes.append(r"Needs \usepackage{booktabs}.")
    heading = ["runs", *["differs in"] * has_settings, "scaling", *(f"{n:,}" for n in lengths)]
    heading += ["usable"] * has_usable
    return format_tabular(heading, blocks, left=2 + has_settings, notes=notes)


def _truncation(plotted: Sequence[PlottedCurve], lengths: Sequence[int], show: Show) -> list[str]:
    """Return a cell for each length: what truncation to the window gives; empty if unknown."""
    points = [point for one in plotted for point in one.points.values()]
    known = [p for p in points if p.gain is not None and math.isfinite(p.gain.value)]
    if not known:
        return []
    text = _truncation_text(known[0], show)
    window = plotted[0].curve.window
    return [latex_value(text, "", is_best=False) if n >= window else "" for n in lengths]


def _truncation_text(point: Point, show: Show) -> str:
    """Return the value of truncation, from a point and its gain over truncation."""
    assert point.gain is not None
    nll = point.nll + point.gain.value
    if show == "perplexity":
        return perplexity_text(nll)
    scale = 1.0 if show == "nats" else point.bits_per_nat
    return "" if scale is None else f"{scale * nll:.3f}"


def _notes(
    plotted: Sequence[PlottedCurve], comparison: Comparison, protocol: str, *, has_usable: bool
) -> list[str]:
    """Return what a caption has to say, in sentences."""
    groups = list(dict.fromkeys(one.curve.group for one in plotted))
    rows = [row for group in groups for sweep in group.sweeps for row in sweep.rows]
    of_protocol = [row for row in rows if row.protocol == protocol]
    splits = " and ".join(dict.fromkeys(row.split for row in of_protocol))
    points = [point for one in plotted for point in one.points.values()]
    counts = [(point.units, point.documents) for point in points]
    # the fewest and the most
    units = " to ".join(dict.fromkeys(units_text(*n) for n in (min(counts), max(counts))))
    notes = [
        f"{QUANTITIES[comparison.show].capitalize()} by "
        f"{caption(protocol, of_protocol[0].stride)}; {splits} split, {units}. "
        f"± half of the 95% interval, by resampling {sampling_text(comparison)}. "
        "The best of each column is bold."
    ]
    if min(counts)[0] < RELIABLE_UNITS:
        notes.append(f"{units_of(points).capitalize()} are too few for a reliable interval.")
    notes += _describe_runs({one.curve.group: one.curve.window for one in plotted})
    if any(group.marked for group in groups):
        notes.append(f"{MARK} cannot be compared.")
    if has_usable:
        notes.append(
            "Usable: the longest length up to which the loss, at the upper end of its interval, "
            f"stays within {comparison.tolerance:g} nats per token of truncation, which is "
            f"{comparison.baseline} at the window."
        )
    return notes


def _describe_runs(windows: Mapping[Group, int]) -> list[str]:
    """Return the seeds, step and window of each group, or once if they are the same for all."""
    described = {}
    for group, window in windows.items():
        seeds = sorted(sweep.seed for sweep in group.sweeps_at(group.newest))
        described[group.label] = (
            f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}; step {group.newest:,}; "
            f"trained at {window:,} tokens"
        )
    if len(set(described.values())) == 1:
        which = "All groups" if len(described) > 1 else "Runs"
        return [f"{which}: {next(iter(described.values()))}."]
    return [f"{label}: {text}." for label, text in described.items()]
