"""Figures of scalings pair by pair, and of scores by distance."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from rope_jax.inspection.curves import Curve
from rope_jax.inspection.model import short_number
from rope_jax.inspection.output import write_output_figure
from rope_jax.plots.panels import fold_title, legend_columns
from rope_jax.plots.style import MARKERS, NOTE, SMALL_SIZE, WIDTHS, assign_colours, figure_style
from rope_jax.rope import RotaryGeometry
from rope_jax.rope.decay import Scores, logarithmic_decay, octave_means
from rope_jax.rope.pairs import Pairwise

_DASHES = ("-", "--", ":", "-.")
_MAX_NAME = 30  # characters of a curve's name in a figure
# A line through more points is an image in a PDF, which would otherwise take megabytes.
_MOST_POINTS = 4096


def write_scaling_figure(
    path: Path, curves: Sequence[Curve], *, window: int, length: int, title: str
) -> None:
    """Draw wavelength, scale relative to `none` and unseen share by pair, in one panel each.

    window, length: L and n, marked in the panel of wavelengths. A pair that does not rotate is
    drawn at the panels' edges, at ∞ and 0.

    UserError: the file cannot be written.
    """
    with figure_style():
        figure = _scaling_figure(curves, window=window, length=length, title=title)
    write_output_figure(figure, path)


def _scaling_figure(curves: Sequence[Curve], *, window: int, length: int, title: str) -> Figure:
    figure = Figure(figsize=(WIDTHS["page"], 7.0), layout="constrained")
    axes = figure.subplots(3, 1, sharex=True, height_ratios=(1.3, 1, 1))
    # each thinner than the one beneath it, so that coinciding curves remain visible
    widths = np.linspace(2.4, 1.0, len(curves)) if len(curves) > 1 else [1.3]
    styles = [
        {**style, "linewidth": width}
        for style, width in zip(_curve_styles(curves), widths, strict=True)
    ]
    wavelengths = [curve.pairs.wavelengths for curve in curves]
    _log_panel(axes[0], styles, wavelengths, at_top=True, also=(window, length))
    axes[0].set_ylabel("wavelength 2π/θ' (tokens)")
    _mark_length(axes[0], window, f"window {window:,}", above=length < window)
    if length != window:
        _mark_length(axes[0], length, f"text {length:,}", above=length > window)
    _log_panel(axes[1], styles, [c.pairs.scale for c in curves], at_top=False, also=(1,))
    axes[1].set_ylabel("scale relative to none θ'/θ")
    for curve, style in zip(curves, styles, strict=True):
        axes[2].plot(curve.pairs.unseen, **style)
    axes[2].set_ylim(-0.03, 1.03)
    axes[2].set_ylabel("unseen share of the circle")
    axes[2].set_xlabel("pair, fastest first")
    pairs = curves[0].pairs.theta.size
    axes[2].set_xticks(np.arange(0, pairs, 2 ** max(0, round(math.log2(pairs / 8)))))
    figure.align_ylabels()
    for axis in axes:
        axis.grid(True, which="major")
    handles = axes[2].get_lines()
    labels = [_shortened(curve.name) for curve in curves]
    columns = legend_columns(labels, WIDTHS["page"])
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)
    _title(figure, title)
    return figure


def write_decay_figure(
    path: Path,
    scores: Mapping[str, Scores],
    *,
    kinds: Mapping[str, str],
    unscaled: Mapping[str, RotaryGeometry],
    title: str,
) -> None:
    """Draw scores by distance: one panel per curve, and one with the octave means of all.

    scores: at distances 0 … n − 1, by curve. Every curve is in `kinds` (a scaling's type, or
    "trained") or in `unscaled`; the latter are coloured in order, with `logarithmic_decay` drawn.

    UserError: the file cannot be written.
    """
    with figure_style():
        figure = _decay_figure(scores, kinds=kinds, unscaled=unscaled, title=title)
    write_output_figure(figure, path)


def _decay_figure(
    scores: Mapping[str, Scores],
    *,
    kinds: Mapping[str, str],
    unscaled: Mapping[str, RotaryGeometry],
    title: str,
) -> Figure:
    count = len(scores) + (len(scores) > 1)
    columns = min((4, 3), key=lambda columns: -count % columns) if count > 4 else min(count, 2)
    rows = math.ceil(count / columns)
    height = 0.9 + (1.45 if columns > 2 else 2.2) * rows
    figure = Figure(figsize=(WIDTHS["page"], height), layout="constrained")
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    panels = list(grid.flat)
    styles = _decay_styles(list(scores), kinds)
    length = next(iter(scores.values())).size
    together = panels[count - 1] if len(scores) > 1 else None
    for axis, (name, score) in zip(panels, scores.items(), strict=False):
        _decay_panel(axis, score, styles[name], unscaled.get(name))
        axis.set_title(_shortened(name), color=styles[name]["color"])
        if together is not None:
            centres = _centres(length)
            together.plot(centres, octave_means(score, centres), linewidth=1.1, **styles[name])
    if together is not None:
        together.set_title("all octave means")
    for place, axis in enumerate(panels):
        axis.set_visible(place < count)
        _decay_axes(axis, length)
        # only the lowest panel of a column is labelled
        axis.tick_params(labelbottom=place + columns >= count)
        if place + columns >= count:
            axis.set_xlabel("distance Δ (tokens)")
    for row in grid:
        row[0].set_ylabel("score")
    _title(figure, title)
    meanings = [Line2D([], [], color="0.4", alpha=0.5, linewidth=0.8)]
    meanings += [Line2D([], [], color="0.4", linewidth=1.4)]
    labels = ["score", "mean from Δ/√2 to Δ√2"]
    if unscaled:
        meanings += [Line2D([], [], color="black", linestyle=":", linewidth=0.9)]
        labels += ["√d·(1 − (ln Δ + 0.577)/ln b)"]
    figure.legend(meanings, labels, loc="outside lower center", ncols=3)
    return figure


def _decay_panel(
    axis: Axes, score: Scores, style: dict[str, Any], geometry: RotaryGeometry | None
) -> None:
    """Draw one curve and its octave means, and its logarithmic decay if it is unscaled."""
    centres = _centres(score.size)
    thin: dict[str, Any] = {"alpha": 0.4, "linewidth": 0.4, "rasterized": score.size > _MOST_POINTS}
    axis.plot(np.arange(1, score.size), score[1:], color=style["color"], **thin)
    axis.plot(centres, octave_means(score, centres), color=style["color"], linewidth=1.4)
    if geometry is not None and geometry.base > 1:
        distances = np.geomspace(1, min(geometry.base, score.size - 1), 100)
        expected = logarithmic_decay(geometry, distances)
        axis.plot(distances, expected, color="black", linestyle=":", linewidth=0.9)


def _decay_axes(axis: Axes, length: int) -> None:
    axis.axhline(0, color="0.55", linewidth=0.9, zorder=0)
    axis.set_xscale("log", base=2)
    powers = np.arange(int(length - 1).bit_length())
    step = math.ceil(powers.size / 5)
    ticks = 2 ** powers[::step]
    axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axis.minorticks_off()
    axis.grid(True, which="major")


def _decay_styles(names: Sequence[str], kinds: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the style of each curve: by type for scalings, from dark to light for the others."""
    unscaled = [name for name in names if name not in kinds]
    shades = matplotlib.colormaps["viridis"](np.linspace(0, 0.8, len(unscaled)))
    styles = _styles(list(kinds.values()))
    by_kind = dict(zip(kinds, styles, strict=True))
    by_shade = {name: {"color": shade} for name, shade in zip(unscaled, shades, strict=True)}
    return {
        name: {"color": style["color"], "linestyle": style.get("linestyle", "-")}
        for name, style in (by_kind | by_shade).items()
    }


