"""A figure of what a fit has learned, layer by layer."""

import math
import textwrap
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from rope_jax.fitting.parameters import Free, Parameters
from rope_jax.plots.panels import legend_columns
from rope_jax.plots.style import WIDTHS, figure_style
from rope_jax.positions.mapping import FittedParams

# Lines of one layer, and labels of layers, that can be told apart.
_MOST_LINES = 4
_MOST_LABELS = 8


def draw_numbers(parameters: Parameters, free: Free) -> Figure:
    """Draw the learned numbers: by wavelength, or by distance for a bias; a colour for each layer.

    Up to four heads are thin lines; of more, the median is a line and the range is shaded.
    """
    with figure_style():
        return _draw_panels(parameters, free)


def _draw_panels(parameters: Parameters, free: Free) -> Figure:
    numbers: Any = FittedParams(
        *(None if x is None else np.asarray(x) for x in parameters.numbers(free))
    )
    theta = parameters.training.geometry.inv_freq()
    wavelength = 2 * math.pi / theta
    panels = _panels(parameters, numbers, theta)
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    height = (2.1 if columns > 1 else 3.0) * rows
    figure = Figure(figsize=(WIDTHS["page"], height), layout="constrained")
    axes = np.atleast_1d(figure.subplots(rows, columns, squeeze=False)).ravel()
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    for axis, (title, x, values, is_log) in zip(axes, panels, strict=False):
        where = wavelength if x is None else x
        _draw(axis, where, values)
        axis.set_title(textwrap.fill(title, 28 if columns > 2 else 60))
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(LogLocator(base=2, numticks=6))
        if is_log:
            axis.set_yscale("log")
            if values.max() < 10 * values.min():  # powers of ten would label one place at most
                axis.yaxis.set_major_locator(MaxNLocator(6))
        for scale in (axis.xaxis, axis.yaxis):
            scale.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            scale.set_minor_formatter(NullFormatter())
        axis.set_xlabel(_label(title) if x is not None else "wavelength 2π/θ, tokens")
        axis.grid(True)
    handles, labels = axes[0].get_legend_handles_labels()
    if handles:
        columns = legend_columns(labels, WIDTHS["page"])
        figure.legend(handles, labels, loc="outside lower center", ncols=columns)
    return figure


def _label(title: str) -> str:
    return "position of the query" if title.startswith("query scale") else "distance, tokens"


def _panels(
    parameters: Parameters, numbers: Any, theta: np.ndarray
) -> list[tuple[str, np.ndarray | None, np.ndarray, bool]]:
    """Return (title, x or None for wavelengths, values [l, h, x], logarithmic) of every panel."""
    found: list[tuple[str, np.ndarray | None, np.ndarray, bool]] = []
    learn = set(parameters.learn)
    if "frequencies" in learn:
        found.append(("λ = θ/θ'", None, theta / numbers.near_inv_freq, True))
    for band, border in enumerate(parameters.borders):
        where = f"keys from {border} tokens"
        if {"far_frequencies", "far_divisor"} & learn:
            found.append((f"θ'/θ, {where}", None, numbers.far_inv_freq[band] / theta, False))
        if "far_phase" in learn:
            turned = numbers.far_phase[band] - np.asarray(parameters.start.far_phase)[band]
            found.append((f"phase φ minus its start, {where}", None, turned, False))
        if "far_amplitude" in learn:
            found.append((f"amplitude a, {where}", None, numbers.far_amplitude[band], True))
    if "bias" in learn:
        distances = parameters.borders[0] * 2.0 ** np.arange(numbers.bias.shape[-1])
        found.append(("bias, nats", distances, numbers.bias, False))
    if "attention_factor" in learn:
        m = np.repeat(numbers.attention_factor[..., None], len(theta), axis=-1)
        found.append(("m", None, m, False))
    if "query_scale" in learn:
        length = parameters.training.geometry.train_length
        positions = np.geomspace(length / 2, parameters.length, 50)
        ratio = np.maximum(1, np.log(positions) / math.log(length))
        scale = numbers.scale_s[..., None] * ratio ** numbers.scale_p[..., None]
        found.append(("query scale, by position", positions, scale, False))
    return found


def _draw(axis: Axes, x: np.ndarray, values: np.ndarray) -> None:
    """Draw values [l, h, x]."""
    colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, len(values)))
    for layer, (colour, heads) in enumerate(zip(colours, values, strict=True)):
        lines = heads
        if len(heads) > _MOST_LINES:
            lines = np.median(heads, axis=0, keepdims=True)
            low, high = heads.min(axis=0), heads.max(axis=0)
            axis.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        width = 1.2 if len(lines) == 1 else 0.6
        for line in lines:
            axis.plot(x, line, color=colour, linewidth=width)
        # with many layers, some stand for all
        if len(values) > 1 and layer % -(-len(values) // _MOST_LABELS) == 0:
            axis.plot([], [], color=colour, linewidth=1.2, label=f"layer {layer}")
