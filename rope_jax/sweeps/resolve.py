"""Decide what a sweep's config leaves open, and plan the sweep of each checkpoint.

`config_for_run` needs the run's config alone, `resolve_run_sweep` the steps of its checkpoints too,
and `plan_checkpoints` the model and the texts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from rope_jax.config.entries import TrainedEntry
from rope_jax.config.model import check_encoding
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import TrainingConfig
from rope_jax.data.storage import Corpus, TokenSplit
from rope_jax.devices.hardware import nominal_flops
from rope_jax.errors import UserError, errors_in
from rope_jax.evaluation.plan import ResolvedSweep, SweepPlan, resolve_sweep, sweep_lengths
from rope_jax.sweeps.model import EvalModel

LONGEST_DEFAULT = 3600.0
"""Seconds that the default lengths, documents and blocks may take at the nominal speed."""


def config_for_run(config: SweepConfig, training: TrainingConfig) -> SweepConfig:
    """Return a sweep's config with the defaults that its run decides: scalings, and `bos`.

    UserError: the model's positions take no such entry.
    """
    defaults: dict[str, Any] = {}
    if not training.model.position.is_rotary and "scalings" not in config.model_fields_set:
        defaults["scalings"] = (TrainedEntry(),)
    if training.tokenizer.start is None and "bos" not in config.model_fields_set:
        defaults["bos"] = "none"
    config = config.model_copy(update=defaults)
    with errors_in("", UserError):
        check_encoding(training.model, config.scalings)
    return config


def resolve_run_sweep(
    config: SweepConfig, training: TrainingConfig, steps: Sequence[int]
) -> ResolvedSweep:
    """Resolve a sweep of a run's checkpoints; steps: ascending. UserError: they do not fit."""
    config = config_for_run(config, training)
    settings_of_texts = {"cache_dir", "streaming"}
    trained_on = training.data.model_dump(exclude=settings_of_texts)
    given = config.data and config.data.model_dump(exclude=settings_of_texts)
    # without splits, most of it is for training; an import names its texts, and learned nothing
    if training.imported is None and given == trained_on:
        raise UserError(
            "data: is what the run was trained on; leave it out, and only documents that the run "
            "was not trained on are read"
        )
    sweep = _resolved(config, training, steps)
    for path, mask in sweep.masks.items():
        if mask.split != config.split:
            raise UserError(
                f"tasks: mask: {path} is of split {mask.split}, and the sweep reads {config.split}"
            )
        if mask.evaluator.run == training.name:
            raise UserError(
                f"tasks: mask: {path} was made by {training.name}, and no model judges itself; "
                "take another run's"
            )
    return sweep


def _resolved(config: SweepConfig, training: TrainingConfig, steps: Sequence[int]) -> ResolvedSweep:
    stages = dict.fromkeys(map(training.stage_at, steps))
    return resolve_sweep(
        config,
        training.rotary_layers,
        [training.trained(stage) for stage in stages],
        longest=training.encoding.longest,
    )


@dataclass(frozen=True)
class PlannedSweep:
    """The plan of every checkpoint's sweep, all of the same lengths and texts."""

    sweep: ResolvedSweep
    plans: Mapping[int, SweepPlan]
    """By training step, ascending; checkpoints of one stage have the same plan."""
    split: TokenSplit
    chosen: Mapping[str, Any]
    """Values in place of defaults that would take too long, by key."""
    flops_of_defaults: float


