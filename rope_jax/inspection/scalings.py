"""Scalings pair by pair: tables and a figure of wavelengths, scale, and angles not seen before."""

import itertools
from collections.abc import Callable, Sequence
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
    quantities: dict[str, tuple[str, Callable[[float], str]]] = {
        "wavelength 2π/θ', tokens": ("wavelengths", short_number),
        "turns in the training window, L·θ'/(2π)": ("turns", _turns),
        "scale relative to none, θ'/θ": ("scale", _scale),
        "unseen: share of the circle that the text covers but training did not": ("unseen", _share),
    }
    for title, (quantity, text) in quantities.items():
        columns = [map(text, getattr(curve, quantity)) for curve in curves]
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
    query = "1"
    if curve.scaling.query_scale is not None:
        last = curve.scaling.query_scale_at(curve.geometry, np.array([curve.length - 1]))[0]
        query = f"1 … {last:.3g}"
    return (
        curve.name,
        _range(curve.wavelengths.min(), curve.wavelengths.max()),
        _range(curve.scale.max(), curve.scale.min()),
        f"{curve.m:.4g}",
        query,
        f"{(curve.turns < 1).sum()} of {curve.inv_freq.size}",
        _share(curve.unseen.mean()),
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

    window, length: L and n, marked in the panel of wavelengths.
    """
    figure = Figure(figsize=(WIDTHS["page"], 7.0), layout="constrained")
    wavelength, scale, unseen = figure.subplots(3, 1, sharex=True, height_ratios=(1.3, 1, 1))
    styles = _pair_styles(curves)
    wavelengths = [curve.wavelengths for curve in curves]
    _log_panel(wavelength, styles, wavelengths, base=10)
    lengths = {"window": window} | ({"text": length} if length != window else {})
    for name, tokens in lengths.items():
        wavelength.axhline(tokens, color="0.6", linewidth=1, zorder=0)
        place: dict[str, Any] = {"va": "bottom" if tokens == max(window, length) else "top"}
        place |= {"transform": wavelength.get_yaxis_transform()}
        text = f"{name} {tokens:,}"
        wavelength.text(1.005, tokens, text, fontsize=SMALL_SIZE, color=NOTE, **place)
    wavelength.set_ylabel("wavelength 2π/θ' (tokens)")
    _log_panel(scale, styles, [curve.scale for curve in curves], base=2)
    scale.set_ylabel("scale relative to none θ'/θ")
    for curve, style in zip(curves, styles, strict=True):
        unseen.plot(curve.unseen, label=shortened(curve.name), **style)
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
    every = max(1, curves[0].inv_freq.size // 12)
    # each thinner than the one beneath it
    widths = np.linspace(2.4, 1.0, len(curves)) if len(curves) > 1 else [1.3]
    styles = assign_styles({curve.name: curve.kind for curve in curves}).values()
    return [
        vars(style) | {"linewidth": width, "markersize": 4, "markevery": (place % every, every)}
        for place, (style, width) in enumerate(zip(styles, widths, strict=True))
    ]


def _log_panel(
    axis: Axes, styles: Sequence[dict[str, Any]], values: Sequence[Pairwise], *, base: int
) -> None:
    """Draw one line per curve on a logarithmic axis, with a place at its edge for 0 or ∞."""
    rotates = [np.isfinite(value) & (value > 0) for value in values]
    finite = np.concatenate([value[r] for value, r in zip(values, rotates, strict=True)])
    low, high = (finite.min(), finite.max()) if finite.size else (1.0, 1.0)
    at_top = any(np.isinf(value).any() for value in values)
    edge = 3 * high if at_top else low / 3
    for value, r, style in zip(values, rotates, styles, strict=True):
        axis.plot(np.where(r, value, edge), **style)
    axis.set_yscale("log", base=base)
    axis.yaxis.set_major_locator(LogLocator(base=base, numticks=10))
    axis.yaxis.set_major_formatter(
        FuncFormatter(lambda x, _: short_number(x) if x >= 1 else f"1/{short_number(1 / x)}")
    )
    axis.minorticks_off()
    if not np.all(rotates):
        ends = axis.get_ylim()
        axis.set_yticks([tick for tick in axis.get_yticks() if low / 1.5 < tick < high * 1.5])
        axis.set_ylim(ends)
        label: dict[str, Any] = {"ha": "right", "va": "center"}
        axis.text(
            -0.01, edge, "∞" if at_top else "0", transform=axis.get_yaxis_transform(), **label
        )
