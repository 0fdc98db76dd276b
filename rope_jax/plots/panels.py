"""Panels of perplexity over context length with common limits: by protocol, or also by curve."""

import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

from rope_jax.comparison.curves import Point
from rope_jax.config.presentation import FigureWidth
from rope_jax.plots.saving import ShownFigure
from rope_jax.plots.style import (
    BACKGROUND,
    BAND_OPACITY,
    NOTE,
    REFERENCE,
    SMALL_SIZE,
    WIDTHS,
    LineStyle,
)
from rope_jax.protocols import PROTOCOLS

_TRUNCATION: dict[str, Any] = {"color": "0.4", "linestyle": ":", "linewidth": 1.1}
_WINDOW: dict[str, Any] = {"color": "0.6", "linewidth": 0.8}
_ROW_HEIGHTS: Mapping[FigureWidth, Mapping[int, float]] = {
    "column": {1: 2.3, 2: 1.35},
    "page": {1: 2.9, 2: 2.1, 3: 1.65, 4: 1.3},
}
"""Inches, by the number of panels in a row."""
_LINE_HEIGHT = 0.155  # inches, of a title or a legend
_LETTER = 0.6 * SMALL_SIZE / 72  # inches, the mean width of a letter of the small size
_MOST_NATS = 700  # e^700 is nearly the largest float; matplotlib warns of infinities


@dataclass(frozen=True)
class Panels:
    """A figure's panels by protocol and key, and its width in inches."""

    figure: ShownFigure
    axes: Mapping[tuple[str, str], Axes]
    width: float


def perplexities(points: Sequence[Point]) -> NDArray[np.float64]:
    """Return perplexities and the ends of their intervals, [3, points]; nan above e^700."""
    nll = np.array([(point.nll, point.ci_low, point.ci_high) for point in points]).T
    return np.exp(np.where(nll > _MOST_NATS, np.nan, nll))


