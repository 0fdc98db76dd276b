"""The state of a run before its first step: fresh, or taken from a checkpoint of another run."""

import contextlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax

from rope_jax.config.inherit import Source, find_source, saved_steps
from rope_jax.config.resolve import language_model, resolve_run
from rope_jax.config.sections import InitFrom
from rope_jax.data.storage import Corpus
from rope_jax.devices import processes
from rope_jax.errors import UserError
from rope_jax.runs.directory import RunDirectory
from rope_jax.training.checkpoints import Checkpoints, DamagedCheckpoint, params_fingerprint
from rope_jax.training.optimizer import with_new_schedule
from rope_jax.training.program import Program
from rope_jax.training.provenance import check_config, recorded_provenance
from rope_jax.training.step import TrainState


class Start(NamedTuple):
    """The state that a run begins with, and the record of where it comes from."""

    state: TrainState
    origin: Mapping[str, object]
    """For environment.json: the run, its step, and a fingerprint of the parameters."""


def start_from(
    init_from: InitFrom, program: Program, corpus: Corpus, warn: Callable[[str], None]
) -> Start:
    """Restore the parameters of another run's checkpoint, sharded and typed like a fresh state.

    With `optimizer`, AdamW's moments and its count are restored too, otherwise they are zero; the
    schedule of the learning rate begins at its first step in both cases.

    UserError if the folder is no run, its checkpoint is missing or damaged, or its model differs.
    Warns if the run was trained on other texts. All processes must call this together.
    """
    processes.on_first(lambda: _check(init_from, program, corpus, warn))
    source = find_source(init_from)
    folder = source.run / "checkpoints"
    with contextlib.closing(Checkpoints(folder, abstract=program.abstract_state)) as checkpoints:
        try:
            stored = _as_stored(program, source)
            state = checkpoints.restore(
                source.step, stored if init_from.optimizer else stored._replace(opt_state=None)
            )
        except DamagedCheckpoint as error:
            others = ", ".join(str(n) for n in saved_steps(folder) if n != source.step)
            advice = f"name another step ({others})" if others else "train that run again"
            raise DamagedCheckpoint(f"init_from: {error}; {advice}") from error
    abstract_params = program.abstract_state.params
    params = jax.tree.map(lambda x, new: x.astype(new.dtype), state.params, abstract_params)
    shardings = program.state_shardings().opt_state
    if init_from.optimizer:
        opt_state = jax.jit(with_new_schedule, out_shardings=shardings)(state.opt_state)
    else:
        opt_state = jax.jit(program.optimizer.init, out_shardings=shardings)(params)
    origin = {"step": source.step, "parameters": params_fingerprint(state.params)}
    return Start(TrainState(params, opt_state), init_from.model_dump() | origin)


def _as_stored(program: Program, source: Source) -> TrainState:
    """Return the abstract state with the source's types, whose bits its fingerprint is of."""
    stored = language_model(resolve_run(source.config), program.vocab_size).abstract_params()
    own = program.abstract_state
    params = jax.tree.map(lambda x, kept: x.update(dtype=kept.dtype), own.params, stored)
    return own._replace(params=params)


def _check(
    init_from: InitFrom, program: Program, corpus: Corpus, warn: Callable[[str], None]
) -> None:
    """UserError if a run cannot start from that checkpoint; warn if its texts differ."""
    source = find_source(init_from)
    source.check_model(program.config)
    own, theirs = program.config.optim, source.config.optim
    is_other = own.lora or theirs.lora or own.trainable != theirs.trainable
    if init_from.optimizer and (source.config.imported or is_other):
        raise UserError(
            f"init_from.optimizer: the checkpoint of {source.run} has no moments of what is "
            "trained here; give false"
        )
    tokenizer = RunDirectory(source.run).open_tokenizer(source.config)
    if tokenizer.name != corpus.tokenizer.name:
        raise UserError(
            f"init_from: the tokenizer of {source.run} is another one; leave the section tokenizer "
            "out, so that it is inherited"
        )
    trained_on = None
    if (record := recorded_provenance(source.checkpoint)) is not None:
        check_config(record, source.config, source.step, f"init_from: {source.run / 'config.yaml'}")
        trained_on = record["corpus"]
    if trained_on != corpus.fingerprint:
        trained = "was trained on another corpus" if trained_on else "does not record its corpus"
        warn(
            f"init_from: {source.run} {trained}: what it has read may hold this run's test split, "
            "so that perplexities on it come out too low"
        )
