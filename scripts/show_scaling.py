"""Show scalings pair by pair: wavelengths, turns, scale, and angles that training never showed.

    python scripts/show_scaling.py                                    # PI, NTK and YaRN by 4
    python scripts/show_scaling.py rotary_dim=128 base=500000 train_length=8192 length=131072
    python scripts/show_scaling.py 'scalings=[{type: yarn, factor: 8}, {type: cope}]'
    python scripts/show_scaling.py configs/extend.yaml length=2048    # a training's own

Tables by pair in the terminal, and a figure.
"""

from pathlib import Path

from rope_jax import cli
from rope_jax.config.inspection import (
    ScalingConfig,
    check_writable,
    combined_config,
    load_inspection,
)
from rope_jax.config.load import dump
from rope_jax.inspection.curves import Model, check_curves, curves


def main(argv: list[str]) -> None:
    parser = cli.parser(
        "show_scaling.py [CONFIG.yaml] [key=value ...] [--print-config]",
        "Show scalings pair by pair, of a geometry or of a training config's layers. "
        "Keys; length, scalings and output go with a training config too, beside its own:",
        ScalingConfig,
    )
    parser.add_argument("config", metavar="CONFIG.yaml", nargs="?", help="these keys or a training")
    arguments = cli.parse(parser, argv)
    path = None if arguments.config is None else Path(arguments.config)
    asked, training = load_inspection(ScalingConfig, path, arguments.overrides)
    if arguments.print_config:
        print(dump(combined_config(asked, training)), end="")
        return
    model, output = Model.of(asked, training), Path(asked.output)
    length = asked.length or 4 * model.window
    shown = curves(model, asked, length)
    check_curves(len(shown))
    check_writable(output)
    # matplotlib and jax take seconds to import: help and config errors answer before it
    from rope_jax.console import plain_console
    from rope_jax.inspection.plots import scaling_figure
    from rope_jax.inspection.report import scaling_tables

    console = plain_console()
    title = f"{model.title()}; a text of {length:,}"
    console.print(title, style="bold")
    scaling_tables(console, shown)
    scaling_figure(output, shown, window=model.window, length=length, title=title)
    console.print(f"figure: {output}")


if __name__ == "__main__":
    cli.run(main)