def make_panels(
    points: Sequence[Point],
    *,
    windows: Sequence[int],
    truncation: Sequence[float],
    banded: Sequence[Point],
    title: str,
    width: FigureWidth,
    keys: Sequence[str] | None = None,
) -> Panels:
    """Make a figure with panels scaled for the points, with marks but without curves.

    windows: training windows, marked in every panel. truncation, banded: NLLs at the window and
    points with intervals, for which the limits make room. keys: titles of the panels that each
    protocol has; None: one panel.
    """
    protocols = list(dict.fromkeys(point.protocol for point in points))
    blocks = [[(protocol, "") for protocol in protocols]]
    if keys is not None:  # each protocol starts a row
        blocks = [[(protocol, key) for key in keys] for protocol in protocols]
    columns = panel_columns(len(blocks[0]), width)
    rows_each = -(-len(blocks[0]) // columns)
    inches = WIDTHS[width]
    panel = inches / columns
    headings = {
        (protocol, key): _panel_title(protocol, key, len(protocols), panel)
        for block in blocks
        for protocol, key in block
    }
    title = fold_title(title, inches)
    if keys is not None and len(protocols) == 1:  # the panels' titles are the keys alone
        title += f"\n{PROTOCOLS[protocols[0]].title}"
    row_height = _ROW_HEIGHTS[width][columns]
    row_height += 0.13 * max(heading.count("\n") for heading in headings.values())
    if keys is None and columns > 1:  # every row of panels has labels below it
        row_height += 0.3
    height = rows_each * len(blocks) * row_height + 0.4 + _LINE_HEIGHT * (title.count("\n") + 1)
    figure = ShownFigure(figsize=(inches, height), layout="constrained")
    figure.suptitle(title)
    grid = figure.subplots(rows_each * len(blocks), columns, sharey=True, squeeze=False)
    limits = shared_limits(points, truncation=truncation, banded=banded)
    # once, not in each panel: matplotlib repeats for all panels whatever is set in one
    grid[0, 0].set_yscale("log")
    grid[0, 0].set_ylim(*limits)
    label_powers(grid[0, 0].yaxis, *limits)
    axes: dict[tuple[str, str], Axes] = {}
    for block, of_block in zip(blocks, np.split(grid, len(blocks)), strict=True):
        for axis in of_block.ravel()[len(block) :]:
            axis.set_visible(False)
        for place, ((protocol, key), axis) in enumerate(zip(block, of_block.flat, strict=False)):
            axes[protocol, key] = axis
            at = [point for point in points if point.protocol == protocol]
            scale_lengths(axis, sorted({point.last_position for point in at}), 0.75 * panel)
            label = "length (tokens)" if panel < 2 else "context length (tokens)"
            if PROTOCOLS[protocol].by_position:
                label = "position"
            if keys is None:
                axis.set_xlabel(label)
            else:
                label_lowest(axis, label, place, len(block), columns)
            # labels of windows are between the title and the panel
            has_labels = keys is None or place < columns
            axis.set_title(headings[protocol, key], pad=11 if has_labels else 3)
            mark_windows(axis, windows, with_label=keys is None or place == 0)
            if place % columns == 0:
                axis.set_ylabel("perplexity")
            # beside an empty place, it would move the panels of the next column to the right
            if place % columns == columns - 1:
                _add_bits_per_byte_axis(axis, at)
    return Panels(figure, axes, inches)


def finish_panels(panels: Panels, handles: Sequence[Artist]) -> None:
    """Add the legend, beside a single panel or below, once the curves are drawn."""
    labels = [str(handle.get_label()) for handle in handles]
    if not labels:
        return
    if len(panels.axes) == 1 and _LETTER * _widest(labels) < 0.25 * panels.width:
        panels.figure.legend(handles=handles, loc="outside right center")
        return
    columns = legend_columns(labels, panels.width)
    panels.figure.legend(handles=handles, loc="outside lower center", ncols=columns)
    rows = -(-len(labels) // columns) * max(label.count("\n") + 1 for label in labels)
    panels.figure.set_figheight(panels.figure.get_figheight() + _LINE_HEIGHT * rows)


def draw_line(
    axis: Axes,
    label: str,
    style: LineStyle,
    points: Sequence[Point],
    *,
    band_opacity: float,
) -> None:
    """Draw one curve through its points, and its interval as a band (none where opacity is 0)."""
    if not points:
        return
    x = [point.last_position for point in points]
    middle, low, high = perplexities(points)
    axis.plot(x, middle, label=label, **vars(style))
    if band_opacity and len(x) > 1:
        axis.fill_between(x, low, high, color=style.color, alpha=band_opacity, linewidth=0)
    elif band_opacity:  # a band needs two points
        axis.vlines(x, low, high, color=style.color, alpha=0.5, linewidth=style.linewidth)


def draw_background(axis: Axes, curves: Iterable[tuple[LineStyle, Sequence[Point]]]) -> None:
    """Draw the curves that other panels are about, in light grey and behind everything."""
    grey: dict[str, Any] = {"color": BACKGROUND, "linewidth": 0.7, "zorder": 1.2}
    for style, points in curves:
        if points:
            x = [point.last_position for point in points]
            axis.plot(x, perplexities(points)[0], linestyle=style.linestyle, **grey)


def apart_handles(others: str, reference: str | None) -> list[Artist]:
    """Return the legend of panels that each show one curve in front of `others`, in grey."""
    handles: list[Artist] = []
    if reference is not None:
        handles.append(Line2D([], [], label=reference, **vars(REFERENCE)))
    handles.append(Line2D([], [], label=others, color=BACKGROUND, linewidth=0.9))
    handles.append(Patch(color="0.4", alpha=BAND_OPACITY, linewidth=0, label="95% interval"))
    return handles


def truncation_handle() -> Line2D:
    """Return the legend's sample of the line of truncation."""
    return Line2D([], [], label="truncation to the window", **_TRUNCATION)


def window_handle() -> Line2D:
    """Return the legend's sample of the line of a training window."""
    line: dict[str, Any] = {"marker": "|", "linestyle": "none", "markersize": 8}
    return Line2D([], [], label="training window", markeredgewidth=0.8, color="0.6", **line)


def mark_truncation(axis: Axes, nll: float, color: Any = None) -> None:
    """Draw a level across the panel for the NLL at a window."""
    style = _TRUNCATION if color is None else _TRUNCATION | {"color": color}
    axis.axhline(np.exp(nll), zorder=1.6, **style)


def mark_windows(axis: Axes, windows: Iterable[int], *, with_label: bool) -> None:
    """Draw a line at each training window within the limits, labelled above the panel."""
    low, high = axis.get_xlim()
    windows = list(windows)
    for window in windows:
        if not low <= window <= high:
            continue
        axis.axvline(window, zorder=1.4, **_WINDOW)
        if with_label:
            axis.annotate(
                "window" if len(windows) == 1 else f"{window:,}",
                (window, 1),
                xycoords=("data", "axes fraction"),
                xytext=(0, 1.5),
                textcoords="offset points",
                ha="center",
                va="bottom",
                fontsize=SMALL_SIZE,
                color=NOTE,
            )


def scale_lengths(axis: Axes, lengths: Sequence[int], inches: float) -> None:
    """Make the horizontal axis, so many inches wide, logarithmic, with a tick at each length.

    Ticks are labelled where the labels do not touch, the last in any case.
    """
    low, high = lengths[0], lengths[-1]
    octaves = max(math.log2(high / low), 1)
    least = (_LETTER * len(f"{high:,}") + 0.05) / inches * octaves
    labels: list[str] = []
    labelled = math.inf
    for length in reversed(lengths):
        has_room = math.log2(labelled / length) >= least
        labels.append(f"{length:,}" if has_room else "")
        labelled = length if has_room else labelled
    axis.set_xscale("log", base=2)
    axis.set_xticks(lengths, labels[::-1])
    axis.minorticks_off()
    axis.set_xlim(low / 2 ** (0.04 * octaves), high * 2 ** (0.04 * octaves))
    axis.grid(True, which="major")


def label_lowest(axis: Axes, label: str, place: int, count: int, columns: int) -> None:
    """Label the horizontal axis of panel `place` of `count` if no panel lies below it."""
    is_lowest = place + columns >= count
    axis.tick_params(labelbottom=is_lowest)
    if is_lowest:
        axis.set_xlabel(label)
        # above an empty place, labels reach into it instead of moving the next row down
        axis.xaxis.set_in_layout(place // columns == (count - 1) // columns)


def panel_columns(count: int, width: FigureWidth) -> int:
    """Return how many of `count` panels are in a row."""
    if width == "column":
        return 1 if count <= 2 else 2
    if count <= 3:
        return count
    return min((4, 3), key=lambda columns: -count % columns)  # the fewest empty places


def legend_columns(labels: Sequence[str], inches: float) -> int:
    """Return into how many columns a legend of these labels fits, as equally long as possible."""
    for columns in range(len(labels), 1, -1):
        rows = -(-len(labels) // columns)
        longest = [_widest(labels[i : i + rows]) for i in range(0, len(labels), rows)]
        # each column has a sample of the line, the text and a gap
        if sum(_LETTER * letters + 0.45 for letters in longest) <= inches:
            return len(longest)
    return 1


def fold_title(title: str, inches: float) -> str:
    """Break a title into lines that fit a figure's width."""
    return fold_text(title, int(13.5 * inches))


def fold_text(text: str, letters: int) -> str:
    """Break each line of a text at spaces, so that no line is longer than `letters`.

    What is in parentheses stays together if it fits a line.
    """

    def joined(found: re.Match[str]) -> str:
        return found[0].replace(" ", "\xa0") if len(found[0]) <= letters else found[0]

    lines = re.sub(r"\([^()]*\)\S*", joined, text).split("\n")
    folded = (textwrap.fill(line, letters, break_on_hyphens=False) for line in lines)
    return "\n".join(folded).replace("\xa0", " ")


def shared_limits(
    points: Sequence[Point],
    *,
    truncation: Sequence[float],
    banded: Sequence[Point],
) -> tuple[float, float]:
    """Return the vertical limits that all panels share.

    They include every finite point and truncation line. The intervals of `banded`, which are drawn,
    may widen them on either side by half the points' logarithmic range, or by a factor of 1.5 if
    that is more: an interval over a few documents can be orders of magnitude wider than the curve.
    """
    values = np.append(perplexities(points)[0], np.exp(truncation))
    values = values[np.isfinite(values)]
    if not values.size:
        return 1.0, 10.0
    low, high = values.min(), values.max()
    if banded:
        room = max(math.sqrt(high / low), 1.5)
        ends = perplexities(banded)[1:].ravel()
        values = np.append(values, np.clip(ends, low / room, high * room))
    low, high = np.nanmin(values), np.nanmax(values)
    margin = max(1.05, (high / low) ** 0.05)
    return float(low / margin), float(high * margin)


def label_powers(axis: Axis, low: float, high: float) -> None:
    """Put ticks at round numbers of a logarithmic axis, and write them without exponents."""
    decades = math.log10(high / low)
    ranges = ((1.3, (1, 2, 3, 5)), (2, (1, 2, 5)), (3, (1, 3)), (math.inf, (1,)))
    digits = next(digits for most, digits in ranges if decades < most)
    locator = LogLocator(subs=digits) if decades > 0.5 else MaxNLocator(5, steps=[1, 2, 5, 10])
    axis.set_major_locator(locator)
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


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
    right.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    right.minorticks_off()
    right.set_ylabel("bits per byte", fontsize=SMALL_SIZE, color=NOTE)
    right.tick_params(colors=NOTE)
    right.spines["right"].set_visible(False)


def _panel_title(protocol: str, key: str, protocols: int, inches: float) -> str:
    title = f"{key}\n{protocol}" if key and protocols > 1 else key
    return fold_text(title or PROTOCOLS[protocol].title, max(20, int(14 * inches)))


def _widest(labels: Sequence[str]) -> int:
    return max(len(line) for label in labels for line in label.split("\n"))
