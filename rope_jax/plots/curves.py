"""Curves of perplexity over context length; the figure of one checkpoint's scalings."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D

from rope_jax.config.presentation import FigureWidth
from rope_jax.plots.panels import (
    Panels,
    PlottedPoint,
    apart_handles,
    finish_panels,
    make_panels,
    mark_truncation,
    perplexities,
    truncation_handle,
)
from rope_jax.plots.saving import ShownFigure
from rope_jax.plots.style import (
    BACKGROUND,
    BAND_OPACITY,
    MOST_CURVES,
    REFERENCE,
    LineStyle,
    assign_styles,
    figure_style,
)

_TRAINED = "trained"


@runtime_checkable
class SweptPoint(PlottedPoint, Protocol):
    """One point of a scaling's curve, such as a row of results.csv."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str:
        """The type of the scaling or map, which determines the colour."""
        ...

    @property
    def factor(self) -> float | None: ...
    @property
    def auto(self) -> bool:
        """Whether the factor follows from the length."""
        ...


def draw_line(
    axis: Axes,
    label: str,
    style: LineStyle,
    points: Sequence[PlottedPoint],
    *,
    band_opacity: float,
) -> None:
    """Draw one curve through its points, and its interval as a band (none where opacity is 0)."""
    if not points:
        return
    x = [point.last_position for point in points]
    drawn = perplexities(points)
    # nan leaves a gap; inf makes matplotlib warn
    middle, low, high = np.where(np.isfinite(drawn), drawn, np.nan)
    axis.plot(x, middle, label=label, **vars(style))
    if band_opacity and len(x) > 1:
        axis.fill_between(x, low, high, color=style.color, alpha=band_opacity, linewidth=0)
    elif band_opacity:  # a band needs two points
        axis.vlines(x, low, high, color=style.color, alpha=0.5, linewidth=style.linewidth)


def draw_background(axis: Axes, curves: Iterable[tuple[LineStyle, Sequence[PlottedPoint]]]) -> None:
    """Draw the curves that other panels are about, in light grey and behind everything."""
    shown = [(style.linestyle, points) for style, points in curves if points]
    lines = []
    for _, points in shown:
        y = perplexities(points)[0]
        x = [point.last_position for point in points]
        lines.append(np.column_stack([x, np.where(np.isfinite(y), y, np.nan)]))
    # to matplotlib, a line costs as much as hundreds of points
    axis.add_collection(
        LineCollection(
            lines,
            colors=BACKGROUND,
            linewidths=0.7,
            linestyles=[dashes for dashes, _ in shown],
            zorder=1.2,
        ),
        autolim=False,
    )


def draw_curves(
    points: Sequence[SweptPoint],
    *,
    window: int,
    truncation: float | None,
    title: str,
    width: FigureWidth = "page",
) -> ShownFigure:
    """Draw perplexity over context length, log-log: one panel per protocol, one line per scaling.

    Of more than six scalings, each has its own panel, with the others in grey behind it.

    points: of one checkpoint, such as rows of results.csv. window: the training window, marked in
    every panel. truncation: the NLL at the window, which is what dropping all earlier text gives at
    any length; None if unknown. width: of a paper's column, 3.3 inches, or page, 6.8.
    """
    names = list(dict.fromkeys(point.name for point in points))
    styles = _styles(points)
    is_apart = len(names) > MOST_CURVES
    levels = [] if truncation is None else [truncation]
    with figure_style():
        panels = make_panels(
            points,
            windows=[window],
            truncation=levels,
            banded=points,
            title=title,
            width=width,
            keys=names if is_apart else None,
        )
        for axis in panels.of_same_tokens:
            mark_truncation(axis, levels)
        curves = {
            (protocol, name): [p for p in points if (p.protocol, p.name) == (protocol, name)]
            for protocol, _ in panels.axes
            for name in names
        }
        handles = (_draw_apart if is_apart else _draw_together)(panels, curves, styles)
        if levels and panels.of_same_tokens:
            handles.append(truncation_handle())
        finish_panels(panels, handles)
    return panels.figure


def _draw_together(
    panels: Panels,
    curves: Mapping[tuple[str, str], Sequence[SweptPoint]],
    styles: Mapping[str, LineStyle],
) -> list[Artist]:
    """Draw all curves in each panel; return what the legend explains."""
    for (protocol, _), axis in panels.axes.items():
        for name, style in styles.items():
            draw_line(axis, name, style, curves[protocol, name], band_opacity=BAND_OPACITY)
    names = list(styles)
    if len(panels.axes) == 1:  # in the order of the lines' right ends, which are beside the legend
        ends = {name: points[-1].nll for (_, name), points in curves.items()}
        names.sort(key=lambda name: -ends[name])
    return [Line2D([], [], label=name, **vars(styles[name])) for name in names]


def _draw_apart(
    panels: Panels,
    curves: Mapping[tuple[str, str], Sequence[SweptPoint]],
    styles: Mapping[str, LineStyle],
) -> list[Artist]:
    """Draw one curve in each panel, with the others behind it; return what the legend explains."""
    for (protocol, name), axis in panels.axes.items():
        others = {other: style for other, style in styles.items() if other not in (name, _TRAINED)}
        draw_background(axis, ((style, curves[protocol, other]) for other, style in others.items()))
        if name != _TRAINED and _TRAINED in styles:
            draw_line(axis, _TRAINED, REFERENCE, curves[protocol, _TRAINED], band_opacity=0.0)
        draw_line(axis, name, styles[name], curves[protocol, name], band_opacity=BAND_OPACITY)
    return apart_handles("the other scalings", _TRAINED if _TRAINED in styles else None)


def _styles(points: Sequence[SweptPoint]) -> dict[str, LineStyle]:
    """Return each curve's style by name; curves with a fixed factor above 1 are dashed."""
    last = {point.name: point for point in points}
    kinds = {name: name if name == _TRAINED else point.kind for name, point in last.items()}
    styles = assign_styles(kinds)
    for name, point in last.items():
        if name != _TRAINED and not point.auto and (point.factor or 1) > 1:
            styles[name] = replace(styles[name], linestyle="--")
    return styles
