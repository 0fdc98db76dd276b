"""The figures of comparisons and sweeps: a mean over seeds, its interval, each seed as a thin line.

Up to six curves share a panel: colours for scalings, dashes for groups of runs, or colours for
groups that have one and the same curve. More are divided among panels, one per scaling or, of more
than six groups, one per group. A panel of a single curve has the others behind it in grey.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
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
from rope_jax.comparison.groups import MARK, describe_settings
from rope_jax.config.presentation import FigureWidth
from rope_jax.evaluation.results import NO_ORIGIN, SweepResult, rows
from rope_jax.plots import panels, style
from rope_jax.plots.style import LineStyle
from rope_jax.protocols import BASELINE, PROTOCOLS
from rope_jax.report.measured import describe_groups, truncation_levels, units_text
from rope_jax.results.summary import CheckpointSummary

_MAX_STEPS_IN_LEGEND = 12  # of more checkpoints, the legend names evenly spaced ones
# One dash pattern per group; from the ninth on, they repeat.
_DASHES: tuple[Any, ...] = ("-", "--", ":", "-.")
_DASHES += ((0, (9, 2)), (0, (1, 3)), (0, (6, 2, 1, 2, 1, 2)), (0, (3, 4)))
_TRUNCATION: dict[str, Any] = {"color": "0.4", "linestyle": ":", "linewidth": 1.1}
_ROW_HEIGHTS: Mapping[FigureWidth, Mapping[int, float]] = {
    "column": {1: 2.3, 2: 1.35},
    "page": {1: 2.9, 2: 2.1, 3: 1.65, 4: 1.3},
}
"""Inches, by the number of panels in a row."""
_MAX_NATS = 700  # e^700 is nearly the largest float; matplotlib warns of infinities
# With more curves in a panel than this, bands become fainter.
_MAX_FULL_BANDS = 4


@dataclass(frozen=True)
class FigureLayout:
    """Which panel shows which curves, and what explains their styles.

    panel_of: by curve, the title of its panel; "" if there is one panel per protocol. legend: by
    label, the styles to explain. with_others: whether a panel of a single curve shows the others in
    grey, and the baseline of the same runs dashed. has_intervals: whether intervals, seeds and
    truncation are drawn.
    """

    comparison: Comparison
    panel_of: Mapping[Curve, str]
    styles: Mapping[Curve, LineStyle]
    legend: Mapping[str, LineStyle]
    with_others: bool = False
    has_intervals: bool = True

    @property
    def is_above(self) -> bool:
        """Whether nats above truncation are drawn, and not perplexities."""
        return self.comparison.how.show == "above_truncation"

    @property
    def alone(self) -> list[Curve]:
        """The curves that have others in grey behind them."""
        counts = Counter(self.panel_of.values())
        return [c for c, panel in self.panel_of.items() if self.with_others and counts[panel] == 1]


def draw_comparison(comparison: Comparison, *, title: str | None = None) -> Figure:
    """Draw each group's newest checkpoint; title: in place of one that names the groups."""
    curves = _drawn(comparison, comparison.newest)
    layout = _layout(comparison, curves)
    shown = {(point.protocol, layout.panel_of[curve]) for curve in curves for point in curve.points}
    if comparison.only and len(shown) == 1:  # as the right ends, which are beside it
        ends = {curve.name: curve.points[-1].nll for curve in curves}
        legend = sorted(layout.legend.items(), key=lambda entry: -ends[entry[0]])
        layout = replace(layout, legend=dict(legend))
    return _draw(layout, _title(comparison) if title is None else title)


def _drawn(comparison: Comparison, curves: Sequence[Curve]) -> list[Curve]:
    """Return curves as the figure shows them: with the points that are known above truncation."""
    if comparison.how.show != "above_truncation":
        return list(curves)
    cut = [
        replace(curve, points=tuple(p for p in curve.points if p.above_truncation is not None))
        for curve in curves
    ]
    return [curve for curve in cut if curve.points]


