"""Learn rotary numbers for longer texts, with the run's weights frozen.

The result is the strategy file RUN/fits/<name>/strategy.json.
"""

from rope_jax import cli


def main(argv: list[str]) -> None:
    from rope_jax.sealed import code_hash

    code_hash()  # before most of what it covers is imported
    from rope_jax.config.fit import FitConfig
    from rope_jax.config.load import flow_yaml

    parser = cli.parser("RUN length=512 [--fit FIT.yaml]", __doc__, FitConfig)
    cli.add_run(parser)
    parser.add_argument("--fit", metavar="FIT.yaml", help="these keys")
    arguments, config = cli.read_config(parser, argv, "fit", "fits")
    from rope_jax.checkpoints.open import is_checkpoint

    if is_checkpoint(arguments.run):  # will be imported, which may take minutes
        config.check_has_texts(arguments.run)
    run, training, console = cli.open_directory(arguments.run)
    from rope_jax.fitting.run import STRATEGY, fit_run

    folder = fit_run(run, training, config, console)
    entries = flow_yaml(["trained", str(folder / STRATEGY)])
    words = f"name=fit-{config.name}", f"scalings={entries}"
    cli.print_next(cli.command_line("sweep", str(run.path), *words))
