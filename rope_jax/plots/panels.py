"""The parts of all figures: a grid of panels, its legend, and labels that have room."""

import math
import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from rope_jax.config.presentation import FigureWidth
from rope_jax.plots.saving import ShownFigure
from rope_jax.plots.style import NOTE, SMALL_SIZE, TEXT_SIZE, WIDTHS

_WINDOW: dict[str, Any] = {"color": "0.6", "linewidth": 0.8}
_ABOVE: dict[str, Any] = {
    **{"xycoords": ("data", "axes fraction"), "xytext": (0, 1.5), "textcoords": "offset points"},
    **{"ha": "center", "va": "bottom", "fontsize": SMALL_SIZE, "color": NOTE},
}
_LINEAR = 0.02  # nats
_LINE_HEIGHT = 0.155  # inches, of a title or a legend
_LETTER = 0.6 * SMALL_SIZE / 72  # inches, the mean width of a letter of the small size


def make_grid(
    count: int,
    columns: int,
    *,
    blocks: int = 1,
    row_height: float,
    title: str,
    width: FigureWidth,
    sharey: bool = True,
    extra: float = 0.4,
) -> tuple[ShownFigure, list[Axes]]:
    """Return a figure and its panels: blocks of `count` panels, each of which begins a row.

    row_height, and the extra height beside the title: in inches.
    """
    rows: list[Any] = []  # of places; None where there is no panel
    for first in range(0, blocks * count, count):
        places = [*range(first, first + count), *[None] * (-count % columns)]
        rows += [places[i : i + columns] for i in range(0, len(places), columns)]
    title = fold_title(title, WIDTHS[width])
    height = row_height * len(rows) + extra + _LINE_HEIGHT * len(title.splitlines())
    figure = ShownFigure(figsize=(WIDTHS[width], height), layout="constrained")
    if title:
        figure.suptitle(title)
    axes = figure.subplot_mosaic(rows, sharey=sharey, empty_sentinel=None)
    return figure, [axes[place] for place in range(blocks * count)]


def add_legend(figure: Figure, handles: Sequence[Artist], *, may_be_beside: bool = False) -> None:
    """Add a legend below the panels, for which the figure gets higher; or beside, if it fits."""
    labels = [str(handle.get_label()) for handle in handles]
    if not labels:
        return
    inches = figure.get_figwidth()
    widths = [_LETTER * max(map(len, label.split("\n"))) for label in labels]
    if may_be_beside and max(widths) < 0.25 * inches:
        figure.legend(handles=handles, loc="outside right center")
        return
    for rows in range(1, len(labels) + 1):
        columns = [max(widths[i : i + rows]) for i in range(0, len(labels), rows)]
        # each column has a sample of the line, the text and a gap
        if sum(column + 0.45 for column in columns) <= inches:
            break
    figure.legend(handles=handles, loc="outside lower center", ncols=len(columns))
    lines = rows * max(label.count("\n") + 1 for label in labels)
    figure.set_figheight(figure.get_figheight() + _LINE_HEIGHT * lines)


def tick_handle(label: str, color: str, width: float) -> Line2D:
    """Return a legend's sample of a short vertical line."""
    mark: dict[str, Any] = {"marker": "|", "markersize": 8, "markeredgewidth": width}
    return Line2D([], [], label=label, color=color, linestyle="none", **mark)


def mark_windows(axis: Axes, windows: Iterable[int], *, with_label: bool) -> None:
    """Draw a line at each training window within the limits, labelled above the panel."""
    low, high = axis.get_xlim()
    windows = list(windows)
    for window in windows:
        if not low <= window <= high:
            continue
        axis.axvline(window, zorder=1.4, **_WINDOW)
        if with_label:
            label = "window" if len(windows) == 1 else f"{window:,}"
            axis.annotate(label, (window, 1), **_ABOVE)


