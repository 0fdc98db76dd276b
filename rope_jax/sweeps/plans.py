"""What a sweep measures of each checkpoint: lengths, and defaults that take an hour at most."""

from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray

from rope_jax.config.model import ModelConfig
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import Config
from rope_jax.data.storage import TokenSplit
from rope_jax.devices.hardware import nominal_flops
from rope_jax.errors import UserError
from rope_jax.evaluation.plan import Plan, sweep_lengths
from rope_jax.evaluation.reader import EvalBatch
from rope_jax.model.cost import window_flops
from rope_jax.sweeps.compatibility import ResolvedSweep
from rope_jax.sweeps.model import LoadedModel

LONGEST_DEFAULT = 3600.0
"""Seconds that the default lengths, documents and blocks may take on a machine like this one."""


class SweepPlans:
    """The plan of every checkpoint's sweep: the same lengths and texts, each with its own window.

    config: with what was chosen for defaults that would take too long.
    lengths: of all checkpoints, with the window of each that lies between the others.
    readable: the lengths that the model can read.
    """

    def __init__(self, loaded: LoadedModel, config: ResolvedSweep, steps: Sequence[int]) -> None:
        """UserError: a window of the longest length does not fit into memory, or the texts."""
        self.steps, self._loaded, self._given = steps, loaded, config
        self.split: TokenSplit = getattr(loaded.corpus, config.split)
        self._texts: Sequence[NDArray[Any]] = self.split.texts()
        self._token_bytes = loaded.token_bytes(self.split, self._texts)
        training, newest = loaded.training, steps[-1]
        most = training.encoding.longest
        if config.lengths is not None:  # before arrays of these lengths are made
            given = self._lengths_of(config)
            self.check_memory([n for n in given if most is None or n <= most])
        try:
            choice = affordable(
                config,
                training.trained_at(newest).window,
                lambda config: self._plan(config, newest),
                lambda plan: self._flops(plan) * len(steps),
            )
        except UserError:
            if training.imported is not None and config.lengths is None:
                _check_default_lengths(self._lengths_of(config), self.split)
            raise
        self.config: ResolvedSweep = choice.config
        self.seconds_of_defaults = choice.seconds
        self.lengths = self._lengths_of(choice.config)
        self.readable = [n for n in self.lengths if most is None or n <= most]
        # those of a stage's checkpoints are equal
        self._plans = {training.stage_at(newest): choice.plan}

    def of(self, step: int) -> Plan:
        """Return the plan of one checkpoint's sweep."""
        stage = self._loaded.training.stage_at(step)
        if stage not in self._plans:
            self._plans[stage] = self._plan(self.config, step)
        return self._plans[stage]

    def chosen(self) -> dict[str, Any]:
        """Return the keys in which a value was chosen in place of a default."""
        keys = ("lengths", "max_documents", "max_blocks")
        return {k: x for k in keys if (x := getattr(self.config, k)) != getattr(self._given, k)}

    def flops(self, done: Callable[[int], Container[str]]) -> float:
        """Return the FLOPs of what is left to measure. done: by step, keys of what is measured."""
        return sum(self._flops(self.of(step), done(step)) for step in self.steps)

    def check_memory(self, read: Sequence[int]) -> None:
        """UserError if a window of the longest of these lengths does not fit into memory."""
        # texts that are too short for the longest length are refused when it is planned
        is_long_enough = read and any(len(text) >= read[-1] for text in self._texts)
        self._loaded.memory.check(read if is_long_enough else ())

    def _flops(self, plan: Plan, done: Container[str] = ()) -> float:
        model = self._loaded.model
        return sweep_flops(plan, model.config, model.vocab_size, done)

    def _plan(self, config: ResolvedSweep, step: int) -> Plan:
        with_lengths = config.model_copy(update={"lengths": self._lengths_of(config)})
        return self._loaded.plan(with_lengths, self._texts, step, self._token_bytes)

    def _lengths_of(self, config: SweepConfig) -> tuple[int, ...]:
        training: Config = self._loaded.training
        windows = [training.trained_at(step).window for step in self.steps]
        lengths = sweep_lengths(config, windows[-1])
        return tuple(sorted({*lengths, *(n for n in windows if lengths[0] < n < lengths[-1])}))


def _check_default_lengths(lengths: Sequence[int], split: TokenSplit) -> None:
    """UserError, with lengths that work, if the windows of a published model exceed the texts."""
    longest = int(split.lengths().max(initial=0))
    if longest < lengths[-1]:
        fitting = [2**k for k in range(9, 31, 2) if 2**k < longest] or [64]
        raise UserError(
            f"lengths: the default ends at {lengths[-1]:,} tokens, and the longest document has "
            f"{longest:,}; give them, such as lengths={fitting}, or longer texts with data"
        )


def sweep_flops(
    plan: Plan, model: ModelConfig, vocab_size: int, done: Container[str] = ()
) -> float:
    """Return the FLOPs of a sweep's batches. done: keys of what need not be measured again."""
    batches: dict[str, tuple[EvalBatch, int]] = {}
    for job in plan.every_job():
        if plan.key(job) not in done:
            _, last = batches.get(job.batch.key, (job.batch, 0))
            batches[job.batch.key] = job.batch, max(last, job.last)
    flops = (
        batch.windows * window_flops(model, vocab_size, batch.length, last)
        for batch, last in batches.values()
    )
    return sum(flops, 0.0)


class Choice(NamedTuple):
    """A sweep's config in which what was left to the defaults is affordable."""

    config: Any
    plan: Plan
    seconds: float
    """What all defaults would have taken."""


def affordable(
    config: SweepConfig,
    window: int,
    plan_of: Callable[[Any], Plan],
    flops_of: Callable[[Plan], float],
) -> Choice:
    """Choose shorter lengths, one block per document and fewer documents if an hour is too short.

    What the config gives stays as it is; without a choice that takes an hour at most, the cheapest
    one is returned. Lengths for which the texts are too short are not among the choices. The speed
    is a nominal one, so that the same command always chooses alike.

    UserError: the texts are too short for every choice.
    """
    choice: Choice | None = None
    errors: list[UserError] = []
    for candidate in _candidates(config, window):
        try:
            plan = plan_of(candidate)
        except UserError as error:
            errors.append(error)
            continue
        seconds = flops_of(plan) / nominal_flops()
        choice = Choice(candidate, plan, choice.seconds if choice else seconds)
        if seconds <= LONGEST_DEFAULT:
            break
    if choice is None:
        raise errors[0]
    return choice


def _candidates(config: SweepConfig, window: int) -> Iterator[SweepConfig]:
    """Yield the config as it is, and then with ever cheaper values in place of its defaults."""
    lengths = sweep_lengths(config, window)
    may_end_sooner = config.lengths is None and len(lengths) > 3
    documents = [config.max_documents]
    if "max_documents" not in config.model_fields_set:
        documents += [20, 10, 5]
    blocks = 1 if config.max_blocks == "auto" else config.max_blocks
    for end in range(len(lengths), 2, -1) if may_end_sooner else [len(lengths)]:
        kept = {"lengths": tuple(lengths[:end])} if end < len(lengths) else {}
        yield config.model_copy(update=kept) if kept else config
        # fewer than 20 documents only where the lengths cannot be shorter
        for count in documents if end == 3 or not may_end_sooner else documents[:2]:
            fewer = {"max_documents": count, "max_blocks": blocks}
            yield config.model_copy(update=kept | fewer)
