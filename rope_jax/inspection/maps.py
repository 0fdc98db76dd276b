"""Position maps side by side: r(i, j) of every query and key as a picture, and a table.

Notation as in `rope_jax.positions.maps`; n is the text's length.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Patch
from rich.console import Console
from rich.text import Text

from rope_jax.config.inspection import MapsConfig
from rope_jax.console import print_table, short_number
from rope_jax.errors import UserError, errors_in
from rope_jax.plots.panels import fold_text, label_lowest, make_grid
from rope_jax.plots.style import SMALL_SIZE
from rope_jax.positions.maps import MapBand, PositionMap, relative_positions
from rope_jax.positions.maps.fitted import FittedMap
from rope_jax.positions.mask import BandMask
from rope_jax.results.files import format_csv
from rope_jax.rope import RotaryGeometry, RotaryLayers
from rope_jax.rope.pairs import exact_frequencies
from rope_jax.sealed import write_text

PLAIN_NAME = "rope"
_PLAIN = (MapBand(BandMask()),)
_ROWS = 256  # queries whose keys are held in memory together
MAX_PIXELS = 512  # along a side of a panel; of longer texts, evenly spaced tokens are drawn
_UNTRAINED = "#D55E00"
_HATCH = "////"


class ShownMap(NamedTuple):
    """A map at one window and length, with what follows from it."""

    name: str
    settings: str
    """Without "auto"."""
    bands: tuple[MapBand, ...]
    """Of a map whose r differs from pair to pair: those of the slowest."""
    largest: float
    """The largest r of all visible keys."""
    visible: float
    """The share of the n(n + 1)/2 pairs of a query and a key before or at it that are visible."""
    window: int
    obstacle: str = ""
    """Why a text of n tokens leaves the trained window, from `check_reach`; "" if it does not."""

    @property
    def reaches(self) -> bool:
        """Whether n tokens stay at relative positions that occurred in training, up to L − 1."""
        return not self.obstacle and self.largest <= self.window - 1


def shown_maps(asked: MapsConfig) -> list[ShownMap]:
    """Return plain RoPE and every requested map, also one that leaves the trained window.

    UserError: a map's "auto" has no solution, or the scaling in it does not fit the geometry.
    """
    types = [map_.type for map_ in asked.maps]
    shown = [_visit(PLAIN_NAME, "", _PLAIN, asked)]
    for map_ in asked.maps:
        name = map_.type if types.count(map_.type) == 1 else map_.label
        with errors_in(f"maps: {name}: ", UserError):  # the message names a setting
            shown.append(_shown_map(name, map_, asked))
    return shown


def _shown_map(name: str, map_: PositionMap, asked: MapsConfig) -> ShownMap:
    window, length = asked.window, asked.text_length
    if isinstance(map_, FittedMap):
        raise ValueError(
            "type: fitted has no single r(i, j), because its numbers differ between pairs and "
            "heads; numbers.png beside its strategy file shows them"
        )
    resolved = map_.at(window, length)
    if resolved is None:
        return _visit(name, "auto: no map up to L tokens", _PLAIN, asked)
    settings, bands = resolved.settings_text, resolved.bands(window, length)
    if any(band.far is not None for band in bands):
        settings += "; slowest pair"
        bands = tuple(_slowest_pair(band, asked.geometry, length) for band in bands)
    shown = _visit(name, settings, bands, asked)
    try:
        resolved.check_reach(window, length)
    except ValueError as error:
        return shown._replace(obstacle=str(error))
    return shown


def _visit(name: str, settings: str, bands: tuple[MapBand, ...], asked: MapsConfig) -> ShownMap:
    """Visit every pair of a query and a key."""
    length, largest, visible = asked.text_length, 0.0, 0
    for first in range(0, length, _ROWS):
        queries = np.arange(first, min(first + _ROWS, length))
        r = relative_positions(bands, queries, np.arange(queries[-1] + 1))
        largest = max(largest, float(np.nanmax(r)))
        visible += int((~np.isnan(r)).sum())
    share = visible / (length * (length + 1) / 2)
    return ShownMap(name, settings, bands, largest, share, asked.window)


def _slowest_pair(band: MapBand, geometry: RotaryGeometry, length: int) -> MapBand:
    """Return a band whose r is that of the slowest pair, if it has frequencies θ' of its own.

    θ'·(f − g) + (θ − θ')·border is the angle θ·r of a band with the divisor θ/θ'. ValueError: the
    scaling that gives θ' does not fit the geometry.
    """
    if band.far is None:
        return band
    layers = RotaryLayers(geometry)
    layers.check(band.far, length)
    _, far = layers.for_layer(0, band.far)
    theta, other = geometry.inv_freq()[-1], exact_frequencies(far, geometry, length)[0][-1]
    return replace(band, far=None, divisor=float(theta / other) if other else math.inf)


def print_maps(console: Console, shown: Sequence[ShownMap]) -> None:
    """Print one row per map, then why those that leave the trained window do."""
    rows = [
        (
            made.name,
            made.settings,
            short_number(made.largest),
            "100%" if made.visible == 1 else f"{min(made.visible, 0.999):.1%}",
            "yes" if made.reaches else "no",
        )
        for made in shown
    ]
    print_table(console, ("map", "settings", "largest r", "visible", "reaches n"), rows, left=2)
    for made in shown:
        if made.obstacle:
            console.print(Text(f"{made.name}: {made.obstacle}"))
    console.print(
        "\nvisible: share of the keys up to the query's own that it sees\n"
        "reaches n: all of these keys are at positions r that occurred in training, up to L − 1\n",
        style="dim",
    )


def write_map_rows(path: Path, shown: Sequence[ShownMap], length: int) -> None:
    """Write r(n − 1, n − 1 − d) by map, one row per distance d; "" for a hidden key."""
    tokens = np.arange(length)
    columns = [relative_positions(made.bands, tokens[-1:], tokens[::-1])[0] for made in shown]
    rows = (
        [str(distance), *("" if np.isnan(r) else f"{r:.12g}" for r in row)]
        for distance, row in enumerate(zip(*columns, strict=True))
    )
    write_text(path, format_csv(["distance", *(made.name for made in shown)], rows))


def maps_figure(shown: Sequence[ShownMap], length: int) -> Figure:
    """Draw r(i, j) in one panel per map: queries downwards, keys to the right.

    Hidden keys are blank. Positions above L − 1, which never occurred in training, have a colour
    and hatching of their own. Of more than 512 tokens, 512 evenly spaced ones are drawn.
    """
    columns = min(3, len(shown))
    title = f"relative positions; trained window L {shown[0].window:,}, text of n {length:,} tokens"
    grid: dict[str, Any] = {"row_height": 6.6 / columns, "extra": 0.75, "title": title}
    figure, axes = make_grid(len(shown), columns, width="page", **grid)
    for number, (axis, made) in enumerate(zip(axes, shown, strict=True)):
        image = _panel(axis, made, length)
        label_lowest(axis, "key j", number, len(shown), columns)
        if number % columns == 0:
            axis.set_ylabel("query i")
    last = shown[0].window - 1
    shrink = min(1, 2 * columns / len(shown))
    bar = figure.colorbar(image, ax=axes, extend="max", shrink=shrink, pad=0.02)
    bar.set_label("relative position r(i, j)")
    ticks = [tick for tick in bar.get_ticks() if tick < 0.93 * last]
    bar.set_ticks([*ticks, last], labels=[f"{tick:,.0f}" for tick in (*ticks, last)])
    meanings = [
        Patch(facecolor=_UNTRAINED, edgecolor="white", hatch=_HATCH, label="r > L − 1: untrained"),
        Patch(facecolor="white", edgecolor="0.6", label="not visible"),
    ]
    figure.legend(handles=meanings, loc="outside lower center", ncols=2)
    return figure


def _panel(axis: Axes, made: ShownMap, length: int) -> AxesImage:
    tokens = np.unique(np.linspace(0, length - 1, min(length, MAX_PIXELS)).round().astype(int))
    r = relative_positions(made.bands, tokens, tokens)
    edges = (-0.5, length - 0.5)
    image = axis.imshow(
        r,
        extent=(*edges, *edges[::-1]),
        interpolation="nearest",
        cmap=matplotlib.colormaps["viridis"].with_extremes(over=_UNTRAINED),
        norm=Normalize(0, made.window - 1),
    )
    untrained = r > made.window - 1
    if untrained.any():
        hatched = axis.contourf(
            *(tokens, tokens, untrained), levels=[0.5, 1.5], colors="none", hatches=[_HATCH]
        )
        hatched.set(edgecolor="white", linewidth=0)
    title = fold_text(f"{made.name} {made.settings and f'({made.settings})'}", 28)
    axis.set_title(
        f"{title}\nL {made.window:,}, largest r {short_number(made.largest)}", fontsize=SMALL_SIZE
    )
    return image
