"""Scalings pair by pair: tables and a figure of wavelengths, scale, and angles not seen before."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator
from rich.console import Console

from rope_jax.inspection.curves import Curve
from rope_jax.inspection.output import Row, print_table, short_number
from rope_jax.plots.panels import add_legend, fold_title
from rope_jax.plots.style import NOTE, SMALL_SIZE, WIDTHS, assign_styles
from rope_jax.rope.pairs import Pairwise

_MAX_NAME = 30  # characters of a curve's name in a figure


def print_scaling_tables(console: Console, curves: Sequence[Curve]) -> None:
    """Print one table per quantity, indexed by pair; then a summary with one row per curve."""
    pairs = [curve.pairs for curve in curves]
    by_title = {
        "wavelength 2π/θ', tokens": [[short_number(x) for x in p.wavelengths] for p in pairs],
        "turns in the training window, L·θ'/(2π)": [[_turns(x) for x in p.turns] for p in pairs],
        "scale relative to none, θ'/θ": [[_scale(x) for x in p.scale] for p in pairs],
        "unseen: share of the circle that the text covers but training did not": [
            [_share(x) for x in p.unseen] for p in pairs
        ],
    }
    for title, columns in by_title.items():
        rows = _merged_rows(list(zip(*columns, strict=True)))
        console.print(title, style="bold")
        print_table(console, ["pair", *(curve.name for curve in curves)], rows, left=0)
    console.print("summary", style="bold")
    headings = ("scaling", "wavelengths", "θ'/θ", "m", "queries", "< 1 turn", "unseen")
    print_table(console, headings, [_summary(curve) for curve in curves])
    console.print(
        "m: factor on queries and keys, so m² on a score\n"
        "queries: factor on whole queries, from the first position to the last\n"
        "< 1 turn: pairs that complete no turn in the training window; unseen: mean over pairs\n",
        style="dim",
    )


def _merged_rows(rows: Sequence[Row]) -> list[Row]:
    """Return rows with the numbers of their pairs; neighbours with the same cells share a row."""
    made: list[Row] = []
    for cells, alike in itertools.groupby(range(len(rows)), key=rows.__getitem__):
        first, *more = map(str, alike)
        made.append((f"{first}–{more[-1]}" if more else first, *cells))
    return made


def _summary(curve: Curve) -> Row:
    pairs, query = curve.pairs, "1"
    if curve.scaling.query_scale is not None:
        last = curve.scaling.query_scale_at(curve.geometry, np.array([pairs.length - 1]))[0]
        query = f"1 … {last:.3g}"
    return (
        curve.name,
        _range(pairs.wavelengths.min(), pairs.wavelengths.max()),
        _range(pairs.scale.max(), pairs.scale.min()),
        f"{pairs.m:.4g}",
        query,
        f"{(pairs.turns < 1).sum()} of {pairs.theta.size}",
        _share(pairs.unseen.mean()),
    )


def _range(first: float, last: float) -> str:
    if np.isclose(first, last):
        return short_number(first)
    return f"{short_number(first)} … {short_number(last)}"


def _share(value: float) -> str:
    """Format a share; only exactly 0 is shown as 0."""
    if value == 0:
        return "0"
    return "<0.001" if value < 0.0005 else f"{value:.3f}"


def _scale(value: float) -> str:
    # drop the digits in which only rounding differs, so that equal neighbours look equal
    return f"{float(f'{value:.9g}'):.3g}"


def _turns(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else short_number(value)


def scaling_figure(curves: Sequence[Curve], *, window: int, length: int, title: str) -> Figure:
    """Draw wavelength, scale relative to `none` and unseen share by pair, in one panel each.

    window, length: L and n, marked in the panel of wavelengths. A pair that does not rotate is
    drawn at the panels' edges, at ∞ and 0.
    """
    figure = Figure(figsize=(WIDTHS["page"], 7.0), layout="constrained")
    wavelength, scale, unseen = figure.subplots(3, 1, sharex=True, height_ratios=(1.3, 1, 1))
    styles = _pair_styles(curves)
    wavelengths = [curve.pairs.wavelengths for curve in curves]
    _log_panel(wavelength, styles, wavelengths, base=10, lengths=[window, length])
    _name_length(wavelength, f"window {window:,}", window, above=length < window)
    if length != window:
        _name_length(wavelength, f"text {length:,}", length, above=length > window)
    wavelength.set_ylabel("wavelength 2π/θ' (tokens)")
    _log_panel(scale, styles, [curve.pairs.scale for curve in curves], base=2)
    scale.set_ylabel("scale relative to none θ'/θ")
    for curve, style in zip(curves, styles, strict=True):
        unseen.plot(curve.pairs.unseen, label=shortened(curve.name), **style)
    unseen.set_ylim(-0.03, 1.03)
    unseen.set_ylabel("unseen share of the circle")
    unseen.set_xlabel("pair, fastest first")
    unseen.xaxis.set_major_locator(MaxNLocator(9, integer=True))
    for axis in figure.axes:
        axis.grid(True, which="major")
    figure.align_ylabels()
    add_legend(figure, unseen.get_lines())
    figure.suptitle(fold_title(title, WIDTHS["page"]))
    return figure


def shortened(name: str) -> str:
    """Return a curve's name as a figure has room for it."""
    return name if len(name) <= _MAX_NAME else name[: _MAX_NAME - 1] + "…"


