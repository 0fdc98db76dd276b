"""Import a Hugging Face checkpoint as a run directory, without torch."""

from rope_jax import cli, stopping


def main(argv: list[str]) -> None:
    # imported late, so that a signal during the imports is handled like any other
    from rope_jax.config.checkpoints import ImportConfig
    from rope_jax.config.load import dump, load
    from rope_jax.devices.malloc import return_freed_memory
    from rope_jax.invocation import command_line

    parser = cli.parser(
        "MODEL [key=value ...] [--print-config]",
        "Import a Hugging Face checkpoint as a run directory. Keys of the import:",
        ImportConfig,
    )
    parser.add_argument("model", metavar="MODEL", help="a folder, or an id (owner/name) on the hub")
    arguments = cli.parse(parser, argv)
    config = load(ImportConfig, None, arguments.overrides)
    if arguments.print_config:
        print(dump(config), end="")
        return
    return_freed_memory()
    # imported late: help and config errors should not wait for it
    from rope_jax.checkpoints.importing import import_checkpoint
    from rope_jax.console import plain_console

    stopping.check()
    run = import_checkpoint(arguments.model, config, plain_console())
    cli.print_next(command_line("sweep", str(run.path)))
