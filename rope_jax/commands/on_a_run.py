"""What the commands share that work on a run: sweep, fit and key-tokens."""

import argparse
from typing import TYPE_CHECKING, Any

from rope_jax import stopping

if TYPE_CHECKING:  # slow imports
    from rope_jax.config.devices import DistributedConfig


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the argument RUN."""
    parser.add_argument(
        "run",
        metavar="RUN",
        help="a run directory, or a Hugging Face checkpoint: a folder, or an id on the hub",
    )


def open_directory(run: str, distributed: "DistributedConfig | None" = None) -> tuple[Any, ...]:
    """Return the run's directory, its config and a console; a checkpoint is imported first."""
    from rope_jax.checkpoints.files import run_of
    from rope_jax.console import plain_console
    from rope_jax.devices.malloc import keep_freed_memory
    from rope_jax.user_cache import keep_compiled_programs

    keep_freed_memory()
    keep_compiled_programs()
    console = plain_console()
    directory = run_of(run, distributed, console)
    training = directory.load_config()
    stopping.check()
    return directory, training, console
