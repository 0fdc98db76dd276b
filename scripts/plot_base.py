"""Draw the distances that a base allows: the longest wavelength, and the first negative score.

    python scripts/plot_base.py                                       # the demo and known models
    python scripts/plot_base.py 'models=[{name: a, rotary_dim: 64, base: 5e4, train_length: 512}]'

Draws a figure with the models' training windows, and prints one row per model.
"""

import itertools
from pathlib import Path
from typing import TYPE_CHECKING

from rope_jax import cli

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure

    from rope_jax.config.inspection import ModelGeometry


def main(argv: list[str]) -> None:
    # imported late, so that a signal during the imports is handled like any other
    from rope_jax.config.inspection import BaseConfig, check_writable

    parser = cli.parser(
        "[CONFIG.yaml]",
        "Draw the longest wavelength and the first negative score against the base, with the "
        "training windows of models.",
        BaseConfig,
    )
    parser.add_argument("config", metavar="CONFIG.yaml", nargs="?", help="these keys")
    _, asked = cli.read_config(parser, argv, "config")
    output = Path(asked.output)
    check_writable(output)
    # imported late: matplotlib takes seconds, and help and config errors should not wait for it
    from rope_jax.inspection.geometries import show_geometries

    show_geometries(asked.models, output, base_figure)


def base_figure(models: "Sequence[ModelGeometry]") -> "Figure":
    """Draw the longest wavelength, first negative score and training windows against the base."""
    import matplotlib
    import numpy as np
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from rope_jax.inspection.geometries import FARTHEST, geometry_style, label_decades
    from rope_jax.plots.style import WIDTHS
    from rope_jax.rope import RotaryGeometry
    from rope_jax.rope.decay import first_negative_distance

    figure = Figure(figsize=(WIDTHS["page"], 3.6), layout="constrained")
    axis, legends = figure.subplots(1, 2, width_ratios=(1, 0.32))
    known = [model.base for model in models]
    bases = np.geomspace(min(100.0, *known), 10 * max(known), 81)
    dims = sorted({model.rotary_dim for model in models})
    shades = matplotlib.colormaps["viridis"](np.linspace(0, 0.8, len(dims)))
    for d, shade in zip(dims, shades, strict=True):
        thetas = [RotaryGeometry(d, base).inv_freq() for base in bases]
        axis.plot(bases, [2 * np.pi / theta[-1] for theta in thetas], color=shade)
        found = (first_negative_distance(theta, FARTHEST) for theta in thetas)
        distances = list(itertools.takewhile(lambda distance: distance is not None, found))
        axis.plot(bases[: len(distances)], distances, color=shade, linestyle="--", linewidth=1)
    windows = []
    for nth, model in enumerate(models):
        style = geometry_style(nth) | {"linestyle": "none", "markersize": 5.5}
        label = f"{model.name} (d {model.rotary_dim})"
        windows += axis.plot(model.base, model.train_length, label=label, **style)
    axis.set_xlabel("base b")
    axis.set_ylabel("distance (tokens)")
    axis.set_xscale("log")
    axis.set_yscale("log")
    label_decades(axis.xaxis)
    label_decades(axis.yaxis)
    axis.grid(True, which="major")
    lines = [
        Line2D([], [], color="0.4", label="longest wavelength"),
        Line2D([], [], color="0.4", linestyle="--", linewidth=1, label="first negative score"),
        *(Line2D([], [], color=c, label=f"d {d}") for d, c in zip(dims, shades, strict=True)),
    ]
    legends.axis("off")
    by_base = legends.legend(handles=lines, loc="upper left", title="by base", alignment="left")
    legends.add_artist(by_base)
    legends.legend(handles=windows, loc="lower left", title="training windows", alignment="left")
    return figure


if __name__ == "__main__":
    cli.run(main)