def _centres(length: int) -> NDArray[np.int64]:
    """Return log-spaced distances, up to half an octave before the last."""
    last = max(1, math.ceil(length / 2**0.5) - 1)
    return np.unique(np.geomspace(1, last, 300).astype(np.int64))


def _styles(kinds: Sequence[str]) -> list[dict[str, Any]]:
    """Return one style per curve: colour by kind, with different dashes where a colour repeats."""
    by_kind = assign_colours(kinds)
    seen: dict[str, int] = {}
    styles: list[dict[str, Any]] = []
    for kind in kinds:
        colour = by_kind[kind]
        nth = seen[colour] = seen.get(colour, -1) + 1
        styles.append({"color": colour, "linestyle": _DASHES[nth % len(_DASHES)]})
    return styles


def _curve_styles(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """Return styles with a marker for each curve, at some pairs of their own if there are many."""
    every = max(1, curves[0].pairs.theta.size // 12)
    return [
        {
            **style,
            "marker": MARKERS[place % len(MARKERS)],
            "markersize": 4,
            "markevery": (place % every, every),
        }
        for place, style in enumerate(_styles([curve.kind for curve in curves]))
    ]


def _log_panel(
    axis: Axes,
    styles: Sequence[dict[str, Any]],
    values: Sequence[Pairwise],
    *,
    at_top: bool,
    also: Sequence[float | int],
) -> None:
    """Draw one line per curve on a logarithmic axis, with values of 0 or ∞ along one edge.

    also: more values that the axis must include.
    """
    known = np.concatenate([*values, np.array(also, np.float64)])
    known = known[(known > 0) & np.isfinite(known)]
    still = [~np.isfinite(value) | (value == 0) for value in values]
    for nth, (value, style) in enumerate(zip(values, styles, strict=True)):
        axis.plot(np.where(still[nth], np.nan, value), **style)
    axis.set_yscale("log")
    decades = max(np.log10(known.max() / known.min()), 0.3)
    below = decades * (0.04 if at_top or not np.any(still) else 0.16)
    above = decades * (0.16 if at_top and np.any(still) else 0.04)
    axis.set_ylim(known.min() / 10**below, known.max() * 10**above)
    ticks = _powers(10.0 if at_top else 2.0, known.min(), known.max())
    axis.set_yticks(ticks, [_tick_label(tick) for tick in ticks])
    axis.minorticks_off()
    middle = 0.96 if at_top else 0.04
    shown = [nth for nth in range(len(values)) if still[nth].any()]
    for place, nth in enumerate(shown):
        pairs = np.flatnonzero(still[nth])
        # slightly apart, so that every curve remains visible
        height = middle + 0.03 * (place / (len(shown) - 1) - 0.5 if len(shown) > 1 else 0)
        edge = axis.get_xaxis_transform()  # data along x, fraction of the panel along y
        style = {**styles[nth], "linestyle": "none"}
        axis.plot(pairs, np.full(pairs.size, height), transform=edge, **style)
    if shown:
        axis.annotate(
            "∞" if at_top else "0",
            (0, middle),
            xycoords="axes fraction",
            xytext=(-8, 0),
            textcoords="offset points",
            ha="right",
            va="center",
        )


def _tick_label(value: float) -> str:
    return short_number(value) if value >= 1 else f"1/{short_number(1 / value)}"


def _powers(base: float, low: float, high: float) -> NDArray[np.float64]:
    """Return at most ten evenly spaced powers of `base` between low and high."""
    first = math.ceil(math.log(low, base) - 1e-6)
    last = math.floor(math.log(high, base) + 1e-6)
    powers = np.arange(first, last + 1, max(1, math.ceil((last - first + 1) / 10)))
    return np.power(base, powers, dtype=np.float64)


def _mark_length(axis: Axes, length: int, label: str, *, above: bool) -> None:
    axis.axhline(length, color="0.6", linewidth=1, zorder=0)
    axis.annotate(
        label,
        (1, length),
        xycoords=("axes fraction", "data"),
        xytext=(3, 0),
        textcoords="offset points",
        va="bottom" if above else "top",
        fontsize=SMALL_SIZE,
        color=NOTE,
    )


def _title(figure: Figure, title: str) -> None:
    figure.suptitle(fold_title(title, figure.get_figwidth()))


def _shortened(name: str) -> str:
    return name if len(name) <= _MAX_NAME else name[: _MAX_NAME - 1] + "…"
