"""Compare the results of many runs, seeds and sweeps: figure, tables and interactive page."""

from pathlib import Path

from rope_jax import cli, stopping
from rope_jax.errors import printable


def main(argv: list[str]) -> None:
    from rope_jax.config.presentation import CompareConfig

    parser = cli.parser("RUN [RUN ...]", __doc__, CompareConfig)
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="+",
        help="a run with sweeps, or the folder of one sweep",
    )
    arguments, config = cli.read_config(parser, argv)
    from rope_jax.comparison.comparable import find_mismatches, refuse_mismatches
    from rope_jax.comparison.curves import compare
    from rope_jax.comparison.read import find_sweeps, read_sweep
    from rope_jax.console import plain_console
    from rope_jax.errors import shortage_as
    from rope_jax.report.comparison import check_output, page_line, write_comparison
    from rope_jax.report.terminal import print_comparison

    stopping.check()
    folders = find_sweeps(list(map(Path, arguments.runs)), config.sweep)
    sweeps = [read_sweep(folder) for folder in folders]
    mismatches = find_mismatches(sweeps)
    if not config.force:
        refuse_mismatches(mismatches)
    output = Path(config.output)
    is_replaced = check_output(output, sweeps, replace=config.replace)
    console = plain_console()
    with (
        console.status("resampling documents"),
        shortage_as("RUN: there is not enough memory; end other programs, or compare fewer runs"),
    ):
        comparison = compare(sweeps, mismatches, config)
    files = write_comparison(output, comparison)
    print_comparison(console, comparison)
    written = ", ".join(printable(str(output / name)) for name in files)
    console.print(f"{'replaced ' * is_replaced}{written}", soft_wrap=True)
    cli.print_next(page_line(output))
