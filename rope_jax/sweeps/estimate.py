"""How long a sweep takes on this machine, and defaults with which it takes an hour at most."""

from collections.abc import Callable, Container, Iterator
from typing import NamedTuple

from rope_jax.config.model import ModelConfig
from rope_jax.config.sweep import SweepConfig
from rope_jax.devices.hardware import nominal_flops
from rope_jax.errors import UserError
from rope_jax.evaluation.plan import Plan, sweep_lengths
from rope_jax.evaluation.reader import EvalBatch
from rope_jax.model.cost import window_flops

LONGEST_DEFAULT = 3600.0
"""Seconds that the default lengths, documents and blocks may take on a machine like this one."""


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

    config: SweepConfig
    plan: Plan
    seconds: float
    """What all defaults would have taken, if the config is another one than was given."""


def affordable(
    config: SweepConfig,
    window: int,
    plan_of: Callable[[SweepConfig], Plan],
    flops_of: Callable[[Plan], float],
) -> Choice:
    """Choose shorter lengths, one block per document and fewer documents if an hour is too short.

    What the config gives stays as it is; without a choice that takes an hour at most, the cheapest
    one is returned. Lengths for which the texts are too short are not among the choices. The speed
    is a nominal one, so that the same command always chooses alike.

    UserError: the texts are too short for every choice.
    """
    found: list[Choice] = []
    first_error: UserError | None = None
    for candidate in _candidates(config, window):
        try:
            plan = plan_of(candidate)
        except UserError as error:
            first_error = first_error or error
            continue
        seconds = flops_of(plan) / nominal_flops()
        found.append(Choice(candidate, plan, found[0].seconds if found else seconds))
        if seconds <= LONGEST_DEFAULT:
            break
    if not found:
        assert first_error is not None
        raise first_error
    return found[-1]


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
