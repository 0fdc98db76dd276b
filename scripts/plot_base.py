"""Draw the distances that a base allows: the longest wavelength, and the first negative score.

    python scripts/plot_base.py                                       # the demo and known models
    python scripts/plot_base.py 'models=[{name: a, rotary_dim: 64, base: 5e4, train_length: 512}]'

Draws a figure with the models' training windows, and prints one row per model.
"""

from pathlib import Path

from rope_jax import cli


def main(argv: list[str]) -> None:
    # imported late, so that a signal during the imports is handled like any other
    from rope_jax.config.inspection import BaseConfig, check_writable

    parser = cli.parser(
        "[CONFIG.yaml] [key=value ...] [--print-config]",
        "Draw the longest wavelength and the first negative score against the base, with the "
        "training windows of models. Keys:",
        BaseConfig,
    )
    cli.add_config(parser)
    _, asked = cli.read_config(parser, argv, BaseConfig, "config")
    output = Path(asked.output)
    check_writable(output)
    # imported late: matplotlib takes seconds, and help and config errors should not wait for it
    from rope_jax.inspection.geometries import base_figure, show_geometries

    show_geometries(asked.models, output, base_figure)


if __name__ == "__main__":
    cli.run(main)
