"""Whether a fit suits a run: its positions, its attention, its windows and its memory."""

import contextlib
from collections.abc import Iterator

from pydantic import TypeAdapter

from rope_jax.attention import backend_names
from rope_jax.config.entries import AnyEntry, SweepEntry
from rope_jax.config.fit import FitConfig
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import Config
from rope_jax.config.types import errors_in
from rope_jax.devices.memory import check_fits, in_gib
from rope_jax.errors import UserError
from rope_jax.evaluation.entries import check_entries
from rope_jax.fitting.parameters import Parameters, parameters_of
from rope_jax.fitting.start import default_start
from rope_jax.model.memory import LARGEST_OVERESTIMATE, check_weights
from rope_jax.rope.messages import alternatives
from rope_jax.sweeps.compatibility import resolve_sweep
from rope_jax.sweeps.model import LoadedModel


def check_stages(training: Config, config: FitConfig) -> None:
    """UserError if the fit is impossible, whichever of the run's checkpoints it is for.

    Said before the corpus and a checkpoint are read.
    """
    stages = range(len(training.stages))
    if config.step is not None and config.step <= training.spans[-1].end:
        stages = range(training.stage_at(config.step), training.stage_at(config.step) + 1)
    errors: list[UserError] = []
    for stage in stages:
        try:
            checked_start(training, config, stage)
        except UserError as error:
            errors.append(error)
    if len(errors) == len(stages):
        raise errors[-1]


def checked_start(training: Config, config: FitConfig, stage: int) -> tuple[SweepEntry, Parameters]:
    """Return where a fit of a stage's checkpoint starts. UserError if it cannot start there."""
    window, scaling, map_ = training.trained(stage)
    with errors_in("", UserError):
        config.check_window(window)
    start = config.start
    if start is None:
        adapter: TypeAdapter[SweepEntry] = TypeAdapter(AnyEntry)
        start = adapter.validate_python(default_start(training, stage))
    with renamed(scalings="start"):  # it is one that a sweep could read with
        asked = resolve_sweep(SweepConfig(scalings=(start,)), training)
        check_entries(asked, training.rotary_layers, scaling, window, config.length[-1], map_)
    border = config.windows[0] if config.windows else None
    parameters = parameters_of(training, config, start, border, stage)
    attention = training.model.attention
    needs_map = parameters.strategy(parameters.initial()).map is not None
    if needs_map and not training.model.backend.interacts:
        raise UserError(
            f"attention: {attention} cannot do the map that these numbers belong to; use "
            f"{alternatives(backend_names(interacts=True))}"
        )
    return start, parameters


def check_memory(loaded: LoadedModel, config: FitConfig) -> None:
    """UserError if not even the forward pass of one step fits into memory beside the weights."""
    length, there_are = config.length[-1], loaded.available
    count = max(1, config.batch_tokens // length)
    imported = loaded.training.imported is not None
    check_weights(loaded.memory, there_are, imported=imported)
    weights = loaded.memory.weights
    # an estimate may be too high; what passes, the compiler's own figure decides
    check_fits(
        f"{'length' if count == 1 else 'batch_tokens'}: a step reads {count:,} × {length:,} tokens "
        f"and, beside {in_gib(weights)} GiB of weights, takes",
        loaded.memory.window(length).total * count / LARGEST_OVERESTIMATE,
        there_are - weights,
        "attention=blockwise takes less"
        if loaded.training.model.backend.quadratic_memory
        else "lower it",
    )


@contextlib.contextmanager
def renamed(**keys: str) -> Iterator[None]:
    """Name the fit's keys in the errors of a sweep. keys: a sweep's key = the fit's."""
    try:
        yield
    except UserError as error:
        key, _, rest = str(error).partition(": ")
        if key not in keys:
            raise
        raise UserError(f"{keys[key]}: {rest}") from None
