"""Draw how often each pair turns in the training window, and the angles unseen in a longer text.

    python scripts/plot_turns.py                                      # the demo and known models
    python scripts/plot_turns.py windows=16                           # a longer text
    python scripts/plot_turns.py 'models=[{name: a, rotary_dim: 64, base: 5e4, train_length: 512}]'

Draws a figure, and prints one row per model.
"""

import functools
from pathlib import Path
from typing import TYPE_CHECKING

from rope_jax import cli

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure

    from rope_jax.config.inspection import ModelGeometry


def main(argv: list[str]) -> None:
    # imported late, so that a signal during the imports is handled like any other
    from rope_jax.config.inspection import TurnsConfig, check_writable

    parser = cli.parser(
        "[CONFIG.yaml]",
        "Draw the turns of each pair in the training window, and the share of its circle that "
        "only a longer text covers.",
        TurnsConfig,
    )
    parser.add_argument("config", metavar="CONFIG.yaml", nargs="?", help="these keys")
    _, asked = cli.read_config(parser, argv, "config")
    output = Path(asked.output)
    check_writable(output)
    # imported late: matplotlib takes seconds, and help and config errors should not wait for it
    from rope_jax.inspection.geometries import show_geometries

    draw = functools.partial(turns_figure, windows=asked.windows)
    show_geometries(asked.models, output, draw)


def turns_figure(models: "Sequence[ModelGeometry]", windows: int) -> "Figure":
    """Draw each pair's rotations in the window, and the angles unseen in so many windows."""
    import numpy as np
    from matplotlib.figure import Figure

    from rope_jax.inspection.geometries import geometry_style, label_decades
    from rope_jax.inspection.output import short_number
    from rope_jax.plots.style import WIDTHS
    from rope_jax.rope.pairs import turns, unseen_share

    figure = Figure(figsize=(WIDTHS["page"], 5.6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1.3, 1))
    for nth, model in enumerate(models):
        window, theta = model.train_length, model.geometry.inv_freq()
        place = np.arange(theta.size) / theta.size
        style = geometry_style(nth) | {"markersize": 3, "linewidth": 1.0}
        label = f"{model.name} (d {model.rotary_dim}, b {short_number(model.base)}, L {window:,})"
        above.plot(place, turns(theta, window), label=label, **style)
        below.plot(place, unseen_share(theta, windows * window, theta, window), **style)
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


if __name__ == "__main__":
    cli.run(main)