def plan_checkpoints(loaded: EvalModel, sweep: ResolvedSweep, steps: Sequence[int]) -> PlannedSweep:
    """Plan the sweeps of some checkpoints. UserError: they do not fit into memory, or the texts."""
    training, config, newest = loaded.training, sweep.config, steps[-1]
    split: TokenSplit = getattr(loaded.corpus, config.split)
    texts: Sequence[NDArray[Any]] = split.texts()
    token_bytes = _token_bytes(loaded.corpus, split, texts)
    for path, mask in sweep.masks.items():
        if mask.corpus != loaded.corpus.fingerprint:
            raise UserError(
                f"tasks: mask: {path} was made from another corpus; rope-jax key-tokens makes "
                "one of this corpus"
            )

    def check_memory(lengths: Sequence[int]) -> None:
        # texts that are too short for the longest length are refused when it is planned
        is_long_enough = any(len(text) >= lengths[-1] for text in texts)
        loaded.memory.check(lengths if is_long_enough else ())

    if config.lengths is not None:  # before arrays of these lengths are made
        check_memory(sweep.readable)
    chosen, plan, flops_of_defaults = shrink_defaults(
        config,
        training.trained_at(newest).window,
        lambda values: loaded.plan(
            _resolved(config.model_copy(update=values), training, steps), texts, newest, token_bytes
        ),
        lambda plan: len(steps) * loaded.flops(plan),
    )
    if config.lengths is None:
        check_memory(plan.sweep.readable)
    by_stage = {training.stage_at(newest): plan}
    for step in steps:
        if (stage := training.stage_at(step)) not in by_stage:
            by_stage[stage] = loaded.plan(plan.sweep, texts, step, token_bytes)
    plans = {step: by_stage[training.stage_at(step)] for step in steps}
    return PlannedSweep(plan.sweep, plans, split, chosen, flops_of_defaults)


def _token_bytes(corpus: Corpus, split: TokenSplit, texts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return the bytes of text of each token [V], for a split whose tokens are `texts`.

    All tokens of the split add up to the bytes of its texts: where the tokenizer changed these,
    the difference is spread over all tokens.
    """
    by_token = corpus.tokenizer.token_bytes
    tokens = sum(map(len, texts))
    counted = sum(int(by_token[text].sum()) for text in texts)
    return by_token * (round((split.bytes_per_token or 0) * tokens) / max(counted, 1))


def shrink_defaults(
    config: SweepConfig,
    window: int,
    plan_with: Callable[[dict[str, Any]], SweepPlan],
    flops_of: Callable[[SweepPlan], float],
) -> tuple[dict[str, Any], SweepPlan, float]:
    """Choose shorter lengths, one block per document and fewer documents if an hour is too short.

    plan_with: returns the plan with some values in place of the config's defaults.

    Return these values, the plan with them, and the FLOPs of all defaults. Without a choice that
    takes an hour at most, the cheapest one is returned. Lengths for which the texts are too short
    are not among the choices. The speed is a nominal one, so that the same command always chooses
    alike; how long it takes is another question.

    UserError: the texts are too short for every choice.
    """
    choice: tuple[dict[str, Any], SweepPlan, float] | None = None
    errors: list[UserError] = []
    for candidate in _candidates(config, window):
        try:
            plan = plan_with(candidate)
        except UserError as error:
            errors.append(error)
            continue
        chosen = {key: x for key, x in candidate.items() if x != getattr(config, key)}
        flops = flops_of(plan)
        choice = chosen, plan, choice[2] if choice else flops
        if flops <= LONGEST_DEFAULT * nominal_flops():
            break
    if choice is None:
        raise errors[0]
    return choice


def _candidates(config: SweepConfig, window: int) -> Iterator[dict[str, Any]]:
    """Yield no values in place of the defaults, and then ever cheaper ones."""
    lengths = sweep_lengths(config, [window])
    may_end_sooner = config.lengths is None and len(lengths) > 3
    documents = [config.max_documents]
    if "max_documents" not in config.model_fields_set:
        documents += [20, 10, 5]
    blocks = 1 if config.max_blocks == "auto" else config.max_blocks
    for end in range(len(lengths), 2, -1) if may_end_sooner else [len(lengths)]:
        kept = {"lengths": lengths[:end]} if end < len(lengths) else {}
        yield kept
        # fewer than 20 documents only where the lengths cannot be shorter
        for count in documents if end == 3 or not may_end_sooner else documents[:2]:
            yield kept | {"max_documents": count, "max_blocks": blocks}
