"""The figures of comparisons and sweeps: a mean over seeds, its interval, each seed as a thin line.

Up to six curves share a panel: colours for scalings, dashes for groups of runs, or colours for
groups that have one and the same curve. More have one panel per scaling or per group, whichever
compares several in most panels and at most six; else each has one, with the others in grey.
"""

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from rope_jax.comparison.curves import Comparison, Curve, Point, compare_checkpoints
from rope_jax.comparison.groups import MARK, Group, describe_settings
from rope_jax.comparison.read import SweepFiles, read_results
from rope_jax.config.presentation import FigureWidth, RedrawConfig
from rope_jax.errors import UserError
from rope_jax.plots.panels import (
    add_legend,
    fold_text,
    fold_title,
    label_lowest,
    label_powers,
    make_grid,
    mark_windows,
    panel_columns,
    scale_lengths,
)
from rope_jax.plots.saving import figure_files, save_output
from rope_jax.plots.style import (
    BACKGROUND,
    BAND_OPACITY,
    MARKERS,
    MOST_CURVES,
    NOTE,
    REFERENCE,
    SMALL_SIZE,
    WIDTHS,
    LineStyle,
    assign_styles,
    distinct_styles,
    figure_style,
)
from rope_jax.protocols import BASELINE, PROTOCOLS
from rope_jax.report.measured import describe_groups, truncation_levels, units_text
from rope_jax.results.rows import Row
from rope_jax.results.summary import CheckpointSummary
from rope_jax.rope.files import read_limited

_MOST_STEPS_IN_LEGEND = 12  # of more checkpoints, the legend names evenly spaced ones
_MOST_BYTES = 2**26
# One dash pattern each, in the notations of matplotlib and plotly.
_DASHES: tuple[tuple[Any, str], ...] = (
    ("-", "solid"),
    ("--", "dash"),
    (":", "dot"),
    ("-.", "dashdot"),
    ((0, (9, 2)), "14px,3px"),
    ((0, (1, 3)), "2px,6px"),
    ((0, (6, 2, 1, 2, 1, 2)), "9px,3px,2px,3px,2px,3px"),
    ((0, (3, 4)), "5px,7px"),
)
_TRUNCATION: dict[str, Any] = {"color": "0.4", "linestyle": ":", "linewidth": 1.1}
_ROW_HEIGHTS: Mapping[FigureWidth, Mapping[int, float]] = {
    "column": {1: 2.3, 2: 1.35},
    "page": {1: 2.9, 2: 2.1, 3: 1.65, 4: 1.3},
}
"""Inches, by the number of panels in a row."""
_MOST_NATS = 700  # e^700 is nearly the largest float; matplotlib warns of infinities
# With more curves in a panel than this, bands become fainter.
_MOST_FULL_BANDS = 4


@dataclass(frozen=True)
class Plan:
    """Which panel shows which curves, and what explains their styles.

    key: by curve, the title of its panel; "" if there is one panel per protocol. legend: by label,
    the styles to explain. apart: whether each panel shows one curve in front of the others.
    reference: by curve, the dashed one that its panel shows as well, if any. has_intervals: whether
    intervals, seeds and truncation are drawn.
    """

    key: Mapping[Curve, str]
    styles: Mapping[Curve, LineStyle]
    legend: Mapping[str, LineStyle]
    apart: bool = False
    reference: Mapping[Curve, Curve] = field(default_factory=dict)
    has_intervals: bool = True

    @property
    def most(self) -> int:
        """The number of curves in the fullest panel."""
        return max(Counter(self.key.values()).values())

    @property
    def compares(self) -> bool:
        """Whether most panels have several curves, and none too many."""
        counts = Counter(self.key.values()).values()
        return self.most <= MOST_CURVES and 2 * sum(n > 1 for n in counts) > len(counts)


def draw_comparison(comparison: Comparison, *, title: str | None = None) -> Figure:
    """Draw each group's newest checkpoint; title: in place of one that names the groups.

    Of a single sweep, curves with a fixed factor are dashed.
    """
    width = comparison.figure_width
    curves = comparison.newest
    plan = _plan(comparison, curves)
    panels = {(point.protocol, plan.key[curve]) for curve in curves for point in curve.points}
    if comparison.only and len(panels) == 1:  # as the right ends, which are beside it
        ends = {curve.name: curve.points[-1].nll for curve in curves}
        legend = sorted(plan.legend.items(), key=lambda entry: -ends[entry[0]])
        plan = replace(plan, legend=dict(legend))
    meanings = _meanings(plan, curves, comparison)
    title = _title(comparison, width) if title is None else title
    return draw_plan(plan, meanings, title=title, width=width)


