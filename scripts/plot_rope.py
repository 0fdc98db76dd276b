"""Draw rotary frequencies without a model: the figures of docs/rope.md.

    python scripts/plot_rope.py decay     # the score of q = k = 1 by distance, for seven bases
    python scripts/plot_rope.py base      # the distances that a base allows, and known windows
    python scripts/plot_rope.py turns     # which pairs see the whole circle in a window

Writes rope-decay.png (and .pdf, .svg) and so on to the folder of --output, by default this one.
"""

import argparse
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator

from rope_jax.console import short_number
from rope_jax.plots.panels import label_lowest, make_grid, panel_columns
from rope_jax.plots.saving import save_figure
from rope_jax.plots.style import MARKERS, OKABE_ITO, WIDTHS, figure_style
from rope_jax.rope import RotaryGeometry
from rope_jax.rope.pairs import turns, unseen_share
from scripts.decay import (
    decay_scores,
    first_negative_distance,
    logarithmic_decay,
    octave_means,
)

BASES = (1.0, 10.0, 100.0, 500.0, 5000.0, 10000.0, 50000.0)
FARTHEST = 2**18  # tokens; farther negative scores are not searched for


class Model(NamedTuple):
    """A published model's rotary geometry before any scaling. window: of training, in tokens."""

    name: str
    dim: int
    base: float
    window: int

    @property
    def geometry(self) -> RotaryGeometry:
        return RotaryGeometry(self.dim, self.base, self.window)


KNOWN_MODELS = (
    Model("demo", 32, 1e4, 128),  # configs/demo.yaml
    Model("GPT-NeoX 20B", 24, 1e4, 2048),  # arXiv 2204.06745: a quarter of heads of 96
    Model("Llama 2", 128, 1e4, 4096),  # arXiv 2307.09288
    Model("Llama 3", 128, 5e5, 8192),  # arXiv 2407.21783, before its extension
    Model("Code Llama", 128, 1e6, 16384),  # arXiv 2308.12950
    Model("Qwen2.5", 128, 1e6, 32768),  # arXiv 2412.15115
)


def decay_figure(bases: Sequence[float], dim: int, length: int) -> Figure:
    """Draw Σ_i 2·cos(Δ·θ_i)/√d by distance, one panel per base, and one with all octave means."""
    has_means = len(bases) > 1
    count = len(bases) + has_means
    columns = panel_columns(count, "page")
    last = max(1, math.ceil(length / 2**0.5) - 1)  # half an octave before the end
    centres = np.unique(np.geomspace(1, last, 300).astype(np.int64))
    title = f"d {dim}, without scaling; score Σ 2·cos(Δθ')/√d"
    grid: dict[str, Any] = {"row_height": 1.45 if columns > 2 else 2.2, "extra": 0.75}
    figure, panels = make_grid(count, columns, title=title, width="page", **grid)
    thin: dict[str, Any] = {"alpha": 0.4, "linewidth": 0.4}
    shades = matplotlib.colormaps["viridis"](np.linspace(0, 0.8, len(bases)))
    for axis, base, colour in zip(panels, bases, shades, strict=False):
        geometry = RotaryGeometry(dim, base)
        score = decay_scores(geometry.inv_freq(), np.arange(length))
        means = octave_means(score, centres)
        axis.plot(np.arange(1, length), score[1:], color=colour, **thin)
        axis.plot(centres, means, color=colour, linewidth=1.4)
        if base > 1:
            distances = np.geomspace(1, min(base, length - 1), 100)
            expected = logarithmic_decay(geometry, distances)
            axis.plot(distances, expected, color="black", linestyle=":", linewidth=0.9)
        axis.set_title(f"base {f'{base:,}'.removesuffix('.0')}", color=colour)
        if has_means:
            panels[-1].plot(centres, means, linewidth=1.1, color=colour)
    if has_means:
        panels[-1].set_title("all octave means")
    for number, axis in enumerate(panels):
        axis.axhline(0, color="0.55", linewidth=0.9, zorder=0)
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_locator(LogLocator(base=2, numticks=5))
        axis.xaxis.set_major_formatter(lambda distance, _: f"{distance:,.0f}")
        axis.minorticks_off()
        axis.grid(True, which="major")
        label_lowest(axis, "distance Δ (tokens)", number, count, columns)
        if number % columns == 0:
            axis.set_ylabel("score")
    label = "√d·(1 − (ln Δ + 0.577)/ln b)"
    meanings = [
        Line2D([], [], color="0.4", alpha=0.5, linewidth=0.8, label="score"),
        Line2D([], [], color="0.4", linewidth=1.4, label="mean from Δ/√2 to Δ√2"),
        Line2D([], [], color="black", linestyle=":", linewidth=0.9, label=label),
    ]
    figure.legend(handles=meanings, loc="outside lower center", ncols=3)
    return figure


