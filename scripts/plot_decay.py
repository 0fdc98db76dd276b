"""Draw how the score of q = k = 1 decays with distance: Σ_i 2·cos(Δ·θ_i)/√d, times m².

    python scripts/plot_decay.py                                      # bases from 1 to 50000
    python scripts/plot_decay.py 'bases=[1e4, 5e5]' rotary_dim=128 length=65536
    python scripts/plot_decay.py 'scalings=[none, {type: yarn, factor: auto}, {type: cope}]'
    python scripts/plot_decay.py configs/extend.yaml                  # a training's own

A figure, a .csv of the curves beside it, and in the terminal their means by octave of distance.
"""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np

from rope_jax import cli
from rope_jax.config.inspection import (
    MAX_DISTANCES,
    DecayConfig,
    check_writable,
    combined_config,
    load_inspection,
)
from rope_jax.config.load import dump
from rope_jax.errors import UserError
from rope_jax.inspection.curves import Model, check_curves, curves
from rope_jax.rope.pairs import Array, decay


def main(argv: list[str]) -> None:
    parser = cli.parser(
        "plot_decay.py [CONFIG.yaml] [key=value ...] [--print-config]",
        "Draw scores over distance, by base or by scaling, of a geometry or of a training config's "
        "layers. Keys; length, scalings and output go with a training config too, beside its own:",
        DecayConfig,
    )
    parser.add_argument("config", metavar="CONFIG.yaml", nargs="?", help="these keys or a training")
    arguments = cli.parse(parser, argv)
    path = None if arguments.config is None else Path(arguments.config)
    asked, training = load_inspection(DecayConfig, path, arguments.overrides)
    if arguments.print_config:
        print(dump(combined_config(asked, training)), end="")
        return
    model, output = Model.of(asked, training), Path(asked.output)
    of_scalings = training is not None or bool(asked.scalings)
    length = asked.length or (4 * model.window if of_scalings else 2048)
    shown = curves(model, asked, length)
    bases = asked.bases_shown if training is None else ()
    unscaled = {
        f"base {f'{base:,}'.removesuffix('.0')}": replace(model.layers.geometry, base=base)
        for base in bases
    }
    check_curves(len(shown) + len(unscaled))
    if length > MAX_DISTANCES:
        raise UserError(f"length: {length:,} distances are more than {MAX_DISTANCES:,}; give fewer")
    table = output.with_suffix(".csv")
    check_writable(output, table)
    # matplotlib and jax take seconds to import: help and config errors answer before it
    from rope_jax.console import plain_console
    from rope_jax.inspection.plots import decay_figure
    from rope_jax.inspection.report import decay_tables

    distances = np.arange(length)
    scores = {name: decay(geometry.inv_freq(), distances) for name, geometry in unscaled.items()}
    scores |= {c.name: decay(c.pairs.inv_freq, distances, c.pairs.m) for c in shown}
    dimension = model.layers.geometry.rotary_dim
    title = model.title() if of_scalings else f"d {dimension}, without scaling"
    title += f"; score {'m²·' * of_scalings}Σ 2·cos(Δθ')/√d"
    console = plain_console()
    console.print(title, style="bold")
    decay_tables(console, scores)
    kinds = {curve.name: curve.kind for curve in shown}
    decay_figure(output, scores, kinds=kinds, unscaled=unscaled, title=title)
    write_csv(table, scores)
    console.print(f"figure: {output}; curves: {table}")


def write_csv(path: Path, scores: dict[str, Array]) -> None:
    """A row a distance, a column a curve; the whole file or none of it."""
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with temporary.open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(["distance", *scores])
            for distance, row in enumerate(zip(*scores.values(), strict=True)):
                rows.writerow([distance, *(f"{score:.12g}" for score in row)])
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UserError(f"output: {path} cannot be written ({error.strerror or error})") from None


if __name__ == "__main__":
    cli.run(main)
