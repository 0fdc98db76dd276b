"""Sweep a model: (scaling, protocol or task, length) → what it says, by document or sample.

Shapes: B batch, n context length; n_plus_1 = n + 1 tokens, inputs and targets; U units.
"""

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from rope_jax.config.explain import validate
from rope_jax.config.sweep import SweepConfig
from rope_jax.devices.memory import check_fits, host_bytes
from rope_jax.errors import UserError
from rope_jax.evaluation.metrics import Perplexity
from rope_jax.evaluation.plan import Job, Plan
from rope_jax.evaluation.reader import (
    EvalBatch,
    LastNLLFunction,
    LastScoresFunction,
    NLLFunction,
    Reader,
    ScoresFunction,
)
from rope_jax.evaluation.results import Measurement, SweepResult, TaskMeasurement
from rope_jax.evaluation.tasks import TaskMetric
from rope_jax.positions.maps import PositionMap
from rope_jax.results.statistics import Sums
from rope_jax.rope import RotaryGeometry, RotaryLayers, Scaling
from rope_jax.rope.strategies import NoScaling
from rope_jax.tasks import Words

# Default for `row_bytes`, per token: that of a model of about 100 dimensions.
_BYTES_PER_TOKEN = 2**14
# A CPU is fastest when a batch fits its caches; an accelerator, when its memory is well filled.
_CPU_GIB = 1 / 32
_SHARE_OF_ACCELERATOR = 0.5


class JournalEntry(NamedTuple):
    """One measurement in a journal."""

    nats: list[float]
    """One sum per unit."""
    seconds: float
    num_correct: list[int] | None = None
    """How many answers of each unit are exact; None: it has none, or the model does not say."""


# Keyed by `Plan.key`.
Journal = MutableMapping[str, JournalEntry]
# Called with (what is being read, tokens read so far, tokens in all).
Progress = Callable[[str, int, int], None]
# Called with (distinct measurements found in the journal, distinct measurements in all).
Resuming = Callable[[int, int], None]