def _plan(comparison: Comparison, curves: Sequence[Curve]) -> Plan:
    groups, by_name = comparison.groups, assign_curve_styles(curves)
    if comparison.only:
        for curve in curves:  # a factor above 1 that is the same at every length
            if curve.name != "trained" and not curve.auto and (curve.points[-1].factor or 1) > 1:
                by_name[curve.name] = replace(by_name[curve.name], linestyle="--")
    key = shared_key(groups)
    names = {group.label: describe_group(group, key=key) for group in groups}
    titles_of = {group.label: describe_group(group, "\n", key=key) for group in groups}
    by_group = assign_group_styles(comparison)
    styles = {c: by_group[c.group.label] if by_group else by_name[c.name] for c in curves}
    if len(curves) <= MOST_CURVES:
        if by_group:
            legend = {names[label]: style for label, style in by_group.items()}
            return Plan(dict.fromkeys(curves, ""), styles, legend)
        legend = dict(by_name)
        if len(groups) > 1 or groups[0].marked:
            dashes = {group.label: dash_of(group, groups)[0] for group in groups}
            styles = {c: replace(s, linestyle=dashes[c.group.label]) for c, s in styles.items()}
            legend |= {names[label]: LineStyle("0.3", "", dash) for label, dash in dashes.items()}
        return Plan(dict.fromkeys(curves, ""), styles, legend)
    by_label = distinct_styles([group.label for group in groups])
    legend = {names[label]: style for label, style in by_label.items()}
    own = {curve: by_label[curve.group.label] for curve in curves}
    per_scaling = Plan({curve: curve.name for curve in curves}, own, legend)
    own = {curve: by_name[curve.name] for curve in curves}
    per_group = Plan({curve: titles_of[curve.group.label] for curve in curves}, own, by_name)
    for plan in (per_scaling, per_group):
        if plan.compares:
            return plan
    titles = {curve: curve.label for curve in curves}
    if by_group:
        titles = dict(per_group.key)
    elif len(groups) == 1:
        titles = dict(per_scaling.key)
    baselines = {curve.group: curve for curve in curves if curve.name == comparison.baseline}
    reference = {c: baselines[c.group] for c in curves if baselines.get(c.group, c) is not c}
    return Plan(titles, styles, {}, apart=True, reference=reference)


def shared_key(groups: Sequence[Group]) -> str | None:
    """Return the key in which all groups differ, if there is one and no other."""
    keys = {key for group in groups for key in group.settings}
    return keys.pop() if len(keys) == 1 and all(group.settings for group in groups) else None


def describe_group(group: Group, separator: str = "", *, key: str | None = None) -> str:
    """Return a group's label with what distinguishes it: "wide (rope.base 500000)".

    separator: in place of the parentheses. key: the title names it, so only its value is written.
    """
    if not group.settings:
        return group.label
    text = describe_settings(group.settings, briefly=True) if key is None else group.settings[key]
    if separator:
        return f"{group.label}{separator}{text}"
    if group.label.endswith(" seeds)"):
        return f"{group.label[:-1]}; {text})"
    return f"{group.label} ({text})"


def _meanings(plan: Plan, curves: Sequence[Curve], comparison: Comparison) -> list[Artist]:
    handles: list[Artist] = []
    if plan.reference:
        whose = " of the same runs" if len(comparison.groups) > 1 else ""
        label = f"{comparison.baseline}{whose}"
        handles.append(Line2D([], [], label=label, **vars(REFERENCE)))
    if plan.apart:
        others = "the other scalings" if comparison.only else "the others"
        handles.append(Line2D([], [], label=others, color=BACKGROUND, linewidth=0.9))
    if any(len(point.nll_by_seed) > 1 for curve in curves for point in curve.points):
        handles.append(Line2D([], [], color="0.3", linewidth=0.5, label="each seed"))
    if plan.apart or not comparison.only:
        handles.append(Patch(color="0.4", alpha=BAND_OPACITY, linewidth=0, label="95% interval"))
    return handles


def assign_curve_styles(curves: Sequence[Curve]) -> dict[str, LineStyle]:
    """Return a style for each scaling by name, without dashes, which distinguish groups."""
    kinds: dict[str, str] = {}
    for curve in curves:
        kinds.setdefault(curve.name, "trained" if curve.name == "trained" else curve.kind)
    return assign_styles(kinds)