def _layout(comparison: Comparison, curves: Sequence[Curve]) -> FigureLayout:
    groups, by_name = comparison.groups, assign_curve_styles(comparison)
    by_group = assign_group_styles(comparison)
    settings = {g.label: describe_settings(g.settings, briefly=True) for g in groups}
    names = {label: ": ".join(filter(None, [label, text])) for label, text in settings.items()}
    styles = curve_styles(comparison, curves)
    legend = {names[label]: look for label, look in by_group.items()} or dict(by_name)
    if len(curves) <= style.MAX_CURVES:
        if not by_group and (len(groups) > 1 or groups[0].marked):
            dashes = {names[c.group.label]: look.linestyle for c, look in styles.items()}
            legend |= {label: LineStyle("0.3", "", dash) for label, dash in dashes.items()}
        return FigureLayout(comparison, dict.fromkeys(curves, ""), styles, legend)
    if by_group or len(groups) > style.MAX_CURVES:
        panel_of = {curve: names[curve.group.label] for curve in curves}
        if by_group:
            legend = {}
        else:
            styles = {curve: by_name[curve.name] for curve in curves}
    else:
        panel_of = {curve: curve.name for curve in curves}
        legend = {}
        if len(groups) > 1:
            distinct = _distinct_styles(comparison)
            styles = {curve: distinct[curve.group.label] for curve in curves}
            legend = {names[label]: look for label, look in distinct.items()}
    return FigureLayout(comparison, panel_of, styles, legend, with_others=True)


def _legend(layout: FigureLayout) -> list[Artist]:
    comparison = layout.comparison
    letters = int(13 * style.WIDTHS[comparison.how.figure_width])
    lines = {panels.fold_text(label, letters): vars(look) for label, look in layout.legend.items()}
    if layout.alone:
        baseline = comparison.baseline
        if any(curve.name == baseline for curve in layout.panel_of):
            whose = "" if len(comparison.groups) == 1 else " of the same runs"
            lines[f"{baseline}{whose}"] = vars(style.REFERENCE)
        others = "the other scalings" if comparison.only else "the others"
        lines[others] = {"color": style.BACKGROUND, "linewidth": 0.9}
    points = [point for curve in layout.panel_of for point in curve.points]
    if any(len(point.nll_by_seed) > 1 for point in points) and not layout.is_above:
        lines["each seed"] = {"color": "0.3", "linewidth": 0.5}
    handles: list[Artist] = [Line2D([], [], label=label, **look) for label, look in lines.items()]
    if layout.with_others or not comparison.only:
        band: dict[str, Any] = {"alpha": style.BAND_OPACITY, "linewidth": 0}
        handles.append(Patch(color="0.4", label="95% interval", **band))
    if _levels(layout, layout.panel_of) and any(p.protocol == BASELINE for p in points):
        whose = "of the other runs" if layout.is_above else "to the window"
        handles.append(Line2D([], [], label=f"truncation {whose}", **_TRUNCATION))
    if len({curve.window for curve in layout.panel_of}) > 1:
        handles.append(panels.tick_handle("training window", "0.6", 0.8))
    return handles


def curve_styles(comparison: Comparison, curves: Sequence[Curve]) -> dict[Curve, LineStyle]:
    """Return a style for each curve: its scaling's colour and its group's dash.

    Or its group's colour, if all groups have the same single curve.
    """
    by_group = assign_group_styles(comparison)
    if by_group:
        return {curve: by_group[curve.group.label] for curve in curves}
    by_name, groups = assign_curve_styles(comparison), comparison.groups
    styles = {curve: by_name[curve.name] for curve in curves}
    if len(groups) == 1 and not groups[0].marked:
        return styles
    dashes = dict(zip([g.label for g in groups], itertools.cycle(_DASHES), strict=False))
    return {c: replace(look, linestyle=dashes[c.group.label]) for c, look in styles.items()}


