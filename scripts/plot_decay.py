"""Draw how the score of q = k = 1 decays with distance: Σ_i 2·cos(Δ·θ_i)/√d, times m².

    python scripts/plot_decay.py                                      # bases from 1 to 50000
    python scripts/plot_decay.py 'bases=[1e4, 5e5]' rotary_dim=128 length=65536
    python scripts/plot_decay.py 'scalings=[none, {type: yarn, factor: auto}, {type: cope}]'
    python scripts/plot_decay.py configs/extend.yaml                  # a training run's scalings

Draws a figure, writes the curves to a .csv beside it, and prints the mean and the largest
|score| by octave of distance.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rope_jax import cli, stopping
from rope_jax.commands.show import read_inspection
from rope_jax.errors import UserError, printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

    from rope_jax.rope import RotaryGeometry
    from rope_jax.rope.decay import Scores

# A line through more points is an image in a PDF, which would otherwise take megabytes.
MOST_POINTS = 4096


def main(argv: list[str]) -> None:
    # imported late, so that a signal during the imports is handled like any other
    import numpy as np

    from rope_jax.config.inspection import MAX_DISTANCES, DecayConfig, check_writable
    from rope_jax.inspection.curves import InspectedModel, check_curve_count, make_curves
    from rope_jax.rope.decay import decay_scores

    description = "Draw scores over distance, by base or by scaling"
    asked, training = read_inspection(argv, description, DecayConfig)
    model, output = InspectedModel.from_config(asked, training), Path(asked.output)
    with_scalings = training is not None or bool(asked.scalings)
    length = asked.length or (4 * model.window if with_scalings else 2048)
    curves = make_curves(model, asked, length)
    unscaled = {
        f"base {f'{base:,}'.removesuffix('.0')}": replace(model.layers.geometry, base=base)
        for base in (asked.bases_shown if training is None else ())
    }
    check_curve_count(len(curves) + len(unscaled))
    if length > MAX_DISTANCES:
        raise UserError(f"length: {length:,} distances exceed the limit of {MAX_DISTANCES:,}")
    table = output.with_suffix(".csv")
    check_writable(output, table)
    # imported late: matplotlib takes seconds, and help and config errors should not wait for it
    from rope_jax.console import plain_console
    from rope_jax.inspection.output import write_csv
    from rope_jax.plots.saving import save_output
    from rope_jax.plots.style import assign_styles, figure_style

    stopping.check()
    distances = np.arange(length)
    scores = {
        name: decay_scores(geometry.inv_freq(), distances) for name, geometry in unscaled.items()
    }
    scores |= {c.name: decay_scores(c.inv_freq, distances, c.m) for c in curves}
    title = f"d {model.layers.geometry.rotary_dim}, without scaling"
    if with_scalings:
        title = model.title()
    title += f"; score {'m²·' * with_scalings}Σ 2·cos(Δθ')/√d"
    stopping.check()
    console = plain_console()
    console.print(title, style="bold")
    print_octaves(console, scores)
    styles = assign_styles({curve.name: curve.kind for curve in curves})
    colours = {name: style.color for name, style in styles.items()}
    with figure_style():
        figure = decay_figure(scores, colours, unscaled, title)
    save_output(figure, output)
    rows = (
        [distance, *(f"{score:.12g}" for score in row)]
        for distance, row in enumerate(zip(*scores.values(), strict=True))
    )
    write_csv(table, ["distance", *scores], rows)
    console.print(printable(f"figure: {output}; curves: {table}"))


def print_octaves(console: "Console", scores: "Mapping[str, Scores]") -> None:
    """Print the mean and largest score by octave; scores: at distances 0 … n − 1, by curve."""
    from rope_jax.inspection.output import print_table
    from rope_jax.rope.decay import mean_and_peak_by_octave, octaves

    length = next(iter(scores.values())).size
    names = [f"{a:,}–{b:,}" if a < b else f"{a:,}" for a, b in octaves(length)]
    both = [mean_and_peak_by_octave(score) for score in scores.values()]
    for place, title in enumerate(("mean score", "largest |score|")):
        columns = [names, *([f"{x:z.2f}" for x in values[place]] for values in both)]
        console.print(title, style="bold")
        print_table(console, ["distance", *scores], list(zip(*columns, strict=True)), left=0)


def decay_figure(
    scores: "Mapping[str, Scores]",
    colours: Mapping[str, Any],
    unscaled: "Mapping[str, RotaryGeometry]",
    title: str,
) -> "Figure":
    """Draw scores by distance: one panel per curve, and one with the octave means of all.

    scores: at distances 0 … n − 1, by curve. colours: of the scalings. Curves without scaling are
    coloured in order, from dark to light, and drawn with `logarithmic_decay`.
    """
    import matplotlib
    import numpy as np
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FuncFormatter, LogLocator

    from rope_jax.inspection.scalings import shortened
    from rope_jax.plots.panels import fold_title, label_lowest, panel_columns
    from rope_jax.plots.style import WIDTHS
    from rope_jax.rope.decay import logarithmic_decay, octave_means

    count = len(scores) + (len(scores) > 1)
    columns = panel_columns(count, "page")
    rows = math.ceil(count / columns)
    length = next(iter(scores.values())).size
    last = max(1, math.ceil(length / 2**0.5) - 1)  # half an octave before the end
    centres = np.unique(np.geomspace(1, last, 300).astype(np.int64))
    shades = matplotlib.colormaps["viridis"](np.linspace(0, 0.8, len(unscaled)))
    colours = {**colours, **dict(zip(unscaled, shades, strict=True))}
    height = 0.9 + (1.45 if columns > 2 else 2.2) * rows
    figure = Figure(figsize=(WIDTHS["page"], height), layout="constrained")
    panels = list(figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat)
    thin: dict[str, Any] = {"alpha": 0.4, "linewidth": 0.4, "rasterized": length > MOST_POINTS}
    for axis, (name, score) in zip(panels, scores.items(), strict=False):
        colour, means = colours[name], octave_means(score, centres)
        axis.plot(np.arange(1, length), score[1:], color=colour, **thin)
        axis.plot(centres, means, color=colour, linewidth=1.4)
        geometry = unscaled.get(name)
        if geometry is not None and geometry.base > 1:
            distances = np.geomspace(1, min(geometry.base, length - 1), 100)
            expected = logarithmic_decay(geometry, distances)
            axis.plot(distances, expected, color="black", linestyle=":", linewidth=0.9)
        axis.set_title(shortened(name), color=colour)
        if len(scores) > 1:
            panels[count - 1].plot(centres, means, linewidth=1.1, color=colour)
    if len(scores) > 1:
        panels[count - 1].set_title("all octave means")
    for place, axis in enumerate(panels):
        axis.set_visible(place < count)
        axis.axhline(0, color="0.55", linewidth=0.9, zorder=0)
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_locator(LogLocator(base=2, numticks=5))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda distance, _: f"{distance:,.0f}"))
        axis.minorticks_off()
        axis.grid(True, which="major")
        label_lowest(axis, "distance Δ (tokens)", place, count, columns)
        if place % columns == 0:
            axis.set_ylabel("score")
    figure.suptitle(fold_title(title, WIDTHS["page"]))
    meanings = [
        Line2D([], [], color="0.4", alpha=0.5, linewidth=0.8, label="score"),
        Line2D([], [], color="0.4", linewidth=1.4, label="mean from Δ/√2 to Δ√2"),
    ]
    if unscaled:
        label = "√d·(1 − (ln Δ + 0.577)/ln b)"
        dotted = Line2D([], [], color="black", linestyle=":", linewidth=0.9, label=label)
        meanings.append(dotted)
    figure.legend(handles=meanings, loc="outside lower center", ncols=3)
    return figure


if __name__ == "__main__":
    cli.run(main)
