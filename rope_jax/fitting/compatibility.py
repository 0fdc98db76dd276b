"""Whether a fit suits a run: its positions, its attention, its windows and its memory."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from pydantic import TypeAdapter

from rope_jax.attention import backend_names
from rope_jax.config.data import StdlibData
from rope_jax.config.entries import AnyEntry, SweepEntry
from rope_jax.config.fit import FitConfig
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import Config
from rope_jax.config.types import errors_in
from rope_jax.devices.memory import check_fits, in_gib
from rope_jax.errors import UserError
from rope_jax.evaluation.entries import check_entries
from rope_jax.fitting.parameters import parameters_of
from rope_jax.fitting.start import default_start
from rope_jax.model.memory import LARGEST_OVERESTIMATE
from rope_jax.rope.messages import alternatives
from rope_jax.runs.directory import RunDirectory
from rope_jax.sweeps.compatibility import resolve_sweep
from rope_jax.sweeps.model import LoadedModel
from rope_jax.training.checkpoints import newest_step

_ENTRY: TypeAdapter[SweepEntry] = TypeAdapter(AnyEntry)


def check_run(path: Path, training: Config, config: FitConfig) -> None:
    """UserError if the run has nothing to fit, or no texts to fit on."""
    position, attention = training.model.position.type, training.model.attention
    if position != "rope":
        raise UserError(f"{path}: its position is {position}, and a fit is for rope")
    if not training.model.backend.is_softmax:
        raise UserError(f"{path}: its attention is {attention}, and a fit is for a softmax")
    if training.imported is not None and training.data == StdlibData():  # an import's default
        config.check_has_texts(path)


def check_finished(summary: Path, run: RunDirectory, config: FitConfig) -> None:
    """UserError if a finished fit is of another checkpoint than the one that would be fitted."""
    folder = summary.parent
    try:
        fitted = json.loads(summary.read_text(encoding="utf-8"))["step"]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{summary}: is damaged; delete {folder} to fit again") from None
    wanted = newest_step(run.checkpoints) if config.step is None else config.step
    if wanted and fitted != wanted:  # 0: the checkpoints have been deleted since
        raise UserError(
            f"{folder}: holds a fit of step {fitted}, and the newest checkpoint is that of step "
            f"{wanted}; choose another name, or delete that folder"
        )


def checked_start(training: Config, config: FitConfig, stage: int) -> SweepEntry:
    """Return where a fit of a stage's checkpoint starts. UserError if it cannot start there."""
    trained = training.trained(stage)
    with errors_in("", UserError):
        config.check_window(trained.window)
    start = config.start
    if start is None:
        start = _ENTRY.validate_python(default_start(training, stage))
    with renamed(scalings="start"):  # it is one that a sweep could read with
        asked = resolve_sweep(SweepConfig(scalings=(start,)), training)
        check_entries(asked, training.rotary_layers, trained, config.length[-1])
    border = next(iter(config.windows), None)
    parameters = parameters_of(training, config, start, border, stage)
    attention = training.model.attention
    needs_map = parameters.strategy(parameters.initial()).map is not None
    if needs_map and not training.model.backend.interacts:
        raise UserError(
            f"attention: {attention} cannot do the map that these numbers belong to; use "
            f"{alternatives(backend_names(interacts=True))}"
        )
    return start


def check_memory(loaded: LoadedModel, config: FitConfig) -> None:
    """UserError if not even the forward pass of one step fits into memory beside the weights."""
    training, memory, length = loaded.training, loaded.memory, config.length[-1]
    count = max(1, config.batch_tokens // length)
    memory.check_weights()
    quadratic = training.model.backend.quadratic_memory
    # an estimate may be too high; what passes, the compiler's own figure decides
    check_fits(
        f"{'length' if count == 1 else 'batch_tokens'}: a step reads {count:,} × {length:,} tokens "
        f"and, beside {in_gib(memory.weights)} GiB of weights, takes",
        memory.window(length) * count / LARGEST_OVERESTIMATE,
        memory.available - memory.weights,
        "attention=blockwise takes less" if quadratic else "lower it",
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
