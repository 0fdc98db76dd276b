"""Distance profiles: how well a model copies from so many tokens back, by scaling."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from rope_jax.config.presentation import FigureWidth
from rope_jax.plots.figure import ShownFigure
from rope_jax.plots.heat import TaskPoint
from rope_jax.plots.labels import thin_length_ticks
from rope_jax.plots.panels import fold_title, legend_columns, mark_windows
from rope_jax.plots.style import BAND_OPACITY, WIDTHS, assign_styles, figure_style

_LABELS = {"nats": "nats per token", "exact": "exact (%)"}


@runtime_checkable
class DistancePoint(TaskPoint, Protocol):
    """One metric of a task that has one distance per length."""

    @property
    def kind(self) -> str:
        """The type of the scaling or map, which determines the colour."""
        ...

    @property
    def distance(self) -> int | None: ...
    @property
    def ci_low(self) -> float: ...
    @property
    def ci_high(self) -> float: ...


def draw_distances(
    points: Sequence[DistancePoint],
    *,
    window: int,
    borders: Mapping[str, int],
    title: str,
    width: FigureWidth = "page",
) -> ShownFigure:
    """Draw nats and exact answers over the distance to the token that has to be found.

    Of a task without such a distance, they are drawn over the length.

    A dotted line of the same colour is the same with that token taken out. The training window is
    marked, and with a short line at the top each distance from which a map changes what is seen.

    points: of one task and checkpoint. borders: of the scalings with a map, that distance in
    tokens. width: of a paper's column or page.
    """
    names = list(dict.fromkeys(point.name for point in points))
    kinds = {p.name: p.name if p.name == "trained" else p.kind for p in points}
    metrics = [metric for metric in _LABELS if any(p.metric == metric for p in points)]
    inches = WIDTHS[width]
    stacked = width == "column"
    with figure_style():
        styles = assign_styles({name: kinds[name] for name in names})
        heading = fold_title(title, inches)
        legend: list[Artist] = [
            Line2D([], [], label=name, **vars(style)) for name, style in styles.items()
        ]
        if any(point.taken_out for point in points):
            legend.append(Line2D([], [], label="taken out", color="0.4", linestyle=":"))
        if borders.keys() & set(names):
            legend.append(_border_handle())
        columns = legend_columns([str(handle.get_label()) for handle in legend], inches)
        panels = len(metrics) if stacked else 1
        rows = -(-len(legend) // columns)
        height = 2.3 * panels + 0.16 * len(heading.splitlines()) + 0.3 + 0.155 * rows
        figure = ShownFigure(figsize=(inches, height), layout="constrained")
        figure.suptitle(heading)
        shape = (len(metrics), 1) if stacked else (1, len(metrics))
        axes = figure.subplots(*shape, squeeze=False)
        for axis, metric in zip(axes.flat, metrics, strict=True):
            scale = 100.0 if metric == "exact" else 1.0
            for name, style in styles.items():
                own = [p for p in points if (p.name, p.metric) == (name, metric)]
                asked = [p for p in own if not p.taken_out]
                x, y, low, high = _columns(asked, scale)
                axis.plot(x, y, **vars(style))
                axis.fill_between(x, low, high, color=style.color, alpha=BAND_OPACITY, linewidth=0)
                x, y, _, _ = _columns([p for p in own if p.taken_out], scale)
                axis.plot(x, y, color=style.color, linestyle=":", linewidth=0.9)
                if name in borders:
                    _mark_border(axis, borders[name], style.color)
            _scale(axis, sorted({_place(p) for p in points}))
            mark_windows(axis, [window], with_label=True)
            has_distance = points[0].distance is not None
            axis.set_xlabel("distance (tokens)" if has_distance else "context length (tokens)")
            axis.set_ylabel(_LABELS[metric])
            if metric == "exact":
                axis.set_ylim(-3, 103)
        figure.legend(handles=legend, loc="outside lower center", ncols=columns)
        figure.draw_without_rendering()  # lays out the panels
        for axis in axes.flat:
            thin_length_ticks(axis)
    return figure


def _columns(points: Sequence[DistancePoint], scale: float) -> tuple[np.ndarray, ...]:
    """Return distances, values and the ends of their intervals; nan leaves a gap."""
    rows = [(_place(p), scale * p.value, scale * p.ci_low, scale * p.ci_high) for p in points]
    found = np.array(rows, np.float64).reshape(-1, 4).T
    return tuple(np.where(np.isfinite(column), column, np.nan) for column in found)


def _place(point: DistancePoint) -> int:
    return point.length if point.distance is None else point.distance


def _scale(axis: Axes, distances: Sequence[int]) -> None:
    axis.set_xscale("log", base=2)
    axis.set_xticks(distances, [f"{n:,}" for n in distances])
    axis.minorticks_off()
    margin = max(distances[-1] / distances[0], 2) ** 0.04
    axis.set_xlim(distances[0] / margin, distances[-1] * margin)
    axis.grid(True, which="major")


def _mark_border(axis: Axes, distance: int, colour: object) -> None:
    """Mark the distance from which a map changes what a query sees, at the top of a panel."""
    axis.plot(
        [distance, distance],
        [0.94, 1.0],
        transform=axis.get_xaxis_transform(),
        color=str(colour),
        linewidth=1.5,
        zorder=1,
    )


def _border_handle() -> Line2D:
    """Return the legend's sample of the mark of a map's border."""
    line: dict[str, Any] = {"marker": "|", "linestyle": "none", "markersize": 8}
    return Line2D([], [], label="a map begins", markeredgewidth=1.5, color="0.4", **line)
