"""Train a small RoPE decoder from a config file; the same command resumes it."""

from rope_jax import cli, stopping


def main(argv: list[str]) -> None:
    from rope_jax.config.inherit import load_training
    from rope_jax.config.load import config_path, sweep_of
    from rope_jax.config.training import TrainingConfig
    from rope_jax.devices.malloc import keep_freed_memory
    from rope_jax.user_cache import keep_compiled_programs

    parser = cli.parser("CONFIG.yaml", __doc__, TrainingConfig)
    parser.add_argument("config", metavar="CONFIG.yaml", help="the run's config")
    arguments, config = cli.read_config(
        parser, argv, "config", read=lambda _, *given: load_training(*given)
    )
    keep_freed_memory()
    keep_compiled_programs()
    from rope_jax.console import plain_console
    from rope_jax.devices import processes
    from rope_jax.training.run import train

    stopping.check()
    run = train(config, plain_console())
    if processes.is_first():
        own_sweep = sweep_of(config_path(arguments.config))
        words = [] if own_sweep is None else ["--sweep", own_sweep]
        cli.print_next(cli.command_line("sweep", str(run.path), *words))