def assign_curve_styles(comparison: Comparison) -> dict[str, LineStyle]:
    """Return a style for each scaling by what it is called."""
    kinds: dict[str, str] = {}
    chosen: dict[str, str] = {}
    for curve in comparison.curves:
        kinds.setdefault(curve.name, curve.kind)
        if curve.entry in comparison.how.colors:
            chosen[curve.name] = comparison.how.colors[curve.entry]
    return style.assign_styles(kinds, chosen)


def assign_group_styles(comparison: Comparison) -> dict[str, LineStyle]:
    """Return a style for each group by label, if all have the same single curve; else none."""
    if len(comparison.groups) < 2 or len({curve.name for curve in comparison.curves}) > 1:
        return {}
    return _distinct_styles(comparison)


def _distinct_styles(comparison: Comparison) -> dict[str, LineStyle]:
    looks = zip(itertools.cycle(style.PALETTE), itertools.cycle(style.MARKERS), strict=False)
    chosen = comparison.how.colors
    return {
        group.label: LineStyle(chosen.get(group.name, colour), marker)
        for group, (colour, marker) in zip(comparison.groups, looks, strict=False)
    }


def _title(comparison: Comparison) -> str:
    groups, title = comparison.groups, describe_groups(comparison)
    inches = style.WIDTHS[comparison.how.figure_width]
    if len(groups) > 1 and "\n" in panels.fold_title(title, inches):
        title = f"{len(groups)} groups of runs"  # legend, panels or labels name them
    if any(group.marked for group in groups):
        title += f"\n{MARK} CANNOT BE COMPARED with the groups before it; comparison.md says why"
    return title


