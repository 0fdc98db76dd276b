"""Draw the figures of a sweep again, from its folder or from a table like its results.csv.

    python scripts/plot_sweep.py runs/demo/evals/demo figure_width=column
    python scripts/plot_sweep.py docs/figures/demo.csv window=128 output=docs/figures/demo.png

Writes curve.png, .pdf and .svg, and steps.png, .pdf and .svg for several checkpoints.
"""

from pathlib import Path

from rope_jax import cli
from rope_jax.errors import printable


def main(argv: list[str]) -> None:
    # imported late, so that a signal during the imports is handled like any other
    from rope_jax.config.presentation import RedrawConfig

    parser = cli.parser("SWEEP", "Draw the figures of a sweep again.", RedrawConfig)
    parser.add_argument("sweep", metavar="SWEEP", help="the folder of a sweep, or its results.csv")
    arguments, config = cli.read_config(parser, argv)
    # imported late: matplotlib takes seconds, and help and config errors should not wait for it
    from rope_jax.console import plain_console
    from rope_jax.report.figure import redraw

    written = redraw(Path(arguments.sweep), config)
    plain_console().print(printable(", ".join(map(str, written))), soft_wrap=True)


if __name__ == "__main__":
    cli.run(main)
