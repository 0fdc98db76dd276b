"""Show scalings pair by pair: wavelengths, turns, scale, and angles not seen in training."""

from pathlib import Path

from rope_jax import cli, stopping
from rope_jax.errors import printable


def main(argv: list[str]) -> None:
    # imported late, so that a signal during the imports is handled like any other
    from rope_jax.config.inspection import (
        ScalingConfig,
        check_writable,
        combined_config,
        load_inspection,
    )
    from rope_jax.config.load import dump
    from rope_jax.config.named import config_path
    from rope_jax.inspection.curves import check_curve_count, make_curves
    from rope_jax.inspection.model import InspectedModel

    parser = cli.parser(
        "[CONFIG.yaml] [key=value ...] [--print-config]",
        "Show scalings pair by pair, for a geometry or for the layers of a training config. "
        "Keys (a training config takes length, scalings and output besides its own):",
        ScalingConfig,
    )
    parser.add_argument(
        "config",
        metavar="CONFIG.yaml",
        nargs="?",
        help="these keys, or a training config",
    )
    arguments = cli.parse(parser, argv)
    path = None if arguments.config is None else config_path(arguments.config)
    asked, training = load_inspection(ScalingConfig, path, arguments.overrides)
    if arguments.print_config:
        print(dump(combined_config(asked, training)), end="")
        return
    model, output = InspectedModel.from_config(asked, training), Path(asked.output)
    length = asked.length or 4 * model.window
    curves = make_curves(model, asked, length)
    check_curve_count(len(curves))
    check_writable(output)
    # imported late: matplotlib takes seconds, and help and config errors should not wait for it
    from rope_jax.console import plain_console
    from rope_jax.inspection.figures import write_scaling_figure
    from rope_jax.inspection.tables import print_scaling_tables

    stopping.check()
    console = plain_console()
    title = f"{model.title()}; a text of {length:,} tokens"
    console.print(title, style="bold")
    print_scaling_tables(console, curves)
    stopping.check()
    write_scaling_figure(output, curves, window=model.window, length=length, title=title)
    console.print(printable(f"figure: {output}"))