def _draw(layout: FigureLayout, title: str) -> Figure:
    how = layout.comparison.how
    width = how.figure_width
    points = [point for curve in layout.panel_of for point in curve.points]
    windows = sorted({curve.window for curve in layout.panel_of})
    protocols = list(dict.fromkeys(point.protocol for point in points))
    keys = list(dict.fromkeys(layout.panel_of.values()))
    is_by_key = keys != [""]
    if is_by_key and len(protocols) == 1:  # the panels' titles are the keys alone
        title += f"\n{PROTOCOLS[protocols[0]].title}"
    if not how.figure.title:
        title = ""
    shown = list(itertools.product(protocols, keys))
    count = len(keys) if is_by_key else len(protocols)  # with keys, each protocol begins a row
    columns = panels.panel_columns(count, width)
    inches = style.WIDTHS[width] / columns  # of a panel
    headings = []
    for protocol, key in shown:
        heading = f"{key}\n{protocol}" if key and len(protocols) > 1 else key
        if not heading and (how.figure.title or count > 1):
            heading = PROTOCOLS[protocol].title
        headings.append(panels.fold_text(heading, max(20, int(14 * inches))))
    row_height = _ROW_HEIGHTS[width][columns]
    row_height += 0.13 * max(heading.count("\n") for heading in headings)
    if not is_by_key and columns > 1:  # every row of panels has labels below it
        row_height += 0.3
    grid: dict[str, Any] = {"blocks": len(shown) // count, "row_height": row_height}
    with style.figure_style():
        figure, axes = panels.make_grid(count, columns, **grid, title=title, width=width)
        limits = vertical_limits(
            _values(points, layout),
            _levels(layout, layout.panel_of),
            is_above=layout.is_above,
            has_intervals=layout.has_intervals,
        )
        # once, not in each panel: matplotlib repeats for all panels whatever is set in one
        if not layout.is_above:
            axes[0].set_yscale("log")
            axes[0].set_ylim(*limits)
            panels.label_powers(axes[0].yaxis, *limits)
        for number, (axis, (protocol, key)) in enumerate(zip(axes, shown, strict=True)):
            in_block = number % count
            at = [point for point in points if point.protocol == protocol]
            panels.scale_lengths(axis, sorted({point.last_position for point in at}), 0.75 * inches)
            label = PROTOCOLS[protocol].axis_label
            if inches < 2:
                label = label.removeprefix("context ")
            if is_by_key:
                panels.label_lowest(axis, label, in_block, count, columns)
            else:
                axis.set_xlabel(label)
            # labels of windows are between the title and the panel
            axis.set_title(headings[number], pad=3 if is_by_key and in_block >= columns else 11)
            panels.mark_windows(axis, windows, with_label=not is_by_key or in_block == 0)
            if layout.is_above:
                axis.axhline(0, **style.ZERO_LINE)
            if in_block % columns == 0 and layout.is_above:
                what = "nats per token above truncation"
                panels.scale_nats(axis.yaxis, *limits, 0.85 * row_height, what)
            elif in_block % columns == 0:
                axis.set_ylabel("perplexity")
            # beside an empty in_block, it would move the panels of the next column to the right
            if in_block % columns == columns - 1 and not layout.is_above:
                _add_bits_per_byte_axis(axis, at)
            _draw_panel(axis, protocol, key, layout)
        panels.add_legend(figure, _legend(layout), may_be_beside=len(axes) == 1)
    return figure


def _draw_panel(axis: Axes, protocol: str, title: str, layout: FigureLayout) -> None:
    def draw(curve: Curve, look: LineStyle, *, opacity: float = 0.0, **settings: Any) -> None:
        points = [point for point in curve.points if point.protocol == protocol]
        if not points:
            return
        x, (middle, low, high) = [p.last_position for p in points], _values(points, layout)
        axis.plot(x, middle, **(vars(look) | settings))
        if opacity and len(x) > 1:
            axis.fill_between(x, low, high, color=look.color, alpha=opacity, linewidth=0)
        elif opacity:  # a band needs two points
            axis.vlines(x, low, high, color=look.color, alpha=0.5, linewidth=look.linewidth)
        if opacity and len(points[0].nll_by_seed) > 1 and not layout.is_above:
            thin = replace(look, marker="", linewidth=0.5)
            with np.errstate(over="ignore"):
                seeds = np.exp([point.nll_by_seed for point in points])
            axis.plot(x, seeds, alpha=0.6, **vars(thin))

    shown = [curve for curve, panel in layout.panel_of.items() if panel == title]
    if shown[0] in layout.alone:
        for curve, look in layout.styles.items():
            if curve is shown[0]:
                continue
            if curve.name == layout.comparison.baseline and curve.group is shown[0].group:
                draw(curve, style.REFERENCE, label=curve.label)
            else:
                grey = replace(look, color=style.BACKGROUND, marker="", linewidth=0.7)
                draw(curve, grey, zorder=1.2)
    opacity = 0.0
    if layout.has_intervals:
        fullest = max(Counter(layout.panel_of.values()).values())
        opacity = style.BAND_OPACITY * min(1, _MAX_FULL_BANDS / fullest)
    for curve in shown:
        draw(curve, layout.styles[curve], opacity=opacity, label=curve.label)
    levels = _levels(layout, shown) if protocol == BASELINE else []
    for level in levels:
        axis.axhline(level, zorder=1.6, **_TRUNCATION)


def _levels(layout: FigureLayout, curves: Iterable[Curve]) -> list[float]:
    """Return what truncation gives the groups, as the vertical axis shows it.

    The zero of losses above truncation, which is that of the first group, is left out.
    """
    if not layout.has_intervals:
        return []
    levels = truncation_levels(curves)
    if not layout.is_above:
        return [math.exp(nll) for nll in levels]
    zero = next(iter(truncation_levels(layout.panel_of)), 0.0)
    return [nll - zero for nll in levels if nll != zero]


def _values(points: Sequence[Point], layout: FigureLayout) -> NDArray[np.float64]:
    """Return what the vertical axis shows, and the ends of intervals: [3, points].

    Perplexities above e^700 are nan.
    """
    if layout.is_above:
        return np.array([point.above_truncation for point in points], float).reshape(-1, 3).T
    nll = np.array([(point.nll, point.ci_low, point.ci_high) for point in points]).T
    return np.exp(np.where(nll > _MAX_NATS, np.nan, nll))


def vertical_limits(
    values: NDArray[np.float64],
    marked: Sequence[float],
    *,
    is_above: bool,
    has_intervals: bool = True,
) -> tuple[float, float]:
    """Return limits for values and the ends of their intervals, [3, points].

    They include every finite value and marked one. Intervals, if drawn, may widen them on either
    side by half the values' range on the axis, or by a factor of 1.5 if that is more: an interval
    over a few documents can be orders of magnitude wider than the curve. The axis is logarithmic
    or, of differences (is_above), that of `scale_nats`.
    """
    if is_above:
        to, back, least = lambda x: np.arcsinh(np.divide(x, 0.02)), lambda x: 0.02 * np.sinh(x), 0.5
    else:
        to, back, least = np.log, np.exp, math.log(1.5)
    middle, *ends = to(values)
    shown = np.append(middle, to(marked))
    shown = shown[np.isfinite(shown)]
    if not shown.size:
        return (-1.0, 1.0) if is_above else (1.0, 10.0)
    low, high = shown.min(), shown.max()
    if has_intervals:
        room = max((high - low) / 2, least)
        shown = np.append(shown, np.clip(ends, low - room, high + room))
    low, high = np.nanmin(shown), np.nanmax(shown)
    margin = max(math.log(1.05), 0.05 * (high - low))
    return float(back(low - margin)), float(back(high + margin))


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
    right.set_ylabel("bits per byte", fontsize=style.SMALL_SIZE, color=style.NOTE)
    right.tick_params(colors=style.NOTE)
    right.spines["right"].set_visible(False)


def draw_sweep(comparison: Comparison) -> dict[str, Figure]:
    """Return the figures of a sweep by file name: curve.png, and steps.png of several checkpoints.

    comparison: by `compare_checkpoints`.
    """
    (sweep,), point = comparison.sweeps, comparison.newest[0].points[0]
    step, scored = max(sweep.windows), units_text(point.units, point.documents)
    scored = f"{sweep.rows[0].split} split, {scored}"
    trained = f"trained at {sweep.windows[step]:,} tokens"
    title = f"{sweep.run}, step {step}: {trained}; {scored}"
    figures = {"curve.png": draw_comparison(comparison, title=title)}
    if len(sweep.windows) > 1:
        title = f"{sweep.run}, by training step; {scored}"
        figures["steps.png"] = draw_checkpoints(comparison, title=title)
    return figures


def draw_result(result: SweepResult, *, title: str = "") -> Figure:
    """Draw what was measured over context length, as `rope-jax sweep` draws curve.png.

    result: by `rope_jax.evaluation.sweep`.
    """
    nll = None if result.baseline is None else result.baseline.sums.mean()
    checkpoint = CheckpointSummary(run="", step=0, window=result.window, nll_at_window=nll)
    comparison = compare_checkpoints(rows(result, NO_ORIGIN), [checkpoint], result.config)
    return draw_comparison(comparison, title=title)


def draw_checkpoints(comparison: Comparison, *, title: str) -> Figure:
    """Draw how the curves of a sweep evolve in training: one line per checkpoint, dark to light.

    Each scaling has a panel for each protocol; each protocol starts a new row of panels.
    """
    curves = sorted(_drawn(comparison, comparison.curves), key=lambda curve: curve.step)
    steps = sorted({curve.step for curve in curves})
    # the lightest colours of the map are too faint on white
    colours = map(to_hex, matplotlib.colormaps["viridis"](np.linspace(0, 0.85, len(steps))))
    looks = zip(colours, itertools.cycle(style.MARKERS), strict=False)
    styles = {s: LineStyle(*look, linewidth=1.0) for s, look in zip(steps, looks, strict=True)}
    chosen = np.linspace(0, len(steps) - 1, min(len(steps), _MAX_STEPS_IN_LEGEND))
    layout = FigureLayout(
        comparison,
        panel_of={curve: curve.name for curve in curves},
        styles={curve: styles[curve.step] for curve in curves},
        legend={f"step {steps[i]:,}": styles[steps[i]] for i in chosen.round().astype(int)},
        has_intervals=False,
    )
    return _draw(layout, title)