def assign_group_styles(comparison: Comparison) -> dict[str, LineStyle]:
    """Return a style for each group by label, if all have the same single curve; else none."""
    groups = comparison.groups
    if len(groups) < 2 or len({curve.name for curve in comparison.curves}) > 1:
        return {}
    return distinct_styles([group.label for group in groups])


def dash_of(group: Group, groups: Sequence[Group]) -> tuple[Any, str]:
    """Return a group's dash pattern; from the ninth group on, they repeat."""
    return _DASHES[groups.index(group) % len(_DASHES)]


def _title(comparison: Comparison, width: FigureWidth) -> str:
    groups, key = comparison.groups, shared_key(comparison.groups)
    by = "" if key is None else f", by {key}"
    title = describe_groups(comparison) + by
    if len(groups) > 1 and "\n" in fold_title(title, WIDTHS[width]):
        title = f"{len(groups)} groups of runs{by}"  # legend, panels or labels name them
    if any(group.marked for group in groups):
        title += f"\n{MARK} CANNOT BE COMPARED with the groups before it; comparison.md says why"
    return title


def draw_plan(plan: Plan, meanings: Sequence[Artist], *, title: str, width: FigureWidth) -> Figure:
    """Draw curves in panels; meanings: what the legend has behind `plan.legend`."""
    points = [point for curve in plan.key for point in curve.points]
    windows = sorted({curve.window for curve in plan.key})
    levels = truncation_levels(plan.key) if plan.has_intervals else {}
    protocols = list(dict.fromkeys(point.protocol for point in points))
    keys = list(dict.fromkeys(plan.key.values()))
    is_by_key = keys != [""]
    if is_by_key and len(protocols) == 1:  # the panels' titles are the keys alone
        title += f"\n{PROTOCOLS[protocols[0]].title}"
    panels = list(itertools.product(protocols, keys))
    count = len(keys) if is_by_key else len(protocols)  # with keys, each protocol begins a row
    columns = panel_columns(count, width)
    inches = WIDTHS[width] / columns  # of a panel
    headings = []
    for protocol, key in panels:
        heading = f"{key}\n{protocol}" if key and len(protocols) > 1 else key
        heading = heading or PROTOCOLS[protocol].title
        headings.append(fold_text(heading, max(20, int(14 * inches))))
    row_height = _ROW_HEIGHTS[width][columns]
    row_height += 0.13 * max(heading.count("\n") for heading in headings)
    if not is_by_key and columns > 1:  # every row of panels has labels below it
        row_height += 0.3
    with figure_style():
        blocks = len(panels) // count
        figure, axes = make_grid(
            count, columns, blocks=blocks, row_height=row_height, title=title, width=width
        )
        limits = _limits(points, list(levels), has_intervals=plan.has_intervals)
        # once, not in each panel: matplotlib repeats for all panels whatever is set in one
        axes[0].set_yscale("log")
        axes[0].set_ylim(*limits)
        label_powers(axes[0].yaxis, *limits)
        for number, (protocol, key) in enumerate(panels):
            axis, place = axes[number], number % count
            at = [point for point in points if point.protocol == protocol]
            scale_lengths(axis, sorted({point.last_position for point in at}), 0.75 * inches)
            label = "length (tokens)" if inches < 2 else "context length (tokens)"
            if PROTOCOLS[protocol].by_position:
                label = "position"
            if is_by_key:
                label_lowest(axis, label, place, count, columns)
            else:
                axis.set_xlabel(label)
            # labels of windows are between the title and the panel
            axis.set_title(headings[number], pad=3 if is_by_key and place >= columns else 11)
            mark_windows(axis, windows, with_label=not is_by_key or place == 0)
            if place % columns == 0:
                axis.set_ylabel("perplexity")
            # beside an empty place, it would move the panels of the next column to the right
            if place % columns == columns - 1:
                _add_bits_per_byte_axis(axis, at)
            _draw_panel(axis, protocol, key, plan)
        handles: list[Artist] = [
            Line2D([], [], label=fold_text(label, int(13 * WIDTHS[width])), **vars(style))
            for label, style in plan.legend.items()
        ]
        handles += meanings
        if levels and BASELINE in protocols:
            handles.append(Line2D([], [], label="truncation to the window", **_TRUNCATION))
        if len(windows) > 1:
            mark: dict[str, Any] = {"marker": "|", "markersize": 8, "markeredgewidth": 0.8}
            mark |= {"linestyle": "none", "color": "0.6"}
            handles.append(Line2D([], [], label="training window", **mark))
        add_legend(figure, handles, may_be_beside=len(axes) == 1)
    return figure


