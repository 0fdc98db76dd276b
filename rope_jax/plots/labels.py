"""Labels at the right ends of lines, folded text, and tick labels that do not run together."""

import itertools
import math
import re
import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from numpy.typing import NDArray

from rope_jax.plots.style import NOTE, SMALL_SIZE

# Labels may take this share of a panel's width; with longer ones, a legend says what is what.
_MOST_WIDTH = 0.42
_LINE_HEIGHT = 1.25  # of a label, in font sizes
_GAP = 9.0  # points between the last tick and the labels
_DARKER = 0.72  # light colours are hard to read as text


# A parenthesis, with what touches it, or a word.
_WORD = re.compile(r"\([^()]*\)\S*|\S+")


def fold_text(text: str, letters: int) -> str:
    """Break each line of a text at spaces, so that no line is longer than `letters`.

    What is in parentheses stays together, on a line of its own if need be: "wide (3 seeds)" becomes
    "wide" and "(3 seeds)". If it is too long for one line, it is broken after commas.
    """
    return "\n".join(_fold_line(line, letters) for line in text.split("\n"))


def _fold_line(line: str, letters: int) -> str:
    lines = [""]
    for word in _WORD.findall(line):
        # a part still too long is broken at its spaces
        parts = re.split(r"(?<=[,;])\s+", word) if len(word) > letters else [word]
        for part in parts:
            for piece in textwrap.wrap(part, letters, break_on_hyphens=False):
                joined = f"{lines[-1]} {piece}".lstrip()
                if len(joined) <= letters:
                    lines[-1] = joined
                else:
                    lines.append(piece)
    return "\n".join(lines)


class LineEnd(NamedTuple):
    """The label of a line, and where the line ends, in data coordinates."""

    label: str
    color: Any
    x: float
    y: float


def label_line_ends(axis: Axes, ends: Sequence[LineEnd], *, level: float | None) -> bool:
    """Write labels beside the lines' right ends, apart from each other; make room for them.

    The axis has logarithmic scales and its final vertical limits. level: the NLL of truncation,
    which is labelled as well. Returns False, without a change, if the labels do not fit.
    """
    if level is not None:
        last = max((end.x for end in ends), default=axis.get_xlim()[1])
        ends = [*ends, LineEnd("truncation", NOTE, last, math.exp(level))]
    figure = _root(axis)
    figure.draw_without_rendering()  # lays out the panels
    panel = axis.get_window_extent()
    point = figure.dpi / 72
    texts = [axis.text(0, 0, end.label, fontsize=SMALL_SIZE) for end in ends]
    widths = [text.get_window_extent().width for text in texts]
    for text in texts:
        text.remove()
    room = (max(widths, default=0) + (_GAP + 4) * point) / panel.width
    lines = max((end.label.count("\n") + 1 for end in ends), default=1)
    height = lines * SMALL_SIZE * _LINE_HEIGHT * point / panel.height
    if not ends or room > _MOST_WIDTH or height * len(ends) > 1:
        return False
    _make_room(axis, room)
    for line in axis.get_lines():
        if line.get_transform() == axis.get_yaxis_transform(which="grid"):  # a level
            line.set_xdata([0, 1 - room + 2 * point / panel.width])
    heights = axis.transAxes.inverted().transform(
        axis.transData.transform([(end.x, end.y) for end in ends])
    )[:, 1]
    places = spread_apart(np.clip(heights, 0, 1), height, 0.5 * height, 1 - 0.5 * height)
    left = 1 - room + _GAP * point / panel.width
    for end, place in zip(ends, places, strict=True):
        axis.annotate(
            end.label,
            (end.x, end.y),
            xytext=(left, place),
            textcoords="axes fraction",
            fontsize=SMALL_SIZE,
            color=_darker(end.color),
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": end.color,
                "linewidth": 0.6,
                "shrinkA": 1,
                "shrinkB": 3,
                "relpos": (0, 0.5),
            },
        )
    return True


def spread_apart(
    places: NDArray[np.float64], gap: float, low: float, high: float
) -> NDArray[np.float64]:
    """Return places at least `gap` apart in [low, high], in the same order, moved the least.

    It is least squares: with the gaps subtracted, an isotonic regression (pool adjacent violators).
    """
    order = np.argsort(places, kind="stable")
    steps = gap * np.arange(len(places))
    blocks: list[list[float]] = []
    for value in places[order] - steps:
        blocks.append([value])
        while len(blocks) > 1 and np.mean(blocks[-2]) > np.mean(blocks[-1]):
            last = blocks.pop()
            blocks[-1] += last
    means = np.concatenate([np.full(len(block), np.mean(block)) for block in blocks])
    spread = np.empty_like(places)
    spread[order] = np.clip(means, low, high - steps[-1]) + steps
    return spread


def thin_length_ticks(axis: Axes) -> None:
    """Blank some labels of the horizontal axis so that the others do not touch."""
    axis.set_xticks(axis.get_xticks(), length_labels(axis))


def length_labels(axis: Axes) -> list[str]:
    """Return a label for each tick of the horizontal axis, "" where there is no room; the last has.

    Call this after a layout, such as by `figure.draw_without_rendering`.
    """
    ticks = axis.get_xticks()
    labels = [f"{tick:,.0f}" for tick in ticks]
    if len(ticks) < 2:
        return labels
    x = axis.transData.transform([(tick, 1) for tick in ticks])[:, 0] * 72 / _root(axis).dpi
    width = [0.64 * SMALL_SIZE * len(label) + 3 for label in labels]
    for stride in range(1, len(ticks) + 1):
        kept = range(len(ticks) - 1, -1, -stride)
        apart = [
            x[later] - x[earlier] >= (width[later] + width[earlier]) / 2
            for later, earlier in itertools.pairwise(kept)
        ]
        if all(apart):
            break
    return [label if i in kept else "" for i, label in enumerate(labels)]


def _make_room(axis: Axes, room: float) -> None:
    """Extend a logarithmic horizontal axis so that a share `room` on the right is free."""
    low, high = np.log2(axis.get_xlim())
    last = max(np.log2(line.get_xdata()).max() for line in axis.get_lines() if _has_lengths(line))
    # where the data end, relative to the axis without the margin on the right
    axis.set_xlim(2**low, 2 ** max(high, low + (last - low) / (1 - room)))


def _has_lengths(line: Any) -> bool:
    """Whether a line is a curve, not a level across the panel."""
    return bool(line.get_transform() == line.axes.transData) and len(line.get_xdata()) > 0


def _darker(color: Any) -> tuple[float, ...]:
    return tuple(_DARKER * channel for channel in to_rgb(color))


def _root(axis: Axes) -> Figure:
    figure = axis.get_figure(root=True)
    assert isinstance(figure, Figure)
    return figure