def base_figure(models: Sequence[Model]) -> Figure:
    """Draw the longest wavelength, first negative score and training windows against the base."""
    figure = Figure(figsize=(WIDTHS["page"], 3.6), layout="constrained")
    axis, legends = figure.subplots(1, 2, width_ratios=(1, 0.32))
    known = [model.base for model in models]
    bases = np.geomspace(min(100.0, *known), 10 * max(known), 81)
    dims = sorted({model.dim for model in models})
    shades, by_dim = matplotlib.colormaps["viridis"](np.linspace(0, 0.8, len(dims))), []
    for d, shade in zip(dims, shades, strict=True):
        thetas = [RotaryGeometry(d, base).inv_freq() for base in bases]
        longest = [2 * np.pi / theta[-1] for theta in thetas]
        by_dim += axis.plot(bases, longest, color=shade, label=f"d {d}")
        negative = (first_negative_distance(theta, FARTHEST) for theta in thetas)
        distances = list(itertools.takewhile(lambda distance: distance is not None, negative))
        axis.plot(bases[: len(distances)], distances, color=shade, linestyle="--", linewidth=1)
    windows = []
    for nth, model in enumerate(models):
        style = model_style(nth) | {"linestyle": "none", "markersize": 5.5}
        label = f"{model.name} (d {model.dim})"
        windows += axis.plot(model.base, model.window, label=label, **style)
    axis.set_xlabel("base b")
    axis.set_ylabel("distance (tokens)")
    axis.loglog()
    label_decades(axis.xaxis)
    label_decades(axis.yaxis)
    axis.grid(True, which="major")
    lines = [
        Line2D([], [], color="0.4", label="longest wavelength"),
        Line2D([], [], color="0.4", linestyle="--", linewidth=1, label="first negative score"),
        *by_dim,
    ]
    legends.axis("off")
    by_base = legends.legend(handles=lines, loc="upper left", title="by base", alignment="left")
    legends.add_artist(by_base)
    legends.legend(handles=windows, loc="lower left", title="training windows", alignment="left")
    return figure


def turns_figure(models: Sequence[Model], windows: int = 4) -> Figure:
    """Draw each pair's rotations in the window, and the angles unseen in so many windows."""
    figure = Figure(figsize=(WIDTHS["page"], 5.6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1.3, 1))
    for nth, model in enumerate(models):
        window, theta = model.window, model.geometry.inv_freq()
        share = np.arange(theta.size) / theta.size
        style = model_style(nth) | {"markersize": 3, "linewidth": 1.0}
        label = f"{model.name} (d {model.dim}, b {short_number(model.base)}, L {window:,})"
        above.plot(share, turns(theta, window), label=label, **style)
        below.plot(share, unseen_share(theta, windows * window, theta, window), **style)
    above.axhline(1, color="0.4", linewidth=1)
    above.set_ylabel("turns in the window, L·θ/2π")
    below.set_ylabel(f"unseen share in {windows} windows")
    below.set_ylim(-0.03, 1.03)
    below.set_xlabel("pair as a share of all pairs, 2i/d (fastest first)")
    for axis in (above, below):
        axis.grid(True, which="major")
    above.set_yscale("log")
    label_decades(above.yaxis)
    figure.align_ylabels()
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def model_style(nth: int) -> dict[str, Any]:
    return {"color": OKABE_ITO[nth % len(OKABE_ITO)], "marker": MARKERS[nth % len(MARKERS)]}


def label_decades(axis: Axis) -> None:
    """Write the powers of ten beside a logarithmic axis as short numbers."""
    axis.set_major_formatter(lambda value, _: short_number(value))
    axis.set_minor_locator(NullLocator())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("figure", choices=("decay", "base", "turns"))
    parser.add_argument("--output", type=Path, default=Path(), help="a folder")
    asked = parser.parse_args()
    with figure_style():
        if asked.figure == "decay":
            figure: Figure = decay_figure(BASES, dim=64, length=2048)
        else:
            figure = {"base": base_figure, "turns": turns_figure}[asked.figure](KNOWN_MODELS)
    save_figure(figure, asked.output / f"rope-{asked.figure}.png")


if __name__ == "__main__":
    main()
