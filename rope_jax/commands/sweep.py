"""Measure a trained run's perplexity against context length, for many scalings at once."""

from rope_jax import cli
from rope_jax.commands.on_a_run import add_run, open_directory


def main(argv: list[str]) -> None:
    # imported late, so that a signal during the imports is handled like any other
    from rope_jax.sweeps.code import code_hash

    code_hash()  # before what it covers is imported
    from rope_jax.config.load import dump, load
    from rope_jax.config.named import config_path
    from rope_jax.config.sweep import SweepConfig
    from rope_jax.invocation import command_line, tensorboard_line

    parser = cli.parser(
        "RUN [--sweep SWEEP.yaml] [key=value ...] [--print-config]",
        "Measure perplexity past the training window, for many scalings at once. "
        "Results go to RUN/evals/<name>/. Keys of the sweep:",
        SweepConfig,
    )
    add_run(parser)
    parser.add_argument(
        "--sweep", metavar="SWEEP.yaml", help="the sweep's config; default: every key's default"
    )
    parser.add_argument(
        "--again", action="store_true", help="measure again what an earlier sweep has measured"
    )
    arguments = cli.parse(parser, argv)
    path = None if arguments.sweep is None else config_path(arguments.sweep, "sweeps")
    config = load(SweepConfig, path, arguments.overrides)
    if arguments.print_config:
        print(dump(config), end="")
        return
    run, training, console = open_directory(arguments.run, config.distributed)
    # jax takes a second to import; the answer to a wrong run should not wait for it
    from rope_jax.devices import processes
    from rope_jax.sweeps.run import sweep_run

    sweep_run(run, training, config, console, again=arguments.again)
    if processes.is_first():
        cli.print_next(
            f"{command_line('compare', str(run.evals / config.name))}  # an interactive page",
            tensorboard_line(str(run.path)),
        )