def sweep(
    nll_fn: NLLFunction | ScoresFunction,
    scalings: Sequence[Any],
    lengths: Sequence[int] | None,
    documents: Sequence[NDArray[np.integer]],
    *,
    params: Any,
    geometry: RotaryGeometry | RotaryLayers,
    trained: Scaling | None = None,
    window: int | None = None,
    trained_map: PositionMap | None = None,
    takes_maps: bool = False,
    longest: int | None = None,
    bos_id: int | None = None,
    nll_of_last: LastNLLFunction | LastScoresFunction | None = None,
    words: Words | None = None,
    token_bytes: NDArray[Any] | None = None,
    row_bytes: Callable[[int], float] = lambda length: _BYTES_PER_TOKEN * length,
    row_multiple: Callable[[int], int] = lambda length: 1,
    journal: Journal | None = None,
    programs: MutableMapping[Any, Any] | None = None,
    progress: Progress = lambda *_: None,
    resuming: Resuming = lambda *_: None,
    **settings: Any,
) -> SweepResult:
    """Measure a model's negative log-likelihood at context lengths past its window.

    The model:
    nll_fn(params, tokens [B, n+1], rotary) -> float32 [B, n]: the NLL in nats of tokens[:, 1:]. Any
        JAX function; it is traced and compiled. It must take its frequencies from `rotary`, whose
        leaves have leading axes [L|1, B|1] (see `rope_jax.rope.Rotary`), and multiply its queries
        by `rotary.query_scale` where an entry has a query scale.
    nll_of_last(params, tokens, rotary, last) -> float32 [B, last]: the same for the last targets
        only, if that is cheaper; `last` is static. Used where no other targets are scored.
    Both return `Scores` instead where the sweep has tasks: the NLL, and whether each target is the
        model's first choice.
    params: passed on to both (values they close over would be compiled in as constants).
    geometry: the model's rotary geometry, or its layers' geometries where they differ.
    trained: the scaling the model was trained with (default: none). An entry replaces it in the
        layers without a scaling of their own.
    window: the length the model was last trained at (default: the geometry's train_length).
    trained_map: the position map the model was trained with, without "auto" (default: none).
    takes_maps: whether nll_fn reads `rotary.bands` (see `rope_jax.positions.bands`); otherwise an
        entry with a map is refused.
    longest: the most tokens the model can read (default: any number); longer lengths are left out.
    words: how the model's tokens are made, which tasks need; its bos_id counts for their samples.
    token_bytes: how many bytes of text each token stands for, [vocabulary], for results in bits per
        byte: those of the scored targets count (default: they are not known).

    What is measured:
    scalings: entries as in a sweep file: "trained", {"type": "ntk", "factor": "auto"}, …
    lengths: context lengths in tokens, ascending; None: the window times 1/2, 1, 2, 4, 8 and 16.
        The window is added if it lies between them: everything else is compared with it.
    documents: token arrays without document-start tokens; bos_id is added where `bos` asks for it.
        Every length reads the same documents.
    settings: other keys of a sweep file (protocols, max_blocks, seed, memory_gib, …).

    How it is run:
    row_bytes(n): how many bytes a window of n tokens takes in memory. Together with the budget
        `memory_gib` it sets the batch size at each length.
    row_multiple(n): batch sizes at n tokens are a multiple of this, e.g. of the number of devices.
    journal: measurements made earlier with this nll_fn, params and documents, which are not made
        again; new ones are added as soon as they are made.
    programs: a dict shared by several sweeps with the same nll_fn and shapes of params (such as
        several checkpoints), so that each shape is compiled once.
    progress(what, done, total): called before each length and after each batch with what is being
        read, the tokens read so far and the tokens in all; at the end with "done".
    resuming(reused, total): called once before the work if the journal holds any measurements of
        this sweep; reused: how many.

    Raises UserError for bad input.
    """
    raw = {"scalings": scalings, "lengths": lengths} | settings
    config = validate(SweepConfig, {k: v for k, v in raw.items() if v is not None}, "sweep")
    layers = geometry if isinstance(geometry, RotaryLayers) else RotaryLayers(geometry)
    plan = Plan(
        layers=layers,
        trained=trained or NoScaling(),
        window=window or layers.geometry.train_length,
        documents=documents,
        bos_id=bos_id,
        config=config,
        trained_map=trained_map,
        takes_maps=takes_maps,
        longest=longest,
        words=words,
        token_bytes=token_bytes,
    )
    return measure(
        plan,
        nll_fn,
        params,
        nll_of_last=nll_of_last,
        row_bytes=row_bytes,
        row_multiple=row_multiple,
        journal=journal,
        programs=programs,
        progress=progress,
        resuming=resuming,
    )


def measure(
    plan: Plan,
    nll_fn: NLLFunction | ScoresFunction,
    params: Any,
    *,
    nll_of_last: LastNLLFunction | LastScoresFunction | None,
    row_bytes: Callable[[int], float],
    row_multiple: Callable[[int], int],
    journal: Journal | None = None,
    programs: MutableMapping[Any, Any] | None = None,
    progress: Progress = lambda *_: None,
    resuming: Resuming = lambda *_: None,
) -> SweepResult:
    """Measure what a plan says. The other arguments are those of `sweep`."""
    jobs, every_job = plan.jobs(), plan.every_job()
    _check_host_memory(jobs)
    budget = memory_budget(plan.config)
    reader = Reader(
        nll_fn,
        nll_of_last,
        params,
        rows_at=lambda length: max(1, int(budget / row_bytes(length))),
        row_multiple=row_multiple,
        programs={} if programs is None else programs,
    )
    journal = {} if journal is None else journal
    # curves that read alike, such as all with an `auto` factor at the window, are one measurement
    keys = {plan.key(job) for job in every_job}
    if reused := len(keys & set(journal)):
        resuming(reused, len(keys))
    _measure(every_job, reader, journal, plan, progress)
    made = [_measurement(job, journal, plan) for job in every_job]
    compared = made.pop() if len(made) > len(jobs) else None
    return SweepResult(
        config=plan.config,
        window=plan.window,
        longest=plan.lengths[-1],
        documents=plan.documents,
        unit_kind=plan.units,
        measurements=[m for m in made if isinstance(m, Measurement)],
        task_measurements=[m for m in made if isinstance(m, TaskMeasurement)],
        baseline=compared if isinstance(compared, Measurement) else None,
        compilations=reader.compilations,
    )


