"""The curves of one checkpoint: perplexity over context length, by scaling."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

from matplotlib.artist import Artist
from matplotlib.lines import Line2D

from rope_jax.config.presentation import FigureWidth
from rope_jax.plots.figure import ShownFigure
from rope_jax.plots.labels import LineEnd, label_line_ends
from rope_jax.plots.lines import PlottedPoint, draw_background, draw_line, line_end
from rope_jax.plots.panels import (
    Panels,
    apart_handles,
    finish_panels,
    make_panels,
    mark_truncation,
    truncation_handle,
)
from rope_jax.plots.style import (
    BAND_OPACITY,
    MOST_CURVES,
    REFERENCE,
    LineStyle,
    assign_styles,
    figure_style,
)
from rope_jax.protocols import BASELINE

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


def draw_curves(
    points: Sequence[SweptPoint],
    *,
    window: int,
    truncation: float | None,
    title: str,
    width: FigureWidth = "page",
) -> ShownFigure:
    """Draw perplexity over context length, log-log: one panel per protocol, one line per scaling.

    Of more than six scalings, each has its own panel, with the others in grey behind it. Lines are
    labelled at their ends where there is room, otherwise in a legend.

    points: of one checkpoint, such as rows of results.csv. window: the training window, marked in
    every panel. truncation: the NLL at the window, which is what dropping all earlier text gives at
    any length; None if unknown. width: of a paper's column, 3.3 inches, or page, 6.8.
    """
    names = list(dict.fromkeys(point.name for point in points))
    styles = _styles(points)
    with figure_style():
        panels = make_panels(
            points,
            windows=[window],
            truncation=[] if truncation is None else [truncation],
            banded=points,
            title=title,
            width=width,
            keys=names if len(names) > MOST_CURVES else None,
        )
        for axis in panels.of_same_tokens:
            mark_truncation(axis, [] if truncation is None else [truncation])
        curves = {
            (protocol, name): [p for p in points if (p.protocol, p.name) == (protocol, name)]
            for protocol, _ in panels.axes
            for name in names
        }
        if len(names) > MOST_CURVES:
            handles = _draw_apart(panels, curves, styles)
        else:
            handles = _draw_together(panels, curves, styles, truncation)
        if handles and truncation is not None and panels.of_same_tokens:
            handles.append(truncation_handle())
        finish_panels(panels, handles)
    return panels.figure


def _draw_together(
    panels: Panels,
    curves: Mapping[tuple[str, str], Sequence[SweptPoint]],
    styles: Mapping[str, LineStyle],
    truncation: float | None,
) -> list[Artist]:
    """Draw all curves in each panel; return what the legend has to explain, if it is needed."""
    for (protocol, _), axis in panels.axes.items():
        for name, style in styles.items():
            draw_line(axis, name, style, curves[protocol, name], band_opacity=BAND_OPACITY)
    if len(panels.axes) == 1:
        (((protocol, _), axis),) = panels.axes.items()
        ends = [
            LineEnd(name, style.color, *end)
            for name, style in styles.items()
            if (end := line_end(curves[protocol, name])) is not None
        ]
        if label_line_ends(axis, ends, level=truncation if protocol == BASELINE else None):
            return []
    return [Line2D([], [], label=name, **vars(style)) for name, style in styles.items()]


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