def _draw_panel(axis: Axes, protocol: str, key: str, plan: Plan) -> None:
    def draw(curve: Curve, style: LineStyle, *, opacity: float = 0.0, **settings: Any) -> None:
        own = [point for point in curve.points if point.protocol == protocol]
        if not own:
            return
        x, (middle, low, high) = [point.last_position for point in own], _perplexities(own)
        axis.plot(x, middle, **(vars(style) | settings))
        if opacity and len(x) > 1:
            axis.fill_between(x, low, high, color=style.color, alpha=opacity, linewidth=0)
        elif opacity:  # a band needs two points
            axis.vlines(x, low, high, color=style.color, alpha=0.5, linewidth=style.linewidth)
        if opacity and len(own[0].nll_by_seed) > 1:
            thin = replace(style, marker="", linewidth=0.5)
            with np.errstate(over="ignore"):
                seeds = np.exp([point.nll_by_seed for point in own])
            axis.plot(x, seeds, alpha=0.6, **vars(thin))

    shown = [curve for curve, title in plan.key.items() if title == key]
    if plan.apart:
        references = [plan.reference[curve] for curve in shown if curve in plan.reference]
        for curve, style in plan.styles.items():
            if curve not in (*references, *shown):
                grey = replace(style, color=BACKGROUND, marker="", linewidth=0.7)
                draw(curve, grey, zorder=1.2)
        for curve in references:
            draw(curve, REFERENCE, label=curve.label)
    opacity = BAND_OPACITY * min(1, _MOST_FULL_BANDS / plan.most) * plan.has_intervals
    for curve in shown:
        draw(curve, plan.styles[curve], opacity=opacity, label=curve.label)
    levels = truncation_levels(shown) if protocol == BASELINE and plan.has_intervals else {}
    for nll, labels in levels.items():
        # of several, each in its group's colour if that has one
        own = {plan.styles[curve].color for curve in shown if [curve.group.label] == labels}
        colour = {"color": own.pop()} if len(levels) > 1 and len(own) == 1 else {}
        axis.axhline(np.exp(nll), zorder=1.6, **(_TRUNCATION | colour))


def _perplexities(points: Sequence[Point]) -> NDArray[np.float64]:
    """Return perplexities and the ends of their intervals, [3, points]; nan above e^700."""
    nll = np.array([(point.nll, point.ci_low, point.ci_high) for point in points]).T
    return np.exp(np.where(nll > _MOST_NATS, np.nan, nll))


def _limits(
    points: Sequence[Point], truncation: Sequence[float], *, has_intervals: bool
) -> tuple[float, float]:
    """Return the vertical limits that all panels share.

    They include every finite point and truncation line. Intervals, if drawn, may widen them on
    either side by half the points' logarithmic range, or by a factor of 1.5 if that is more: an
    interval over a few documents can be orders of magnitude wider than the curve.
    """
    values = np.append(_perplexities(points)[0], np.exp(truncation))
    values = values[np.isfinite(values)]
    if not values.size:
        return 1.0, 10.0
    low, high = values.min(), values.max()
    if has_intervals:
        room = max(math.sqrt(high / low), 1.5)
        ends = _perplexities(points)[1:].ravel()
        values = np.append(values, np.clip(ends, low / room, high * room))
    low, high = np.nanmin(values), np.nanmax(values)
    margin = max(1.05, (high / low) ** 0.05)
    return float(low / margin), float(high * margin)


def _add_bits_per_byte_axis(axis: Axes, points: Sequence[Point]) -> None:
    """Add a right-hand axis in bits per byte, if the points have them and score the same bytes."""
    ratios = [point.nll / point.bpb for point in points if point.bpb and math.isfinite(point.bpb)]
    if not ratios or np.ptp(ratios) > 1e-9 * ratios[0]:  # one axis cannot show several
        return
    nats_per_bpb = ratios[0]  # nats per token that equal one bit per byte

    def to_bits(perplexity: Any) -> Any:
        return np.log(np.maximum(perplexity, 1e-9)) / nats_per_bpb

    def to_perplexity(bits: Any) -> Any:  # matplotlib also asks for values far off the page
        return np.exp(np.clip(np.multiply(bits, nats_per_bpb), -700, 700))

    right = axis.secondary_yaxis("right", functions=(to_bits, to_perplexity))
    low, high = to_bits(axis.get_ylim())
    ticks = MaxNLocator(5).tick_values(low, high)
    right.set_yticks([tick for tick in ticks if low <= tick <= high])
    right.yaxis.set_major_formatter("{x:g}")
    right.minorticks_off()
    right.set_ylabel("bits per byte", fontsize=SMALL_SIZE, color=NOTE)
    right.tick_params(colors=NOTE)
    right.spines["right"].set_visible(False)


