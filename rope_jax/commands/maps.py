"""Draw the relative position at which each query sees each key, for several position maps."""

from pathlib import Path

from rope_jax import cli, stopping
from rope_jax.errors import file_errors, printable


def main(argv: list[str]) -> None:
    from rope_jax.config.inspection import MapsConfig, check_writable

    parser = cli.parser("[CONFIG.yaml]", __doc__, MapsConfig)
    parser.add_argument("config", metavar="CONFIG.yaml", nargs="?", help="these keys")
    _, asked = cli.read_config(parser, argv, "config")
    output, length = Path(asked.output), asked.text_length
    table = output.with_suffix(".csv")
    check_writable(output, table)
    from rope_jax.console import plain_console
    from rope_jax.inspection.maps import maps_figure, print_maps, shown_maps, write_map_rows
    from rope_jax.plots.saving import save_figure
    from rope_jax.plots.style import figure_style

    stopping.check()
    shown = shown_maps(asked)
    console = plain_console()
    console.print(f"trained window L {asked.window:,}, a text of n {length:,} tokens", style="bold")
    print_maps(console, shown)
    stopping.check()
    with figure_style():
        figure = maps_figure(shown, length)
    with file_errors(output, "written"):
        save_figure(figure, output)
        write_map_rows(table, shown, length)
    console.print(printable(f"figure: {output}; last row of each map: {table}"))
