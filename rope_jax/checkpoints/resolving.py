"""The run that a command's argument names: a run directory, or a checkpoint that becomes one.

Imports no jax until something is imported: a wrong argument should be answered at once.
"""

from pathlib import Path

from rich.console import Console

from rope_jax.checkpoints.files import is_checkpoint
from rope_jax.config.checkpoints import ImportConfig
from rope_jax.config.devices import DistributedConfig
from rope_jax.errors import UserError
from rope_jax.runs.directory import RunDirectory


def run_of(argument: str, distributed: DistributedConfig | None, console: Console) -> RunDirectory:
    """Return the run directory that an argument names.

    A Hugging Face checkpoint, a folder or an id on the hub, is imported first, with the defaults of
    `scripts/import_hf.py`, unless that was done before. UserError: it cannot be imported, or
    several processes would import it at once.
    """
    if not is_checkpoint(argument):
        return RunDirectory(Path(argument))
    if distributed is not None:
        raise UserError(
            f"distributed: import the checkpoint first, with scripts/import_hf.py {argument}, and "
            "name the run directory"
        )
    from rope_jax.checkpoints.importing import import_checkpoint

    return import_checkpoint(argument, ImportConfig(), console)
