"""Draw how often each pair turns in the training window, and the angles unseen in a longer text.

    python scripts/plot_turns.py                                      # the demo and known models
    python scripts/plot_turns.py windows=16                           # a longer text
    python scripts/plot_turns.py 'models=[{name: a, rotary_dim: 64, base: 5e4, train_length: 512}]'

Draws a figure, and prints one row per model.
"""

from pathlib import Path

from rope_jax import cli, stopping
from rope_jax.errors import printable


def main(argv: list[str]) -> None:
    # imported late, so that a signal during the imports is handled like any other
    from rope_jax.config.inspection import TurnsConfig, check_writable

    parser = cli.parser(
        "plot_turns.py [CONFIG.yaml] [key=value ...] [--print-config]",
        "Draw the turns of each pair in the training window, and the share of its circle that "
        "only a longer text covers. Keys:",
        TurnsConfig,
    )
    asked = cli.load_asked(parser, argv, TurnsConfig)
    if asked is None:
        return
    output = Path(asked.output)
    check_writable(output)
    # imported late: matplotlib takes seconds, and help and config errors should not wait for it
    from rope_jax.console import plain_console
    from rope_jax.inspection.geometries import Geometry, print_geometries, write_turns_figure

    stopping.check()
    geometries = [Geometry.of_model(model) for model in asked.models]
    console = plain_console()
    print_geometries(console, geometries)
    stopping.check()
    write_turns_figure(output, geometries, asked.windows)
    console.print(printable(f"figure: {output}"))


if __name__ == "__main__":
    cli.run(main)
