"""Show the cost of a training run or a sweep, without starting it.

Parameters, tokens, FLOPs, and the memory that the compiler plans for. For the directory of a run,
and with --sweep, the cost of a sweep. Keys are those of training with CONFIG, and those of the
sweep with RUN.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rope_jax import cli, stopping


def main(argv: list[str]) -> None:
    plan(argv)


def plan(argv: list[str], devices: Sequence[Any] | None = None) -> None:
    """Plan for this machine's devices, or for others that only a compiler knows."""
    from rope_jax.config.inherit import load_training
    from rope_jax.config.load import config_path, load
    from rope_jax.config.sweep import SweepConfig

    parser = cli.parser("CONFIG|RUN [--sweep SWEEP.yaml] [key=value ...]", __doc__)
    parser.add_argument(
        "planned", metavar="CONFIG|RUN", help="the config of a training run, or a run's directory"
    )
    parser.add_argument("--sweep", metavar="SWEEP.yaml", help="the sweep's config")
    arguments = cli.parse(parser, argv)
    overrides = arguments.overrides
    is_run = Path(arguments.planned, "config.yaml").is_file()
    sweep_file = None if arguments.sweep is None else config_path(arguments.sweep, "sweeps")
    config = None if is_run else load_training(config_path(arguments.planned), overrides)
    sweep_overrides = overrides if is_run else []
    sweep = (
        load(SweepConfig, sweep_file, sweep_overrides) if is_run or sweep_file is not None else None
    )
    from rope_jax.console import plain_console
    from rope_jax.planning.plan import plan_sweep, plan_training, planned_vocabulary
    from rope_jax.runs.directory import RunDirectory

    stopping.check()
    console = plain_console()
    if config is None:
        config = RunDirectory(Path(arguments.planned)).load_config()
        vocab_size = planned_vocabulary(config, Path(arguments.planned))
    else:
        vocab_size = planned_vocabulary(config)
        plan_training(config, vocab_size, console, devices)
    if sweep is not None:
        plan_sweep(config, sweep, vocab_size, console, devices)
    words = () if arguments.sweep is None else ("--sweep", arguments.sweep)
    if is_run:
        cli.print_next(cli.command_line("sweep", arguments.planned, *words, *overrides))
    else:
        cli.print_next(cli.command_line("train", arguments.planned, *overrides))