def scale_lengths(axis: Axes, lengths: Sequence[int], inches: float) -> None:
    """Make the horizontal axis, so many inches wide, logarithmic, with a tick at each length.

    Ticks are labelled where the labels do not touch, the last in any case.
    """
    low, high = lengths[0], lengths[-1]
    octaves = max(math.log2(high / low), 1)
    least = (_LETTER * len(f"{high:,}") + 0.05) / inches * octaves
    labels: list[str] = []
    labelled = math.inf
    for length in reversed(lengths):
        has_room = math.log2(labelled / length) >= least
        labels.append(f"{length:,}" if has_room else "")
        labelled = length if has_room else labelled
    axis.set_xscale("log", base=2)
    axis.set_xticks(lengths, labels[::-1])
    axis.minorticks_off()
    axis.set_xlim(low / 2 ** (0.04 * octaves), high * 2 ** (0.04 * octaves))
    axis.grid(True, which="major")


def label_lowest(axis: Axes, label: str, number: int, count: int, columns: int) -> None:
    """Label the horizontal axis of panel `number` of `count` if no panel lies below it."""
    is_lowest = number + columns >= count
    axis.tick_params(labelbottom=is_lowest)
    if is_lowest:
        axis.set_xlabel(label)
        # above an empty place, labels reach into it instead of moving the next row down
        axis.xaxis.set_in_layout(number // columns == (count - 1) // columns)


def panel_columns(count: int, width: FigureWidth) -> int:
    """Return how many of `count` panels are in a row."""
    if width == "column":
        return 1 if count <= 2 else 2
    if count <= 3:
        return count
    return min((4, 3), key=lambda columns: -count % columns)  # the fewest empty places


def fold_title(title: str, inches: float) -> str:
    """Break a title into lines that fit a figure's width."""
    return fold_text(title, int(13.5 * inches))


def fold_text(text: str, letters: int) -> str:
    """Break each line of a text at spaces, so that no line is longer than `letters`.

    What is in parentheses stays together if it fits a line.
    """

    def joined(match: re.Match[str]) -> str:
        return match[0].replace(" ", "\xa0") if len(match[0]) <= letters else match[0]

    lines = re.sub(r"\([^()]*\)\S*", joined, text).split("\n")
    folded = (textwrap.fill(line, letters, break_on_hyphens=False) for line in lines)
    return "\n".join(folded).replace("\xa0", " ")


def scale_nats(axis: Axis, low: float, high: float, inches: float, what: str) -> None:
    """Make a vertical axis of differences in nats, so many inches high, symmetrically logarithmic.

    Within ±0.02 it is linear; it is linear as a whole if it does not reach beyond ±0.05.
    """
    axis.axes.set_ylim(low, high)
    letters = int(inches / (0.55 * TEXT_SIZE / 72))
    most = max(abs(low), abs(high))
    if most <= 0.05:
        axis.set_major_locator(MaxNLocator(5))
        axis.set_major_formatter(lambda tick, _: signed(tick))
    else:
        axis.axes.set_yscale("symlog", linthresh=_LINEAR, linscale=1.5)
        what += f" (symlog: linear within ±{_LINEAR:g})"
        for digits in ((1, 2, 5), (1, 3), (1,)):
            sizes = [d * 10.0**n for n in range(-2, 4) for d in digits if d * 10.0**n >= _LINEAR]
            ticks = [*(-size for size in reversed(sizes)), 0.0, *sizes]
            ticks = [tick for tick in ticks if low <= tick <= high]
            if len(ticks) * 0.22 <= inches:
                break
        axis.set_ticks(ticks, [signed(tick) for tick in ticks])
    axis.set_minor_locator(NullLocator())
    axis.set_label_text(fold_text(what, letters))


def signed(number: float) -> str:
    """Return a tick's label: its sign and number; minus is U+2212."""
    return f"{number:+g}".replace("-", "−") if number else "0"


def label_powers(axis: Axis, low: float, high: float) -> None:
    """Put ticks at round numbers of a logarithmic axis, and write them without exponents."""
    decades = math.log10(high / low)
    ranges = ((1.3, (1, 2, 3, 5)), (2, (1, 2, 5)), (3, (1, 3)), (math.inf, (1,)))
    digits = next(digits for most, digits in ranges if decades < most)
    locator = LogLocator(subs=digits) if decades > 0.5 else MaxNLocator(5, steps=[1, 2, 5, 10])
    axis.set_major_locator(locator)
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())
