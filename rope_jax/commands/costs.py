"""Show what training runs and their fits took: numbers trained, tokens, seconds."""

from pathlib import Path

from rope_jax import cli, stopping


def main(argv: list[str]) -> None:
    from rope_jax.config.inspection import CostsConfig, check_writable

    parser = cli.parser("RUN [RUN ...]", __doc__, CostsConfig)
    parser.add_argument("runs", metavar="RUN", nargs="+", help="a run directory")
    arguments, asked = cli.read_config(parser, argv)
    if asked.output is not None:
        check_writable(Path(asked.output))
    from rope_jax.console import plain_console
    from rope_jax.errors import UserError
    from rope_jax.inspection.costs import Cost, costs_of, print_costs
    from rope_jax.inspection.output import write_csv
    from rope_jax.runs.directory import RunDirectory

    stopping.check()
    costs = [cost for run in arguments.runs for cost in costs_of(RunDirectory(Path(run)))]
    if not costs:
        raise UserError(f"{', '.join(arguments.runs)}: no costs to show: imported, without fits")
    print_costs(plain_console(), costs)
    if asked.output is not None:
        write_csv(Path(asked.output), Cost._fields, costs)