def draw_sweep(
    rows: Sequence[Row], checkpoints: Sequence[CheckpointSummary], *, width: FigureWidth
) -> dict[str, Figure]:
    """Return the figures of a sweep by file name: curve.png, and steps.png of several checkpoints.

    rows: of all checkpoints. checkpoints: the newest first.
    """
    newest = checkpoints[0]
    first = next(row for row in rows if row.step == newest.step)
    scored = f"{first.split} split, {units_text(first.units, first.documents)}"
    title = f"{newest.run}, step {newest.step}: trained at {newest.window:,} tokens; {scored}"
    of_newest = [row for row in rows if row.step == newest.step]
    comparison = compare_checkpoints(of_newest, [newest], figure_width=width)
    figures = {"curve.png": draw_comparison(comparison, title=title)}
    if len(checkpoints) > 1:
        title = f"{newest.run}, by training step; {scored}"
        figures["steps.png"] = draw_checkpoints(rows, checkpoints, title=title, width=width)
    return figures


def draw_checkpoints(
    rows: Sequence[Row],
    checkpoints: Sequence[CheckpointSummary],
    *,
    title: str,
    width: FigureWidth = "page",
) -> Figure:
    """Draw how curves evolve in training: one line per checkpoint, dark to light.

    Each scaling has a panel for each protocol; each protocol starts a new row of panels.
    """
    curves = sorted(compare_checkpoints(rows, checkpoints).curves, key=lambda curve: curve.step)
    steps = sorted({curve.step for curve in curves})
    # the lightest colours of the map are too faint on white
    colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.85, len(steps)))
    styles = {
        step: LineStyle(to_hex(colour), MARKERS[place % len(MARKERS)], linewidth=1.0)
        for place, (step, colour) in enumerate(zip(steps, colours, strict=True))
    }
    chosen = np.linspace(0, len(steps) - 1, min(len(steps), _MOST_STEPS_IN_LEGEND))
    plan = Plan(
        key={curve: curve.name for curve in curves},
        styles={curve: styles[curve.step] for curve in curves},
        legend={f"step {steps[i]:,}": styles[steps[i]] for i in chosen.round().astype(int)},
        has_intervals=False,
    )
    return draw_plan(plan, [], title=title, width=width)


def redraw(path: Path, config: RedrawConfig) -> list[Path]:
    """Draw the figures of a sweep's folder or of a table like results.csv; return the files.

    The windows are those of summary.json, or, of a table without one, `config.window`.
    """
    folder = path if path.is_dir() else path.parent
    summary = folder / "summary.json"
    has_summary = path.is_dir() or (path.name == "results.csv" and summary.exists())
    if has_summary and config.window is not None:
        raise UserError(
            f"window: {summary} says at which window the model was trained; leave window out"
        )
    place = folder / "curve.png" if config.output is None else Path(config.output)
    if place.suffix != ".png":
        raise UserError(f"output: {place} should end in .png")
    if path.is_dir():
        rows = SweepFiles(folder).rows()
    else:
        try:
            content = read_limited(path, _MOST_BYTES)
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})") from None
        # no figure needs these
        rows = read_results(path, content, dict.fromkeys(("corpus", "bos", "targets"), ""))
    if has_summary:
        steps = {row.step for row in rows}
        found, _ = SweepFiles(folder).summary()
        checkpoints = [checkpoint for checkpoint in found if checkpoint.step in steps]
        if not checkpoints:
            raise UserError(f"{summary}: names no step of the results; sweep again")
    elif config.window is None:
        raise UserError(
            f"window: {path} does not say at which window the model was trained; give it, such as "
            "window=256"
        )
    else:
        checkpoints = _checkpoints(rows, config.window)
    written: list[Path] = []
    for name, figure in draw_sweep(rows, checkpoints, width=config.figure_width).items():
        beside = "steps.png" if place.name == "curve.png" else f"{place.stem}-steps.png"
        file = place if name == "curve.png" else place.with_name(beside)
        save_output(figure, file)
        written += figure_files(file)
    return written


def _checkpoints(rows: Sequence[Row], window: int) -> list[CheckpointSummary]:
    """Return what a table without a summary says of its checkpoints."""
    at_window = {
        row.step: row.nll
        for row in reversed(rows)
        if (row.name, row.protocol, row.length) == ("trained", BASELINE, window)
        and math.isfinite(row.nll)
    }
    steps = sorted({row.step for row in rows}, reverse=True)
    return [CheckpointSummary(rows[0].run, step, window, at_window.get(step)) for step in steps]
