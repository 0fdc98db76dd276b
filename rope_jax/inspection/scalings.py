"""Scalings pair by pair: tables and a figure of wavelengths, scale, and angles not seen before."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator
from rich.console import Console

from rope_jax.console import print_table, short_number
from rope_jax.inspection.curves import Curve
from rope_jax.plots.panels import add_legend, fold_title
from rope_jax.plots.style import NOTE, SMALL_SIZE, WIDTHS, assign_styles
from rope_jax.rope.pairs import Pairwise

_MAX_NAME = 30  # characters of a curve's name in a figure
_QUANTITIES = {
    "wavelengths": "wavelength 2π/θ', tokens",
    "turns": "turns in the training window, L·θ'/(2π)",
    "scale": "scale relative to none, θ'/θ",
    "unseen": "unseen: share of the circle that the text covers but training did not",
}


def print_scaling_tables(console: Console, curves: Sequence[Curve]) -> None:
    """Print one table per quantity, indexed by pair; then a summary with one row per curve."""
    for quantity, title in _QUANTITIES.items():
        columns = [map(short_number, getattr(curve, quantity)) for curve in curves]
        rows = [(str(pair), *cells) for pair, cells in enumerate(zip(*columns, strict=True))]
        console.print(title, style="bold")
        print_table(console, ["pair", *(curve.name for curve in curves)], rows, left=0)
        console.print()
    console.print("summary", style="bold")
    headings = ("scaling", "wavelengths", "θ'/θ", "m", "queries", "< 1 turn", "unseen")
    print_table(console, headings, [_summary(curve) for curve in curves])
    console.print(
        "\nm: factor on queries and keys, so m² on a score\n"
        "queries: factor on whole queries, from the first position to the last\n"
        "< 1 turn: pairs that complete no turn in the training window; unseen: mean over pairs\n",
        style="dim",
    )


def _summary(curve: Curve) -> tuple[str, ...]:
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
        short_number(curve.unseen.mean()),
    )


def _range(first: float, last: float) -> str:
    if np.isclose(first, last):
        return short_number(first)
    return f"{short_number(first)} … {short_number(last)}"


def scaling_figure(curves: Sequence[Curve], *, window: int, length: int, title: str) -> Figure:
    """Draw wavelength, scale relative to `none` and unseen share by pair, in one panel each.

    window, length: L and n, marked in the panel of wavelengths.
    """
    figure = Figure(figsize=(WIDTHS["page"], 7.0), layout="constrained")
    wavelength, scale, unseen = figure.subplots(3, 1, sharex=True, height_ratios=(1.3, 1, 1))
    styles = _pair_styles(curves)
    _log_panel(wavelength, styles, [curve.wavelengths for curve in curves], base=10)
    lengths = {"window": window} | ({"text": length} if length != window else {})
    for name, tokens in lengths.items():
        wavelength.axhline(tokens, color="0.6", linewidth=1, zorder=0)
        side = "bottom" if tokens == max(window, length) else "top"
        look: dict[str, Any] = {"fontsize": SMALL_SIZE, "color": NOTE, "va": side}
        at_edge = wavelength.get_yaxis_transform()
        wavelength.text(1.005, tokens, f"{name} {tokens:,}", transform=at_edge, **look)
    wavelength.set_ylabel("wavelength 2π/θ' (tokens)")
    _log_panel(scale, styles, [curve.scale for curve in curves], base=2)
    scale.set_ylabel("scale relative to none θ'/θ")
    for curve, style in zip(curves, styles, strict=True):
        label = curve.name
        if len(label) > _MAX_NAME:
            label = label[: _MAX_NAME - 1] + "…"
        unseen.plot(curve.unseen, label=label, **style)
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


def _pair_styles(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """Return styles by which coinciding curves are visible.

    Each curve is thinner than the one beneath it, and has markers at other pairs.
    """
    every = max(1, curves[0].inv_freq.size // 12)
    widths = np.linspace(2.4, 1.0, len(curves))
    styles = assign_styles({curve.name: curve.kind for curve in curves}).values()
    return [
        vars(style) | {"linewidth": width, "markersize": 4, "markevery": (number % every, every)}
        for number, (style, width) in enumerate(zip(styles, widths, strict=True))
    ]


def _log_panel(
    axis: Axes, styles: Sequence[dict[str, Any]], values: Sequence[Pairwise], *, base: int
) -> None:
    """Draw one line per curve on a logarithmic axis, with a tick at its edge for 0 or ∞."""
    every = np.stack(values)
    rotates = np.isfinite(every) & (every > 0)
    finite = every[rotates] if rotates.any() else np.ones(1)
    at_top = bool(np.isinf(every).any())
    edge = 3 * finite.max() if at_top else finite.min() / 3
    for value, style in zip(np.where(rotates, every, edge), styles, strict=True):
        axis.plot(value, **style)
    axis.set_yscale("log", base=base)
    axis.yaxis.set_major_locator(LogLocator(base=base, numticks=10))
    axis.yaxis.set_major_formatter(
        lambda x, _: short_number(x) if x >= 1 else f"1/{short_number(1 / x)}"
    )
    axis.minorticks_off()
    if not rotates.all():
        ends, ticks = axis.get_ylim(), axis.get_yticks()
        inside = (ticks > finite.min() / 1.5) & (ticks < finite.max() * 1.5)
        axis.set_yticks(ticks[inside])
        axis.set_ylim(ends)
        label: dict[str, Any] = {"ha": "right", "va": "center"}
        label["transform"] = axis.get_yaxis_transform()
        axis.text(-0.01, edge, "∞" if at_top else "0", **label)
