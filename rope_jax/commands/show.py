"""Show scalings pair by pair: wavelengths, turns, scale, and angles not seen in training."""

from pathlib import Path

from rope_jax import cli, stopping
from rope_jax.errors import file_errors, printable


def main(argv: list[str]) -> None:
    from rope_jax.config.inspection import (
        ScalingConfig,
        check_writable,
        dump_inspection,
        load_inspection,
    )
    from rope_jax.inspection.curves import InspectedModel, make_curves

    parser = cli.parser(
        "[CONFIG.yaml]",
        "Show scalings pair by pair, for a geometry or for the layers of a training config. "
        "A training config takes length, scalings and output besides its own keys.",
        ScalingConfig,
    )
    parser.add_argument(
        "config", metavar="CONFIG.yaml", nargs="?", help="these keys, or a training config"
    )
    _, (asked, training) = cli.read_config(
        parser, argv, "config", read=load_inspection, dump=lambda both: dump_inspection(*both)
    )
    model, output = InspectedModel.from_config(asked, training), Path(asked.output)
    length = asked.length or 4 * model.window
    curves = make_curves(model, asked, length)
    check_writable(output)
    from rope_jax.console import plain_console
    from rope_jax.inspection.scalings import print_scaling_tables, scaling_figure
    from rope_jax.plots.saving import save_figure
    from rope_jax.plots.style import figure_style

    stopping.check()
    console = plain_console()
    title = f"{model.title()}; a text of {length:,} tokens"
    console.print(title, style="bold")
    print_scaling_tables(console, curves)
    stopping.check()
    with figure_style():
        figure = scaling_figure(curves, window=model.window, length=length, title=title)
    with file_errors(output, "written"):
        save_figure(figure, output)
    console.print(printable(f"figure: {output}"))
