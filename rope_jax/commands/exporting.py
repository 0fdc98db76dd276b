"""Export a run as a directory that transformers loads."""

from pathlib import Path

from rope_jax import cli, stopping


def main(argv: list[str]) -> None:
    from rope_jax.config.checkpoints import ExportConfig
    from rope_jax.devices.malloc import return_freed_memory

    parser = cli.parser("RUN OUT", __doc__, ExportConfig)
    parser.add_argument("run", metavar="RUN", help="a run directory")
    parser.add_argument("out", metavar="OUT", help="a folder that does not exist yet")
    arguments, config = cli.read_config(parser, argv)
    return_freed_memory()
    from rope_jax.checkpoints.exporting import export_run
    from rope_jax.console import plain_console
    from rope_jax.runs.directory import RunDirectory

    stopping.check()
    export_run(RunDirectory(Path(arguments.run)), config, Path(arguments.out), plain_console())
    cli.print_next(cli.command_line("sweep", arguments.out))
