"""Panels of perplexity over context length, one per protocol, with common vertical limits."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator
from numpy.typing import NDArray

from rope_jax.plots.figure import ShownFigure
from rope_jax.plots.lines import PlottedPoint, perplexities

_PROTOCOL_COLUMNS = 3
_MOST_DECADES = 12
_PROTOCOL_TITLES = {
    "same_tokens": "the same tokens at every length",
    "whole_window": "every token of the window",
    "sliding": "sliding windows, new tokens only",
    "per_position": "by position in the window",
    "yarn_compat": "sliding windows, mean of window means",
}


def draw_panels(
    points: Sequence[PlottedPoint],
    *,
    windows: Iterable[int],
    truncation: Sequence[float],
    legend_lines: int,
    with_bands: bool,
) -> tuple[ShownFigure, dict[str, Axes]]:
    """Make a figure with one panel per protocol of the points, scaled for them but without lines.

    windows: training windows, marked in every panel. truncation: NLLs at the window, marked for
    same_tokens only. legend_lines: how many lines the legend needs room for. with_bands: whether
    the limits make room for the points' intervals.
    """
    protocols = list(dict.fromkeys(point.protocol for point in points))
    columns = min(len(protocols), _PROTOCOL_COLUMNS)
    lines = -(-len(protocols) // columns)
    height = max(4.8, 1 + 0.24 * legend_lines) if lines == 1 else 4.2 * lines
    figure = ShownFigure(figsize=(1.5 + 5.2 * columns, height), layout="constrained")
    grid = figure.subplots(lines, columns, sharey=True, squeeze=False)
    limits = shared_limits(points, truncation=truncation, with_bands=with_bands)
    axes = dict(zip(protocols, grid.ravel(), strict=False))
    for axis in grid.ravel()[len(axes) :]:
        axis.set_visible(False)
    for protocol, axis in axes.items():
        axis.set_title(_PROTOCOL_TITLES[protocol], fontsize=10)
        axis.set_xlabel(x_label(protocol))
        if axis in grid[:, 0]:
            axis.set_ylabel("perplexity")
        lengths = sorted({point.last_position for point in points if point.protocol == protocol})
        set_scales(axis, lengths, limits)
        for window in windows:
            mark_window(axis, window)
        if protocol == "same_tokens":
            _mark_truncation(axis, truncation)
        if axis in grid[:, -1] or protocol == protocols[-1]:
            _add_bits_per_byte_axis(axis, points)
    return figure, axes


def x_label(protocol: str) -> str:
    """Return the label of a protocol's horizontal axis."""
    return "position" if protocol == "per_position" else "context length (tokens)"


def shared_limits(
    points: Sequence[PlottedPoint], *, truncation: Sequence[float], with_bands: bool
) -> tuple[float, float]:
    """Return the vertical limits that all panels share.

    They include every finite point and truncation line. Bands may widen them on either side by
    half the points' logarithmic range, or by a factor of 1.5 if that is more: an interval over a
    few documents can be orders of magnitude wider than the curve itself.
    """
    middle, low_ends, high_ends = perplexities(points)
    values = _finite(np.append(middle, np.exp(truncation)))
    if not values.size:
        return 1.0, 10.0
    low, high = values.min(), values.max()
    if with_bands:
        room = max(math.sqrt(high / low), 1.5)
        ends = _finite(np.append(low_ends, high_ends))
        values = np.append(values, np.clip(ends, low / room, high * room))
    low, high = values.min(), values.max()
    # Below, there is room for the label of the truncation line.
    return float(low / max(1.08, (high / low) ** 0.045)), float(high * 1.15)


def _finite(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values[np.isfinite(values)]


def set_scales(axis: Axes, lengths: Sequence[int], limits: tuple[float, float]) -> None:
    """Make both axes logarithmic, with a tick at each length and perplexities within `limits`."""
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(lengths, [f"{n:,}" for n in lengths], fontsize=8)
    low, high = limits
    axis.set_ylim(low, high)
    axis.set_yticks(_perplexity_ticks(low, high))
    axis.minorticks_off()
    axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axis.grid(True, which="major", color="0.92")
    axis.spines[["top", "right"]].set_visible(False)


def _perplexity_ticks(low: float, high: float) -> NDArray[np.float64]:
    """Return one tick per decade if there are several, else enough ticks to read off values."""
    decades = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
    if decades.size < 4:
        ticks = np.multiply.outer(decades, [1, 1.5, 2, 3, 4, 5, 7]).ravel()
    else:
        ticks = decades[:: -(-decades.size // _MOST_DECADES)]
    if np.count_nonzero((ticks >= low) & (ticks <= high)) < 3:
        ticks = np.asarray(MaxNLocator(5).tick_values(low, high))
    return ticks[(ticks >= low) & (ticks <= high)]


def _add_bits_per_byte_axis(axis: Axes, points: Sequence[PlottedPoint]) -> None:
    """Add a right-hand axis in bits per byte, if the points have them."""
    ratios = [point.nll / point.bpb for point in points if point.bpb and math.isfinite(point.bpb)]
    if not ratios:
        return
    nats_per_bpb = ratios[0]  # nats per token that equal one bit per byte

    def to_bits(perplexity: Any) -> Any:
        return np.log(np.maximum(perplexity, 1e-9)) / nats_per_bpb

    def to_perplexity(bits: Any) -> Any:  # matplotlib also asks for values far off the page
        return np.exp(np.clip(np.multiply(bits, nats_per_bpb), -700, 700))

    right = axis.secondary_yaxis("right", functions=(to_bits, to_perplexity))
    low, high = to_bits(axis.get_ylim())
    ticks = MaxNLocator(6).tick_values(low, high)
    right.set_yticks([tick for tick in ticks if low <= tick <= high])
    right.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    right.yaxis.set_minor_locator(NullLocator())
    right.set_ylabel("bits per byte", fontsize=9, color="0.35")
    right.tick_params(labelsize=8, colors="0.35")
    right.spines["right"].set_visible(False)


def mark_window(axis: Axes, window: int) -> None:
    """Draw a labelled vertical line at the training window."""
    axis.axvline(window, color="0.6", linewidth=1)
    axis.annotate(
        "window",
        (window, 1),
        xycoords=("data", "axes fraction"),
        xytext=(3, -10),
        textcoords="offset points",
        fontsize=8,
        color="0.35",
    )


def _mark_truncation(axis: Axes, nlls: Sequence[float]) -> None:
    """Draw a line for each value, and label the lowest."""
    for nll in nlls:
        axis.axhline(np.exp(nll), color="0.45", linestyle=":", linewidth=1.2)
    if nlls:
        axis.annotate(
            "truncation to the window",
            (0.99, np.exp(min(nlls))),
            xycoords=("axes fraction", "data"),
            xytext=(0, -3),  # below: no curve is expected there
            textcoords="offset points",
            ha="right",
            va="top",
            fontsize=8,
            color="0.35",
        )
