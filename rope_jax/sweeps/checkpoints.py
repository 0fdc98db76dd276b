"""Choose and read the checkpoints of a run that a sweep measures."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from rope_jax.config.sweep import SweepConfig
from rope_jax.console import print_warning
from rope_jax.devices import processes
from rope_jax.errors import UserError
from rope_jax.runs.directory import RunDirectory
from rope_jax.training.checkpoints import (
    DamagedCheckpoint,
    newest_params,
    params_at,
    saved_steps,
)

# (training step, parameters)
Checkpoint = tuple[int, Any]


def chosen_checkpoints(
    run: RunDirectory, config: SweepConfig, like: Any, console: Console
) -> tuple[list[int], Iterator[Checkpoint]]:
    """Return the steps to sweep, ascending, and an iterator that reads their checkpoints in turn.

    like: the structure, shapes and shardings of the parameters.
    UserError: a step of `config.steps` was not saved. The iterator raises UserError for a damaged
    checkpoint; with `steps: all` it skips those with a warning, unless all are damaged.
    """
    warn = functools.partial(print_warning, console)
    if config.steps is None:
        newest = newest_params(run.checkpoints, like, warn)
        return [newest[0]], iter([newest])

    steps = _asked_for(run, config.steps)
    if config.steps == "all":
        return steps, _undamaged(run.checkpoints, steps, like, warn)
    return steps, ((step, params_at(run.checkpoints, step, like)) for step in steps)


def expected_steps(run: RunDirectory, config: SweepConfig) -> list[int]:
    """Return the steps that `chosen_checkpoints` will return, before anything is read.

    With `steps: null` it returns an older step than this one if the newest checkpoint is damaged.
    UserError as there.
    """
    if config.steps is not None:
        return _asked_for(run, config.steps)
    return _saved(run)[-1:]


def _asked_for(run: RunDirectory, steps: Literal["all"] | tuple[int, ...]) -> list[int]:
    """Return the steps, ascending. UserError if one was not saved."""
    saved = _saved(run)
    if steps == "all":
        return saved
    for step in steps:
        if step not in saved:
            there = ", ".join(map(str, saved))
            raise UserError(f"steps: {run.checkpoints} has no step {step}; it has {there}")
    return list(steps)


def _saved(run: RunDirectory) -> list[int]:
    """Return the steps that the first process sees. UserError if this one sees none."""
    here = " ".join(map(str, saved_steps(run.checkpoints)))
    return [int(step) for step in processes.from_first(lambda: here).split()]


def _undamaged(
    directory: Path, saved: list[int], like: Any, warn: Callable[[str], None]
) -> Iterator[Checkpoint]:
    """Read all undamaged checkpoints; a run in progress may delete some meanwhile."""
    found = 0
    for step in saved:
        try:
            params = params_at(directory, step, like)
        except DamagedCheckpoint as error:
            if step == saved[-1] and not found:
                raise
            warn(f"{error}; skipped")
            continue
        found += 1
        yield step, params
