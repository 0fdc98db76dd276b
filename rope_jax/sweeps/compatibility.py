"""Whether a sweep fits a run: its model's positions, its attention, and its stages."""

from collections.abc import Callable, Iterable
from typing import Any

from rope_jax.config.entries import TrainedEntry
from rope_jax.config.sweep import SweepConfig, check_encoding
from rope_jax.config.tasks import LongPPL
from rope_jax.config.training import TrainingConfig
from rope_jax.data.storage import Corpus
from rope_jax.errors import UserError, errors_in
from rope_jax.evaluation.key_tokens import read_key_tokens
from rope_jax.evaluation.plan import check_entries, sweep_lengths


class ResolvedSweep(SweepConfig):
    """A sweep's config with the defaults that its run decides: scalings, and where `bos` goes."""


def resolve_sweep(config: SweepConfig, training: TrainingConfig, **chosen: Any) -> ResolvedSweep:
    """Return a sweep's config as it is for a run, with values chosen in place of defaults.

    UserError: the model's positions take no such entry.
    """
    fields, given = dict(config) | chosen, config.model_fields_set
    if not training.model.position.is_rotary and "scalings" not in given:
        fields["scalings"] = (TrainedEntry(),)
    if training.tokenizer.start is None and "bos" not in given:
        fields["bos"] = "none"
    with errors_in("", UserError):
        check_encoding(training.model, fields["scalings"])
    return ResolvedSweep.model_construct(given, **fields)


def checked_sweep(config: SweepConfig, training: TrainingConfig) -> ResolvedSweep:
    """Return a sweep's config as it is for a run. UserError: they do not fit together."""
    resolved = resolve_sweep(config, training)
    check_run_entries(training, resolved)
    longest = training.encoding.longest
    if longest is not None and resolved.lengths and resolved.lengths[0] > longest:
        raise UserError(
            f"lengths: {resolved.lengths[0]:,} is too long: position "
            f"{training.model.position.type} ends at {longest:,} tokens"
        )
    where = {"cache_dir", "streaming"}
    own = training.data.model_dump(exclude=where)  # without splits, most of it is for training
    if resolved.data is not None and resolved.data.model_dump(exclude=where) == own:
        raise UserError(
            "data: is what the run was trained on; leave it out, and only documents that the run "
            "was not trained on are read"
        )
    check_key_tokens(training, resolved)
    return resolved


def check_key_tokens(
    training: TrainingConfig, config: SweepConfig, corpus: Corpus | None = None
) -> None:
    """UserError if a mask of key tokens is of other texts, or was found by the run itself."""
    for task in config.tasks:
        if not isinstance(task, LongPPL):
            continue
        with errors_in(f"tasks: {task.label}: ", UserError):
            mask = read_key_tokens(task.mask)
        wrong = ""
        if corpus is not None and mask.corpus != corpus.fingerprint:
            wrong = "was made from another corpus; rope-jax key-tokens makes one of this corpus"
        elif mask.split != config.split:
            wrong = f"is of split {mask.split}, and the sweep reads {config.split}"
        elif mask.evaluator.run == training.name:
            wrong = f"was made by {training.name}, and no model judges itself; take another run's"
        if wrong:
            raise UserError(f"tasks: {task.label}: mask: {task.mask} {wrong}")


def check_run_entries(training: TrainingConfig, config: SweepConfig) -> None:
    """UserError if an entry cannot be used at any stage of the checkpoints to sweep."""

    def check(stage: int) -> None:
        trained = training.trained(stage)
        longest = sweep_lengths(config, trained.window)[-1]
        check_entries(config, training.rotary_layers, trained, longest)

    steps = config.steps if isinstance(config.steps, tuple) else ()
    if not steps or min(steps) <= training.last_step:  # later, others are said not to exist
        check_stages(training, steps, check)


def check_stages(
    training: TrainingConfig, steps: Iterable[int], check: Callable[[int], object]
) -> None:
    """Raise a UserError of `check` if it refuses each stage of these steps; without any, of all."""
    last = training.spans[-1].end
    stages = {training.stage_at(step) for step in steps if step <= last}
    errors: list[UserError] = []
    for stage in sorted(stages) or range(len(training.stages)):
        try:
            check(stage)
            return
        except UserError as error:
            errors.append(error)
    raise errors[-1]