def _check_host_memory(jobs: Sequence[Job]) -> None:
    available = host_bytes()
    last: dict[int, int] = {}
    for job in jobs:
        last[job.batch.length] = max(last.get(job.batch.length, 0), job.last)
    for job in jobs:
        windows, length = job.batch.windows, job.batch.length
        # 4 bytes each: the tokens, and the NLLs twice, while batches are joined
        check_fits(
            f"{job.metric.label}: {windows:,} windows of {length:,} tokens take",
            *(4 * windows * (length + 2 * last[length]), available),
            "raise stride, or lower max_blocks or max_documents",
            where="of the host's memory",
        )


def memory_budget(config: SweepConfig) -> float:
    """Return the bytes that one batch may take while it is being read."""
    gib = config.memory_gib
    if gib is not None:
        return gib * 2**30
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    return _CPU_GIB * 2**30 if limit is None else _SHARE_OF_ACCELERATOR * limit


class _SharedBatch(NamedTuple):
    batch: EvalBatch
    missing: dict[str, Job]
    """The jobs that still need it, by key."""


def _measure(
    jobs: Sequence[Job], reader: Reader, journal: Journal, plan: Plan, progress: Progress
) -> None:
    batches: dict[str, _SharedBatch] = {}
    for job in jobs:
        shared = batches.setdefault(job.batch.key, _SharedBatch(job.batch, {}))
        if (key := plan.key(job)) not in journal:
            shared.missing[key] = job
    to_run = [shared for shared in batches.values() if shared.missing]
    done, total = 0, sum(batch.length * batch.windows for batch, _ in to_run)
    # Longest first: if they do not fit in memory, that shows at once, and the estimate of the time
    # left starts with the slowest.
    kinds = {_kind(batch): None for batch, _ in to_run}
    for kind in sorted(kinds, key=lambda kind: kind[0], reverse=True):
        length = kind[0]
        label = f"length {length:,}"
        at_length = [shared for shared in to_run if _kind(shared.batch) == kind]
        progress(label, done, total)

        def tick(windows: int, length: int = length, label: str = label) -> None:
            nonlocal done
            done += windows * length
            progress(label, done, total)

        found = reader.read(
            [shared.batch for shared in at_length],
            # over all jobs and batches, read or not: a resumed sweep then computes the same
            last=max(job.last for job in jobs if _kind(job.batch) == kind),
            windows=[batch.windows for batch, _ in batches.values() if _kind(batch) == kind],
            tick=tick,
        )
        for shared, (nll, is_top1, seconds) in zip(at_length, found, strict=True):
            for key, job in shared.missing.items():
                num_correct = None
                if job.metric.has_answers:
                    if is_top1 is None:
                        raise UserError(
                            f"tasks: {job.metric.label}: nll_fn returns only NLLs; it must "
                            "return Scores, which say whether each target is the first choice"
                        )
                    num_correct = job.num_correct(is_top1).tolist()
                journal[key] = JournalEntry(job.nats(nll).tolist(), seconds, num_correct)
    progress("done", total, total)


def _kind(batch: EvalBatch) -> tuple[int, str]:
    """Return what batches must have in common to be read together."""
    return batch.length, batch.structure


def _measurement(job: Job, journal: Journal, plan: Plan) -> Measurement | TaskMeasurement:
    nats, seconds, num_correct = journal[plan.key(job)]
    shared: dict[str, Any] = {
        "entry": job.entry,
        "scaling": job.scaling,
        "map": job.map,
        "length": job.length,
        "sums": Sums(nll=np.array(nats), weight=job.weights(), bytes=job.bytes()),
        "targets": job.metric.fingerprint(job.length, job.cell),
        "seconds": seconds,
    }
    if isinstance(job.metric, TaskMetric):
        return TaskMeasurement(
            **shared,
            task=job.metric.settings,
            cell=job.cell,
            num_correct=np.array(num_correct, np.int64),
            answers=job.answers(),
        )
    assert isinstance(job.metric, Perplexity)
    return Measurement(
        **shared,
        protocol=job.metric.label,
        first_position=int(job.windows.first.min()),
        stride=job.metric.protocol.stride_at(job.length),
        unit_documents=job.unit_documents(),
        tokens=job.tokens,
    )
