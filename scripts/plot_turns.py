"""Draw how often each pair turns in the training window, and the angles unseen in a longer text.

    python scripts/plot_turns.py                                      # the demo and known models
    python scripts/plot_turns.py windows=16                           # a longer text
    python scripts/plot_turns.py 'models=[{name: a, rotary_dim: 64, base: 5e4, train_length: 512}]'

Draws a figure, and prints one row per model.
"""

import functools
from pathlib import Path

from rope_jax import cli


def main(argv: list[str]) -> None:
    # imported late, so that a signal during the imports is handled like any other
    from rope_jax.config.inspection import TurnsConfig, check_writable

    parser = cli.parser(
        "[CONFIG.yaml] [key=value ...] [--print-config]",
        "Draw the turns of each pair in the training window, and the share of its circle that "
        "only a longer text covers. Keys:",
        TurnsConfig,
    )
    cli.add_config(parser)
    _, asked = cli.read_config(parser, argv, TurnsConfig, "config")
    output = Path(asked.output)
    check_writable(output)
    # imported late: matplotlib takes seconds, and help and config errors should not wait for it
    from rope_jax.inspection.geometries import show_geometries, turns_figure

    draw = functools.partial(turns_figure, windows=asked.windows)
    show_geometries(asked.models, output, draw)


if __name__ == "__main__":
    cli.run(main)
