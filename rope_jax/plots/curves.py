"""The curves of one checkpoint: perplexity over context length, by scaling."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

from rope_jax.plots.figure import ShownFigure
from rope_jax.plots.lines import PlottedPoint, draw_line
from rope_jax.plots.panels import draw_panels
from rope_jax.plots.style import BAND_OPACITY, LineStyle, assign_styles, literal_text

# With more curves than this, their bands would hide one another.
_MOST_BANDS = 8


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
    points: Sequence[SweptPoint], *, window: int, truncation: float | None, title: str
) -> ShownFigure:
    """Draw perplexity over context length, log-log: one panel per protocol, one line per scaling.

    points: of one checkpoint, such as rows of results.csv. window: the training window, marked in
    every panel. truncation: the NLL at the window, which is what dropping all earlier text gives at
    any length; None if unknown.
    """
    names = list(dict.fromkeys(point.name for point in points))
    styles = _styles(points)
    opacity = BAND_OPACITY if len(names) <= _MOST_BANDS else 0.0
    with literal_text():
        figure, axes = draw_panels(
            points,
            windows=[window],
            truncation=[] if truncation is None else [truncation],
            legend_lines=len(names),
            with_bands=opacity > 0,
        )
        for protocol, axis in axes.items():
            for name in names:
                own = [p for p in points if (p.protocol, p.name) == (protocol, name)]
                draw_line(axis, name, styles[name], own, band_opacity=opacity)
        figure.suptitle(title, fontsize=11)
        handles, labels = next(iter(axes.values())).get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=9)
    return figure


def _styles(points: Sequence[SweptPoint]) -> dict[str, LineStyle]:
    """Return each curve's style by name; curves with a fixed factor above 1 are dashed."""
    last = {point.name: point for point in points}
    kinds = {name: name if name == "trained" else point.kind for name, point in last.items()}
    styles = assign_styles(kinds)
    for name, point in last.items():
        if name != "trained" and not point.auto and (point.factor or 1) > 1:
            styles[name] = replace(styles[name], linestyle="--")
    return styles
