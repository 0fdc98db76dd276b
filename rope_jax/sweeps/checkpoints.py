"""Choose and read the checkpoints of a run that a sweep measures."""

from collections.abc import Callable, Iterator
from typing import Any

from rope_jax.config.sweep import SweepConfig
from rope_jax.devices import processes
from rope_jax.errors import UserError
from rope_jax.runs.directory import RunDirectory
from rope_jax.training.checkpoints import DamagedCheckpoint, newest_params, params_at, saved_steps

# (training step, parameters)
Checkpoint = tuple[int, Any]


def chosen_checkpoints(
    run: RunDirectory, config: SweepConfig, like: Any, warn: Callable[[str], None]
) -> tuple[list[int], Iterator[Checkpoint]]:
    """Return the steps to sweep, ascending, and an iterator that reads their checkpoints in turn.

    like: the structure, shapes and shardings of the parameters.
    UserError: a step of `config.steps` was not saved. The iterator raises UserError for a damaged
    checkpoint; with `steps: all` it skips those with a warning, unless all are damaged.
    """
    if config.steps is None:
        newest = newest_params(run.checkpoints, like, warn)
        return [newest[0]], iter([newest])
    steps = expected_steps(run, config)

    def read() -> Iterator[Checkpoint]:
        found = 0
        for step in steps:
            try:
                params = params_at(run.checkpoints, step, like)
            except DamagedCheckpoint as error:  # a run in progress may have deleted it meanwhile
                if config.steps != "all" or (step == steps[-1] and not found):
                    raise
                warn(f"{error}; skipped")
                continue
            found += 1
            yield step, params

    return steps, read()


def expected_steps(run: RunDirectory, config: SweepConfig) -> list[int]:
    """Return the steps that `chosen_checkpoints` will return, before anything is read.

    With `steps: null` it returns an older step than this one if the newest checkpoint is damaged.
    UserError as there.
    """
    here = " ".join(map(str, saved_steps(run.checkpoints)))
    saved = [int(step) for step in processes.from_first(lambda: here).split()]
    if config.steps is None:
        return saved[-1:]
    if config.steps == "all":
        return saved
    for step in config.steps:
        if step not in saved:
            there = ", ".join(map(str, saved))
            raise UserError(f"steps: {run.checkpoints} has no step {step}; it has {there}")
    return list(config.steps)


def one_checkpoint(
    run: RunDirectory, step: int | None, like: Any, warn: Callable[[str], None]
) -> Checkpoint:
    """Return the checkpoint of a step; None: the newest undamaged one. UserError as above."""
    chosen = SweepConfig(steps=None if step is None else (step,))
    _, checkpoints = chosen_checkpoints(run, chosen, like, warn)
    return next(checkpoints)
