"""The outcome of a fit: a table of start, fitted and truncation, and a figure of the numbers."""

import math
import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from rich.console import Console

from rope_jax.console import print_table, print_wrapped, signed_text
from rope_jax.evaluation.results import SweepResult
from rope_jax.fitting.parameters import Free, Parameters
from rope_jax.plots.panels import add_legend, label_powers, make_grid
from rope_jax.plots.style import figure_style
from rope_jax.positions.mapping import FittedParams
from rope_jax.results.statistics import paired_difference

_MAX_LABELS = 8  # of layers, that can be told apart


class FitRow(NamedTuple):
    """The NLL of one strategy at one length, nats per token."""

    name: str
    length: int
    nll: float
    above_truncation: float | None
    """NLL minus that of `trained` at the window, on the same targets; None for that itself."""
    ci_low: float | None
    ci_high: float | None
    tokens: int
    documents: int

    @property
    def text(self) -> str:
        """The NLL, and in brackets its difference with half of the interval, if there is one."""
        if self.above_truncation is None or self.ci_low is None or self.ci_high is None:
            return f"{self.nll:.4f}"
        half = (self.ci_high - self.ci_low) / 2
        interval = "" if math.isnan(half) else f" ±{half:.4f}"
        return f"{self.nll:.4f} ({signed_text(self.above_truncation, 4)}{interval})"


def fit_rows(result: SweepResult) -> list[FitRow]:
    """Return the rows of a sweep that has a baseline, truncation first."""
    baseline, config, rows = result.baseline, result.config, []
    assert baseline is not None  # the window is among the lengths
    for m in [baseline, *(m for m in result.measurements if m.entry != "trained")]:
        how = {"resamples": config.resamples, "seed": config.seed}
        above = None if m is baseline else paired_difference(m.sums, baseline.sums, **how)
        name, nll = "truncation" if above is None else m.entry, float(m.sums.mean())
        low, high = (None, None) if above is None else (above.low, above.high)
        value, counts = None if above is None else above.value, (m.tokens, result.documents)
        rows.append(FitRow(name, m.length, nll, value, low, high, *counts))
    return rows


def print_results(console: Console, rows: Sequence[FitRow], window: int, learned: int) -> None:
    """Print start, fitted and truncation on the validation split, by length."""
    is_known = any(not math.isnan(row.ci_high) for row in rows if row.ci_high is not None)
    interval = "± half of the 95% interval" if is_known else "no interval: too few documents"
    print_wrapped(
        console,
        f"nats per token on {rows[0].tokens:,} validation tokens of {rows[0].documents} documents",
        "bold",
    )
    names = list(dict.fromkeys(row.name for row in rows))
    cells = {(row.name, row.length): row.text for row in rows}
    lengths = sorted({row.length for row in rows})
    lines = [[name, *(cells.get((name, n), "") for n in lengths)] for name in names]
    print_table(console, ["", *(f"{n:,}" for n in lengths)], lines)
    print_wrapped(
        console,
        f"in brackets: above truncation, which is `trained` at its window, {window:,} tokens; "
        f"{interval}",
        "dim",
    )
    console.print(f"{learned:,} numbers were learned; every weight stayed as it was")


def draw_numbers(parameters: Parameters, free: Free) -> Figure:
    """Draw the learned numbers by wavelength, a bias by distance.

    A colour for each layer; a line for the median of its heads, and an area for their range.
    """
    panels = _panels(parameters, free)
    columns = min(3, len(panels))
    height = 2.1 if columns > 1 else 3.0
    with figure_style():
        figure, axes = make_grid(
            len(panels), columns, row_height=height, sharey=False, title="", width="page"
        )
        for axis, panel in zip(axes, panels, strict=True):
            colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, len(panel.values)))
            every = -(-len(colours) // _MAX_LABELS) if len(colours) > 1 else 0
            for layer, (colour, heads) in enumerate(zip(colours, panel.values, strict=True)):
                label = f"layer {layer}" if every and layer % every == 0 else None
                low, high = heads.min(axis=0), heads.max(axis=0)
                axis.fill_between(panel.x, low, high, color=colour, alpha=0.15, linewidth=0)
                median = np.median(heads, axis=0)
                axis.plot(panel.x, median, color=colour, linewidth=1.2, label=label)
            axis.set_title(textwrap.fill(panel.title, 28 if columns > 2 else 60))
            axis.set_xscale("log")
            axis.set_xlabel(panel.x_label)
            label_powers(axis.xaxis, float(panel.x.min()), float(panel.x.max()))
            if panel.is_log:
                axis.set_yscale("log")
                label_powers(axis.yaxis, float(panel.values.min()), float(panel.values.max()))
            axis.grid(True)
        add_legend(figure, axes[0].get_legend_handles_labels()[0])
    return figure


class _Panel(NamedTuple):
    """Values [l, h, x] of every layer and head."""

    title: str
    values: np.ndarray
    x: np.ndarray
    x_label: str = "wavelength 2π/θ, tokens"
    is_log: bool = False


def _panels(parameters: Parameters, free: Free) -> list[_Panel]:
    learned = (None if x is None else np.asarray(x) for x in parameters.numbers(free))
    numbers: Any = FittedParams(*learned)
    theta = parameters.training.geometry.inv_freq()
    wavelength = 2 * math.pi / theta
    panels = []
    learn = set(parameters.config.learn)
    if "frequencies" in learn:
        panels.append(_Panel("λ = θ/θ'", theta / numbers.near_inv_freq, wavelength, is_log=True))
    for band, border in enumerate(parameters.borders):
        keys = f"keys from {border} tokens"
        if "far_frequencies" in learn:
            panels.append(_Panel(f"θ'/θ, {keys}", numbers.far_inv_freq[band] / theta, wavelength))
        if "far_phase" in learn:
            phase = numbers.far_phase[band] - np.asarray(parameters.start.far_phase)[band]
            panels.append(_Panel(f"phase φ minus its start, {keys}", phase, wavelength))
        if "far_amplitude" in learn:
            amplitude = numbers.far_amplitude[band]
            panels.append(_Panel(f"amplitude a, {keys}", amplitude, wavelength, is_log=True))
    if "bias" in learn:
        distances = parameters.borders[0] * 2.0 ** np.arange(numbers.bias.shape[-1])
        panels.append(_Panel("bias, nats", numbers.bias, distances, "distance, tokens"))
    if "attention_factor" in learn:
        m = np.repeat(numbers.attention_factor[..., None], len(theta), axis=-1)
        panels.append(_Panel("m", m, wavelength))
    if "query_scale" in learn:
        length = parameters.training.geometry.train_length
        positions = np.geomspace(length / 2, parameters.config.length[-1], 50)
        ratio = np.maximum(1, np.log(positions) / math.log(length))
        scale = numbers.scale_s[..., None] * ratio ** numbers.scale_p[..., None]
        label = "position of the query"
        panels.append(_Panel("query scale, by position", scale, positions, label))
    return panels
