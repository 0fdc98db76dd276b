"""Measure perplexity past the training window, for many scalings at once.

Results go to RUN/evals/<name>/.
"""

import shlex

from rope_jax import cli


def main(argv: list[str]) -> None:
    from rope_jax.sealed import code_hash

    code_hash()  # before most of what it covers is imported
    from rope_jax.config.sweep import SweepConfig

    parser = cli.parser("RUN [--sweep SWEEP.yaml]", __doc__, SweepConfig)
    cli.add_run(parser)
    parser.add_argument(
        "--sweep", metavar="SWEEP.yaml", help="the sweep's config; default: every key's default"
    )
    parser.add_argument(
        "--again", action="store_true", help="measure again what an earlier sweep has measured"
    )
    arguments, config = cli.read_config(parser, argv, "sweep", "sweeps")
    run, training, console = cli.open_directory(arguments.run, config.distributed)
    from rope_jax.devices import processes
    from rope_jax.extras import install_line, is_installed
    from rope_jax.sweeps.run import sweep_run

    sweep_run(run, training, config, console, again=arguments.again)
    if processes.is_first():
        tensorboard = f"tensorboard --logdir {shlex.quote(str(run.path))}"
        if not is_installed("tensorboard"):
            tensorboard = f"{install_line('tensorboard')} && {tensorboard}"
        cli.print_next(
            f"{cli.command_line('compare', str(run.evals / config.name))}  # an interactive page",
            tensorboard,
        )
