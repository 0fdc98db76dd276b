"""Panels of perplexity over context length with common limits: by protocol, and by curve if asked.

A panel for each protocol shows all curves. With keys, each protocol has one panel per key instead:
small multiples, in rows of three or four (two in a column of a paper).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator
from numpy.typing import NDArray

from rope_jax.config.presentation import FigureWidth
from rope_jax.plots.figure import ShownFigure
from rope_jax.plots.labels import fold_text, length_labels, thin_length_ticks
from rope_jax.plots.lines import PlottedPoint, perplexities
from rope_jax.plots.style import (
    BACKGROUND,
    BAND_OPACITY,
    NOTE,
    REFERENCE,
    SMALL_SIZE,
    TEXT_SIZE,
    WIDTHS,
)
from rope_jax.protocols import BASELINE, PROTOCOLS

_TRUNCATION: dict[str, Any] = {"color": "0.4", "linestyle": ":", "linewidth": 1.1}
_WINDOW: dict[str, Any] = {"color": "0.6", "linewidth": 0.8}
_ROW_HEIGHTS: Mapping[FigureWidth, Mapping[int, float]] = {
    "column": {1: 2.3, 2: 1.35},
    "page": {1: 2.9, 2: 2.1, 3: 1.65, 4: 1.3},
}
"""Inches, by the number of panels in a row."""
_LEGEND_LINE = 0.155  # inches


@dataclass(frozen=True)
class Panels:
    """A figure's panels by protocol and key, and its width in inches."""

    figure: ShownFigure
    axes: Mapping[tuple[str, str], Axes]
    width: float
    above_gap: Sequence[Axes]
    """Panels with an empty place below them, whose labels reach into it."""

    @property
    def of_same_tokens(self) -> list[Axes]:
        """The panels where truncation to the window scores the same tokens."""
        return [axis for (protocol, _), axis in self.axes.items() if protocol == BASELINE]


