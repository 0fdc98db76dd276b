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

from rope_jax import cli, stopping
from rope_jax.commands.show import read_inspection
from rope_jax.errors import printable


def main(argv: list[str]) -> None:
    # imported late, so that a signal during the imports is handled like any other
    import numpy as np

    from rope_jax.config.inspection import DecayConfig, check_writable
    from rope_jax.inspection.curves import (
        InspectedModel,
        check_curve_count,
        check_distances,
        make_curves,
    )
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
    dimension = model.layers.geometry.rotary_dim
    check_distances(length)
    table = output.with_suffix(".csv")
    check_writable(output, table)
    # imported late: matplotlib takes seconds, and help and config errors should not wait for it
    from rope_jax.console import plain_console
    from rope_jax.inspection.decay import print_decay_tables, write_decay_figure
    from rope_jax.inspection.output import write_csv

    stopping.check()
    distances = np.arange(length)
    scores = {
        name: decay_scores(geometry.inv_freq(), distances) for name, geometry in unscaled.items()
    }
    scores |= {c.name: decay_scores(c.pairs.inv_freq, distances, c.pairs.m) for c in curves}
    title = model.title() if with_scalings else f"d {dimension}, without scaling"
    title += f"; score {'m²·' * with_scalings}Σ 2·cos(Δθ')/√d"
    stopping.check()
    console = plain_console()
    console.print(title, style="bold")
    print_decay_tables(console, scores)
    kinds = {curve.name: curve.kind for curve in curves}
    write_decay_figure(output, scores, kinds=kinds, unscaled=unscaled, title=title)
    rows = (
        [distance, *(f"{score:.12g}" for score in row)]
        for distance, row in enumerate(zip(*scores.values(), strict=True))
    )
    write_csv(table, ["distance", *scores], rows)
    console.print(printable(f"figure: {output}; curves: {table}"))


if __name__ == "__main__":
    cli.run(main)
