"""Draw how the score of q = k = 1 decays with distance: Σ_i 2·cos(Δ·θ_i)/√d, times m².

    python scripts/plot_decay.py                                      # bases from 1 to 50000
    python scripts/plot_decay.py 'bases=[1e4, 5e5]' rotary_dim=128 length=65536
    python scripts/plot_decay.py 'scalings=[none, {type: yarn, factor: auto}, {type: cope}]'
    python scripts/plot_decay.py configs/extend.yaml                  # a training run's scalings

Draws a figure, writes the curves to a .csv beside it, and prints the mean and the largest
|score| by octave of distance.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rope_jax import cli, stopping
from rope_jax.errors import printable

if TYPE_CHECKING:
    from rope_jax.rope.decay import Scores


def main(argv: list[str]) -> None:
    # imported late, so that a signal during the imports is handled like any other
    import numpy as np

    from rope_jax.config.inspection import (
        DecayConfig,
        check_writable,
        combined_config,
        load_inspection,
    )
    from rope_jax.config.load import dump
    from rope_jax.inspection.curves import check_curve_count, check_distances, make_curves
    from rope_jax.inspection.model import InspectedModel
    from rope_jax.rope.decay import decay_scores

    parser = cli.parser(
        "[CONFIG.yaml] [key=value ...] [--print-config]",
        "Draw scores over distance, by base or by scaling, for a geometry or for the layers of a "
        "training config. Keys (a training config takes length, scalings and output besides its "
        "own):",
        DecayConfig,
    )
    parser.add_argument(
        "config",
        metavar="CONFIG.yaml",
        nargs="?",
        help="these keys, or a training config",
    )
    arguments = cli.parse(parser, argv)
    path = None if arguments.config is None else Path(arguments.config)
    asked, training = load_inspection(DecayConfig, path, arguments.overrides)
    if arguments.print_config:
        print(dump(combined_config(asked, training)), end="")
        return
    model, output = InspectedModel.from_config(asked, training), Path(asked.output)
    with_scalings = training is not None or bool(asked.scalings)
    length = asked.length or (4 * model.window if with_scalings else 2048)
    curves = make_curves(model, asked, length)
    bases = asked.bases_shown if training is None else ()
    unscaled = {
        f"base {f'{base:,}'.removesuffix('.0')}": replace(model.layers.geometry, base=base)
        for base in bases
    }
    check_curve_count(len(curves) + len(unscaled))
    pairs = model.layers.geometry.rotary_dim // 2
    check_distances(length, pairs, len(curves) + len(unscaled))
    table = output.with_suffix(".csv")
    check_writable(output, table)
    # imported late: matplotlib takes seconds, and help and config errors should not wait for it
    from rope_jax.console import plain_console
    from rope_jax.inspection.figures import write_decay_figure
    from rope_jax.inspection.tables import print_decay_tables

    stopping.check()
    distances = np.arange(length)
    scores = {
        name: decay_scores(geometry.inv_freq(), distances) for name, geometry in unscaled.items()
    }
    scores |= {c.name: decay_scores(c.pairs.inv_freq, distances, c.pairs.m) for c in curves}
    dimension = model.layers.geometry.rotary_dim
    title = model.title() if with_scalings else f"d {dimension}, without scaling"
    title += f"; score {'m²·' * with_scalings}Σ 2·cos(Δθ')/√d"
    stopping.check()
    console = plain_console()
    console.print(title, style="bold")
    print_decay_tables(console, scores)
    kinds = {curve.name: curve.kind for curve in curves}
    write_decay_figure(output, scores, kinds=kinds, unscaled=unscaled, title=title)
    write_csv(table, scores)
    console.print(printable(f"figure: {output}; curves: {table}"))


def write_csv(path: Path, scores: "dict[str, Scores]") -> None:
    """Write one row per distance and one column per curve.

    UserError: the file cannot be written.
    """
    from rope_jax.inspection.output import output_file
    from rope_jax.runs.tables import format_csv

    rows = (
        [distance, *(f"{score:.12g}" for score in row)]
        for distance, row in enumerate(zip(*scores.values(), strict=True))
    )
    with output_file(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        file.write(format_csv(["distance", *scores], rows))


if __name__ == "__main__":
    cli.run(main)