def make_panels(
    points: Sequence[PlottedPoint],
    *,
    windows: Sequence[int],
    truncation: Sequence[float],
    banded: Sequence[PlottedPoint],
    title: str,
    width: FigureWidth,
    keys: Sequence[str] | None = None,
) -> Panels:
    """Make a figure with panels scaled for the points, with marks but without curves.

    windows: training windows, marked in every panel. truncation: NLLs at the window, for which the
    limits make room; `mark_truncation` draws them. banded: the points whose intervals will be
    drawn, for which the limits make room as well. keys: each protocol has a panel for each, with
    the key as its title.
    """
    protocols = list(dict.fromkeys(point.protocol for point in points))
    # Each block of rows is one protocol's, or there is one block with a panel for each protocol.
    blocks = [[(p, key) for key in keys] for p in protocols] if keys is not None else None
    blocks = blocks or [[(protocol, "") for protocol in protocols]]
    columns = _columns(len(blocks[0]), width)
    rows_each = -(-len(blocks[0]) // columns)
    inches = WIDTHS[width]
    height = rows_each * len(blocks) * _ROW_HEIGHTS[width][columns]
    title = fold_title(title, inches)
    if keys is not None and len(protocols) == 1:  # the panels' titles are the keys alone
        title += f"\n{PROTOCOLS[protocols[0]].title}"
    height += 0.4 + _LEGEND_LINE * len(title.splitlines())
    headings = {
        (protocol, key): _panel_title(protocol, key, len(protocols), inches / columns)
        for block in blocks
        for protocol, key in block
    }
    # Without keys, every row of panels has labels below it, and titles that may be folded.
    folded = max(heading.count("\n") for heading in headings.values())
    height += rows_each * len(blocks) * (0.13 * folded + 0.3 * (keys is None and columns > 1))
    figure = ShownFigure(figsize=(inches, height), layout="constrained")
    figure.suptitle(title)
    grid = figure.subplots(rows_each * len(blocks), columns, sharey=True, squeeze=False)
    limits = shared_limits(points, truncation=truncation, banded=banded)
    most_ticks = 5 if columns > 2 and keys is not None else 7
    _scale_perplexities(grid[0, 0], limits, most_ticks)
    axes: dict[tuple[str, str], Axes] = {}
    above_gap: list[Axes] = []
    is_small = keys is not None and any(_widest(t) > 14 * inches / columns for t in keys)
    for block, of_block in zip(blocks, np.split(grid, len(blocks)), strict=True):
        for axis in of_block.ravel()[len(block) :]:
            axis.set_visible(False)
        for place, ((protocol, key), axis) in enumerate(zip(block, of_block.flat, strict=False)):
            axes[protocol, key] = axis
            is_lowest = place // columns == rows_each - 1
            if keys is not None and place + columns >= len(block) and not is_lowest:
                above_gap.append(axis)
            at = [point for point in points if point.protocol == protocol]
            _scale_lengths(axis, sorted({point.last_position for point in at}))
            axis.tick_params(labelbottom=is_lowest or keys is None)
            if is_lowest or keys is None:
                axis.set_xlabel(x_label(protocol, is_narrow=inches / columns < 2))
            # labels of windows are between the title and the panel
            has_labels = keys is None or place < columns
            axis.set_title(
                headings[protocol, key],
                pad=11 if has_labels else 3,
                fontsize=SMALL_SIZE if is_small else TEXT_SIZE,
            )
            mark_windows(axis, windows, with_label=keys is None or place == 0)
            if place % columns == 0:
                axis.set_ylabel("perplexity")
            # beside an empty place, it would move the panels of the next column to the right
            if place % columns == columns - 1:
                _add_bits_per_byte_axis(axis, at)
    return Panels(figure, axes, inches, above_gap)


def finish_panels(panels: Panels, handles: Sequence[Artist]) -> None:
    """Add the legend, if there is anything for it, and drop tick labels for which there is no room.

    Call this once the curves are drawn.
    """
    figure = panels.figure
    if handles:
        columns = legend_columns([str(handle.get_label()) for handle in handles], panels.width)
        figure.legend(handles=handles, loc="outside lower center", ncols=columns)
        lines = max(str(handle.get_label()).count("\n") + 1 for handle in handles)
        rows = -(-len(handles) // columns) * lines
        figure.set_figheight(figure.get_figheight() + _LEGEND_LINE * rows)
    figure.draw_without_rendering()  # lays out the panels
    figure.set_layout_engine(None)  # once: each file would lay them out again, and draw them twice
    for axis in panels.axes.values():
        thin_length_ticks(axis)
    protocol_of = {axis: protocol for (protocol, _), axis in panels.axes.items()}
    for axis in panels.above_gap:
        _label_below(axis, x_label(protocol_of[axis], is_narrow=True))


def apart_handles(others: str, reference: str | None) -> list[Artist]:
    """Return the legend of panels that each show one curve in front of the others.

    others: what the grey curves are. reference: the name of the dashed one, if there is one.
    """
    handles: list[Artist] = []
    if reference is not None:
        handles.append(Line2D([], [], label=reference, **vars(REFERENCE)))
    handles.append(Line2D([], [], label=others, color=BACKGROUND, linewidth=0.9))
    handles.append(Patch(color="0.4", alpha=BAND_OPACITY, linewidth=0, label="95% interval"))
    return handles


def truncation_handle() -> Line2D:
    """Return the legend's sample of the line of truncation."""
    return Line2D([], [], label="truncation to the window", **_TRUNCATION)


def fold_title(title: str, inches: float) -> str:
    """Break a title into lines that fit a figure's width."""
    return fold_text(title, int(13.5 * inches))


def _columns(count: int, width: FigureWidth) -> int:
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
        longest = [max(map(_widest, labels[i : i + rows])) for i in range(0, len(labels), rows)]
        # each column has a sample of the line, the text and a gap
        if sum(0.56 * SMALL_SIZE * letters + 34 for letters in longest) <= 72 * inches:
            return len(longest)
    return 1


def _widest(text: str) -> int:
    return max(map(len, text.split("\n")))


def _panel_title(protocol: str, key: str, protocols: int, inches: float) -> str:
    if not key:
        return fold_text(PROTOCOLS[protocol].title, max(20, int(14 * inches)))
    title = f"{key}\n{protocol}" if protocols > 1 else key
    return fold_text(title, max(20, int(15.5 * inches)))


def x_label(protocol: str, *, is_narrow: bool) -> str:
    """Return the label of a protocol's horizontal axis."""
    if PROTOCOLS[protocol].by_position:
        return "position"
    return "length (tokens)" if is_narrow else "context length (tokens)"


def shared_limits(
    points: Sequence[PlottedPoint],
    *,
    truncation: Sequence[float],
    banded: Sequence[PlottedPoint],
) -> tuple[float, float]:
    """Return the vertical limits that all panels share.

    They include every finite point and truncation line. The intervals of `banded`, which are drawn,
    may widen them on either side by half the points' logarithmic range, or by a factor of 1.5 if
    that is more: an interval over a few documents can be orders of magnitude wider than the curve.
    """
    values = _finite(np.append(perplexities(points)[0], np.exp(truncation)))
    if not values.size:
        return 1.0, 10.0
    low, high = values.min(), values.max()
    if banded:
        room = max(math.sqrt(high / low), 1.5)
        ends = _finite(perplexities(banded)[1:].ravel())
        values = np.append(values, np.clip(ends, low / room, high * room))
    low, high = values.min(), values.max()
    margin = max(1.05, (high / low) ** 0.05)
    return float(low / margin), float(high * margin)


def _finite(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values[np.isfinite(values)]


def _scale_lengths(axis: Axes, lengths: Sequence[int]) -> None:
    """Make a panel's horizontal axis logarithmic, with a tick at each length."""
    axis.set_xscale("log", base=2)
    axis.set_xticks(lengths, [f"{n:,}" for n in lengths])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.grid(True, which="major")
    margin = max(lengths[-1] / lengths[0], 2) ** 0.04
    axis.set_xlim(lengths[0] / margin, lengths[-1] * margin)


def _scale_perplexities(axis: Axes, limits: tuple[float, float], most_ticks: int) -> None:
    """Make the vertical axis that all panels share logarithmic, with at most so many ticks.

    Once, not in each panel: matplotlib repeats for all panels whatever is set in one.
    """
    low, high = limits
    axis.set_yscale("log")
    axis.set_ylim(low, high)
    axis.set_yticks(_perplexity_ticks(low, high, most_ticks))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))


def _perplexity_ticks(low: float, high: float, most: int) -> NDArray[np.float64]:
    """Return three or more ticks at round numbers, as dense as `most` allows."""
    decades = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
    for digits in ([1, 1.5, 2, 3, 4, 5, 7], [1, 2, 3, 5], [1, 2, 5], [1, 3], [1]):
        ticks = np.multiply.outer(decades, digits).ravel()
        ticks = ticks[(ticks >= low) & (ticks <= high)]
        if ticks.size <= most:
            break
    if ticks.size < 3:  # less than an octave
        ticks = np.asarray(MaxNLocator(5).tick_values(low, high))
        return ticks[(ticks >= low) & (ticks <= high)]
    return ticks[:: -(-ticks.size // most)]


def _add_bits_per_byte_axis(axis: Axes, points: Sequence[PlottedPoint]) -> None:
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
    right.yaxis.set_minor_locator(NullLocator())
    right.set_ylabel("bits per byte", fontsize=SMALL_SIZE, color=NOTE)
    right.tick_params(colors=NOTE)
    right.spines["right"].set_visible(False)


def _label_below(axis: Axes, label: str) -> None:
    """Write the labels of the horizontal axis into an empty place, which the layout may ignore.

    As labels of the axis they would move the next row of panels down.
    """
    style: dict[str, Any] = {"ha": "center", "va": "top", "textcoords": "offset points"}
    texts = [
        axis.annotate(
            text,
            (tick, 0),
            xycoords=("data", "axes fraction"),
            xytext=(0, -6),
            fontsize=SMALL_SIZE,
            **style,
        )
        for tick, text in zip(axis.get_xticks(), length_labels(axis), strict=True)
    ]
    texts.append(
        axis.annotate(
            label, (0.5, 0), xycoords="axes fraction", xytext=(0, -17), fontsize=TEXT_SIZE, **style
        )
    )
    for made in texts:
        made.set_in_layout(False)


def mark_truncation(axis: Axes, nlls: Sequence[float], color: Any = None) -> None:
    """Draw a level across the panel for each NLL at a window."""
    style = _TRUNCATION if color is None else _TRUNCATION | {"color": color}
    for nll in nlls:
        axis.axhline(np.exp(nll), zorder=1.6, **style)


def mark_windows(axis: Axes, windows: Iterable[int], *, with_label: bool) -> None:
    """Draw a vertical line at each training window, labelled above the panel, clear of curves.

    A window beyond the panel's limits is left out: its label would be far outside of the figure.
    """
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


def window_handle() -> Line2D:
    """Return the legend's sample of the line of a training window."""
    line: dict[str, Any] = {"marker": "|", "linestyle": "none", "markersize": 8}
    return Line2D([], [], label="training window", markeredgewidth=0.8, color="0.6", **line)
