"""Import a checkpoint, of Hugging Face or GGUF, as a run directory, without torch."""

from rope_jax import cli, stopping


def main(argv: list[str]) -> None:
    from rope_jax.config.checkpoints import ImportConfig
    from rope_jax.devices.malloc import return_freed_memory

    parser = cli.parser("MODEL", __doc__, ImportConfig)
    about = "a folder, an id (owner/name) on the hub, or a GGUF file"
    parser.add_argument("model", metavar="MODEL", help=about)
    arguments, config = cli.read_config(parser, argv)
    return_freed_memory()
    from rope_jax.checkpoints.importing import import_checkpoint
    from rope_jax.console import plain_console

    stopping.check()
    run = import_checkpoint(arguments.model, config, plain_console())
    cli.print_next(cli.command_line("sweep", str(run.path)))
