"""Whether a sweep fits a run: its model's positions, its attention, and its stages."""

from rope_jax.attention import AttentionName, backend_names
from rope_jax.config.entries import TrainedEntry
from rope_jax.config.model import check_attention
from rope_jax.config.sweep import SweepConfig, check_encoding
from rope_jax.config.tasks import LongPPL
from rope_jax.config.training import Config
from rope_jax.data.storage import Corpus
from rope_jax.data.tokenizers import Tokenizer
from rope_jax.errors import UserError
from rope_jax.evaluation.key_tokens import read_key_tokens
from rope_jax.evaluation.plan import check_entries, sweep_lengths
from rope_jax.rope.messages import alternatives


def for_encoding(training: Config, config: SweepConfig) -> SweepConfig:
    """Return the sweep without its default scalings if the model's positions have none.

    UserError if the sweep asks for scalings or maps that the model's positions cannot have.
    """
    position = training.model.position
    if not position.is_rotary and "scalings" not in config.model_fields_set:
        return config.model_copy(update={"scalings": (TrainedEntry(),)})
    try:
        check_encoding(training.model, config.scalings)
    except ValueError as error:
        raise UserError(str(error)) from None
    return config


def for_tokenizer(tokenizer: Tokenizer, config: SweepConfig) -> SweepConfig:
    """Return the sweep with `bos: none`, unless it states another, if there is no start token."""
    if tokenizer.bos_id is None and "bos" not in config.model_fields_set:
        return config.model_copy(update={"bos": "none"})
    return config


def check_texts(training: Config, config: SweepConfig) -> None:
    """UserError if the sweep's own texts are the run's: without splits, most are for training."""
    where = {"cache_dir", "streaming"}
    if config.data is not None and (
        config.data.model_dump(exclude=where) == training.data.model_dump(exclude=where)
    ):
        raise UserError(
            "data: is what the run was trained on; leave it out, and only documents that the run "
            "was not trained on are read"
        )


def check_key_tokens(training: Config, config: SweepConfig, corpus: Corpus | None = None) -> None:
    """UserError if a mask of key tokens is of other texts, or was found by the run itself.

    corpus: the texts that the sweep reads; None: they are not known yet.
    """
    for task in config.tasks:
        if not isinstance(task, LongPPL):
            continue
        try:
            mask = read_key_tokens(task.mask)
        except ValueError as error:
            raise UserError(f"tasks: {task.label}: {error}") from None
        wrong = ""
        if corpus is not None and mask.corpus != corpus.fingerprint:
            wrong = "was made from another corpus; scripts/key_tokens.py makes one of this corpus"
        elif mask.split != config.split:
            wrong = f"is of split {mask.split}, and the sweep reads {config.split}"
        elif mask.evaluator.run == training.name:
            wrong = f"was made by {training.name}, and no model judges itself; take another run's"
        if wrong:
            raise UserError(f"tasks: {task.label}: mask: {task.mask} {wrong}")


def with_attention(training: Config, attention: AttentionName) -> Config:
    """Return a run's config with another attention backend; UserError if it cannot have it."""
    model = training.model.model_copy(update={"attention": attention})
    same = model.backend.is_softmax and training.model.backend.is_softmax
    if not same and attention != training.model.attention:
        raise UserError(
            f"attention: {attention} computes something else than {training.model.attention}, with "
            "which this model was trained"
        )
    try:
        check_attention(training.model, attention)
    except ValueError as error:
        raise UserError(str(error)) from None
    if training.rope.map is not None and not model.backend.interacts:
        raise UserError(
            f"attention: {attention} cannot do the map {training.rope.map.type}, with which this "
            f"model was trained; use {alternatives(backend_names(interacts=True))}"
        )
    return training.model_copy(update={"model": model})


def check_run_entries(training: Config, config: SweepConfig) -> None:
    """UserError if an entry cannot be used, whichever of the run's checkpoints is swept.

    That is, at none of the stages that they may belong to; `sweep` checks the others.
    """
    last = sum(stage.steps for stage in training.stages)
    stages = set(range(len(training.stages)))
    if isinstance(config.steps, tuple):
        stages = {training.stage_at(step) for step in config.steps if step <= last}
    errors: list[UserError] = []
    for stage in sorted(stages):
        window = training.stages[stage].seq_len
        try:
            check_entries(
                config,
                training.rotary_layers,
                training.stage_scaling(stage),
                window,
                sweep_lengths(config, window)[-1],
                training.stage_map(stage),
            )
        except UserError as error:
            errors.append(error)
    if errors and len(errors) == len(stages):
        raise errors[-1]
