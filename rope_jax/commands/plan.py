"""Show the cost of a training run or a sweep, without starting it.

Parameters, tokens, FLOPs, and the memory that the compiler plans for. For the directory of a run,
and with --sweep, the cost of a sweep. Keys are those of training with CONFIG, and those of the
sweep with RUN. With target, the same for devices that are not here, such as v5e:4x4 or h100:8.
"""

from pathlib import Path

from rope_jax import cli, stopping

_TARGET = "target="


def main(argv: list[str]) -> None:
    from rope_jax.config.inherit import load_training
    from rope_jax.config.load import config_path, load
    from rope_jax.config.sweep import SweepConfig
    from rope_jax.devices.targets import parse_target, prepare

    parser = cli.parser("CONFIG|RUN [--sweep SWEEP.yaml] [target=X] [key=value ...]", __doc__)
    parser.add_argument(
        "planned", metavar="CONFIG|RUN", help="the config of a training run, or a run's directory"
    )
    parser.add_argument("--sweep", metavar="SWEEP.yaml", help="the sweep's config")
    arguments = cli.parse(parser, argv)
    targets = [word for word in arguments.overrides if word.startswith(_TARGET)]
    overrides = [word for word in arguments.overrides if word not in targets]
    target = parse_target(targets[-1].removeprefix(_TARGET)) if targets else None
    is_run = Path(arguments.planned, "config.yaml").is_file()
    sweep_file = None if arguments.sweep is None else config_path(arguments.sweep, "sweeps")
    config = None if is_run else load_training(config_path(arguments.planned), overrides)
    own = overrides if is_run else []
    sweep = load(SweepConfig, sweep_file, own) if is_run or sweep_file is not None else None
    if target is not None:
        prepare()
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
        plan_training(config, vocab_size, console, target)
    if sweep is not None:
        plan_sweep(config, sweep, vocab_size, console, target)
    words = () if arguments.sweep is None else ("--sweep", arguments.sweep)
    if is_run:
        cli.print_next(cli.command_line("sweep", arguments.planned, *words, *own))
    else:
        cli.print_next(cli.command_line("train", arguments.planned, *overrides))