def _pair_styles(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """Return styles with markers, at other pairs for every curve; coinciding curves are visible."""
    every = max(1, curves[0].pairs.theta.size // 12)
    # each thinner than the one beneath it
    widths = np.linspace(2.4, 1.0, len(curves)) if len(curves) > 1 else [1.3]
    styles = assign_styles({curve.name: curve.kind for curve in curves}).values()
    return [
        vars(style) | {"linewidth": width, "markersize": 4, "markevery": (place % every, every)}
        for place, (style, width) in enumerate(zip(styles, widths, strict=True))
    ]


def _log_panel(
    axis: Axes,
    styles: Sequence[dict[str, Any]],
    values: Sequence[Pairwise],
    *,
    base: int,
    lengths: Sequence[int] = (),
) -> None:
    """Draw a line per curve on a logarithmic axis, 0 and ∞ as markers at its edge."""
    still = [~np.isfinite(value) | (value == 0) for value in values]
    for value, is_still, style in zip(values, still, styles, strict=True):
        axis.plot(np.where(is_still, np.nan, value), **style)
    for length in lengths:
        axis.axhline(length, color="0.6", linewidth=1, zorder=0)
    axis.set_yscale("log", base=base)
    axis.yaxis.set_major_locator(LogLocator(base=base, numticks=10))
    axis.yaxis.set_major_formatter(
        FuncFormatter(lambda x, _: short_number(x) if x >= 1 else f"1/{short_number(1 / x)}")
    )
    axis.minorticks_off()
    if not np.any(still):
        return
    at_top = any(np.isinf(value).any() for value in values)
    low, high = axis.get_ylim()
    axis.set_yticks([tick for tick in axis.get_yticks() if low <= tick <= high])
    room = max(high / low, 2) ** 0.16
    axis.set_ylim((low, high * room) if at_top else (low / room, high))
    edge = 0.96 if at_top else 0.04
    shown = [place for place, is_still in enumerate(still) if is_still.any()]
    # slightly apart, so that every curve remains visible
    heights = edge + 0.03 * (np.linspace(-0.5, 0.5, len(shown)) if len(shown) > 1 else np.zeros(1))
    for place, height in zip(shown, heights, strict=True):
        pairs = np.flatnonzero(still[place])
        marks = styles[place] | {"linestyle": "none", "transform": axis.get_xaxis_transform()}
        axis.plot(pairs, np.full(pairs.size, height), **marks)
    offset: dict[str, Any] = {"textcoords": "offset points", "xytext": (-8, 0)}
    axis.annotate(
        "∞" if at_top else "0",
        (0, edge),
        xycoords="axes fraction",
        ha="right",
        va="center",
        **offset,
    )


def _name_length(axis: Axes, label: str, length: int, *, above: bool) -> None:
    style: dict[str, Any] = {"fontsize": SMALL_SIZE, "color": NOTE}
    style |= {"transform": axis.get_yaxis_transform(), "va": "bottom" if above else "top"}
    axis.text(1.005, length, label, **style)
