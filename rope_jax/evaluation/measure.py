"""Measure what a plan says: read its windows in steps that fit into memory, and score them.

Shapes: B rows, n context length, W windows; n_plus_1 = n + 1 tokens, inputs and targets.
"""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Int

from rope_jax.config.sweep import SweepConfig
from rope_jax.devices.hardware import compiled
from rope_jax.devices.memory import check_fits, host_bytes, least_available, program_bytes
from rope_jax.errors import UserError
from rope_jax.evaluation.metrics import Perplexity, TaskMetric
from rope_jax.evaluation.plan import EvalBatch, Job, Plan
from rope_jax.evaluation.results import Measurement, SweepResult, TaskMeasurement
from rope_jax.model.loss import Scores
from rope_jax.results.statistics import Sums
from rope_jax.rope import Rotary

LastNLLFunction = Callable[[Any, Int[Array, "B n_plus_1"], Rotary, int], Float[Array, "B last"]]
"""A model: its parameters, tokens, frequencies and `last` ↦ NLL of the last targets, or of all, in
nats, float32."""
LastScoresFunction = Callable[[Any, Int[Array, "B n_plus_1"], Rotary, int], Scores]
"""The same with whether each target is the model's first choice, as tasks need."""

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


def measure(
    plan: Plan,
    nll_of_last: LastNLLFunction | LastScoresFunction,
    params: Any,
    *,
    row_bytes: Callable[[int], float],
    row_multiple: Callable[[int], int],
    journal: Journal | None = None,
    programs: MutableMapping[Any, Any] | None = None,
    progress: Progress = lambda *_: None,
    resuming: Resuming = lambda *_: None,
) -> SweepResult:
    """Measure what a plan says. The other arguments are those of `evaluation.sweep`."""
    every_job = plan.every_job()
    _check_host_memory(every_job)
    budget = memory_budget(plan.config)
    reader = Reader(
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
    _fill(journal, every_job, reader, plan, progress)
    made = [_measurement(job, journal, plan) for job in every_job]
    compared = made.pop() if plan.baseline_job() else None
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
    last: dict[int, int] = {}  # by length: batches are read for the job that needs most of them
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
    if config.memory_gib is not None:
        return config.memory_gib * 2**30
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    return _CPU_GIB * 2**30 if limit is None else _SHARE_OF_ACCELERATOR * limit


def _fill(
    journal: Journal, jobs: Sequence[Job], reader: "Reader", plan: Plan, progress: Progress
) -> None:
    """Measure the jobs that are not in the journal; those with equal batches read them once."""
    by_program: dict[tuple[int, str], list[Job]] = {}
    for job in jobs:
        by_program.setdefault((job.batch.length, job.batch.structure), []).append(job)
    missing = {
        program: {key: job for job in of_program if (key := plan.key(job)) not in journal}
        for program, of_program in by_program.items()
    }
    to_read = [batch for jobs in missing.values() for batch in _distinct_batches(jobs.values())]
    done, total = 0, sum(batch.length * batch.windows for batch in to_read)
    # Longest first: if they do not fit in memory, that shows at once, and the estimate of the time
    # left starts with the slowest.
    for program in sorted(by_program, key=lambda program: program[0], reverse=True):
        batches = _distinct_batches(missing[program].values())
        if not batches:
            continue
        length, label = program[0], f"length {program[0]:,}"
        progress(label, done, total)

        def tick(windows: int, length: int = length, label: str = label) -> None:
            nonlocal done
            done += windows * length
            progress(label, done, total)

        results = reader.read(
            batches,
            # over all jobs and batches, read or not: a resumed sweep then computes the same
            last=max(job.last for job in by_program[program]),
            windows=[batch.windows for batch in _distinct_batches(by_program[program])],
            tick=tick,
        )
        for batch, scores in zip(batches, results, strict=True):
            for key, job in missing[program].items():
                if job.batch.key == batch.key:
                    journal[key] = _entry(job, scores)
    progress("done", total, total)


def _distinct_batches(jobs: Iterable[Job]) -> list[EvalBatch]:
    return list({job.batch.key: job.batch for job in jobs}.values())


def _entry(job: Job, scores: "WindowScores") -> JournalEntry:
    num_correct = None
    if job.metric.has_answers:
        if scores.is_top1 is None:
            raise UserError(
                f"tasks: {job.metric.label}: nll_fn returns only NLLs; it must return Scores, "
                "which say whether each target is the first choice"
            )
        num_correct = job.num_correct(scores.is_top1).tolist()
    return JournalEntry(job.nats(scores.nll).tolist(), scores.seconds, num_correct)


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
        tokens=int(job.windows.scored_tokens(job.length).sum()),
    )


class WindowScores(NamedTuple):
    """What the model says of the last targets of a batch's windows."""

    nll: Float32[np.ndarray, "W last_or_more"]
    is_top1: Bool[np.ndarray, "W last_or_more"] | None
    """Whether the target is the model's first choice; None: the model does not say."""
    seconds: float
    """The batch's share of the time of its steps."""


class Reader:
    """Reads batches with one model, compiling once for each shape."""

    def __init__(
        self,
        nll_of_last: LastNLLFunction | LastScoresFunction,
        params: Any,
        *,
        rows_at: Callable[[int], int],
        row_multiple: Callable[[int], int],
        programs: MutableMapping[Any, Any],
    ) -> None:
        """rows_at(n): the largest number of windows of length n in one step.
        row_multiple(n): the number of rows of a step is rounded up to a multiple of this.
        programs: programs already compiled for the same function and shapes of params; new ones
            are added.
        """
        self.params = params
        self.rows_at, self.row_multiple = rows_at, row_multiple
        self._nll_of_last = jax.jit(nll_of_last, static_argnums=3)
        self._programs = programs
        self.compilations = 0

    def read(
        self,
        batches: Sequence[EvalBatch],
        last: int,
        windows: Sequence[int],
        tick: Callable[[int], None],
    ) -> Iterator[WindowScores]:
        """Yield what the model says of at least the last `last` targets for each batch.

        All batches have one length and structure. If a step can hold more windows than a batch
        has, it combines several batches, each row with its own frequencies.

        windows: the number of windows in every batch of this length and structure, including
            those that need not be read again. The size of a step follows from these numbers, so a
            resumed sweep computes exactly what an uninterrupted one would have.
        tick(windows): called after every step with the number of windows in it.
        """
        length = batches[0].length
        most, multiple = self.rows_at(length), self.row_multiple(length)
        mixed = max(windows) < most
        total = sum(windows) if mixed else max(windows)
        size = -(-total // -(-total // most))  # the fewest steps, of equal size
        size = -(-size // multiple) * multiple
        groups = [list(batches)] if mixed else [[batch] for batch in batches]
        for group in groups:
            began = time.perf_counter()
            scores = self._read_group(group, last, size, tick, mixed=mixed)
            seconds = (time.perf_counter() - began) / len(scores.nll)
            ends = itertools.accumulate((batch.windows for batch in group), initial=0)
            for rows in itertools.starmap(slice, itertools.pairwise(ends)):
                nll, is_top1 = jax.tree.map(lambda x, rows=rows: x[rows], scores)
                yield WindowScores(nll, is_top1, seconds * len(nll))

    def _read_group(
        self,
        group: Sequence[EvalBatch],
        last: int,
        size: int,
        tick: Callable[[int], None],
        *,
        mixed: bool,
    ) -> Scores:
        """Read in steps of `size` rows; mixed: of several batches."""
        tokens = np.concatenate([batch.tokens() for batch in group])
        owner = np.repeat(np.arange(len(group)), [batch.windows for batch in group])
        stacked = jax.tree.map(
            lambda *leaves: np.concatenate(leaves, axis=1), *(batch.rotary for batch in group)
        )
        steps: list[Scores] = []

        def fetch(step: int) -> None:
            left = len(tokens) - size * step
            steps[step] = jax.tree.map(lambda x: np.asarray(x)[:left], steps[step])
            tick(len(steps[step].nll))

        count = -(-len(tokens) // size)
        for step in range(count):
            # A short last step is padded with copies of the last row, which are then dropped.
            rows = np.minimum(np.arange(size) + size * step, len(tokens) - 1)
            rotary = stacked
            if mixed:
                rotary = jax.tree.map(lambda leaf, rows=rows: leaf[:, owner[rows]], stacked)
            program = self._program(size, group[0].length, last, rotary, count)
            steps.append(_as_scores(program(self.params, tokens[rows], rotary)))
            if step:  # computed while this one was prepared
                fetch(step - 1)
        fetch(count - 1)
        joined: Scores = jax.tree.map(lambda *parts: np.concatenate(parts), *steps)
        return joined

    def _program(self, size: int, length: int, last: int, rotary: Rotary, calls: int) -> Any:
        """Return the program; UserError if `calls` calls of it need more memory than there is."""
        leaf_shapes = [leaf.shape for leaf in jax.tree.leaves(rotary)]
        key = (size, length, last, jax.tree.structure(rotary), *itertools.chain(*leaf_shapes))
        if key not in self._programs:
            self._programs[key] = self.compile(size, length, last, rotary)
            used = program_bytes(self._programs[key], calls)
            can_shrink = size > self.row_multiple(length)
            check_fits(
                f"lengths: {size:,} × {length:,} tokens at a time take",
                *(used, least_available()),
                "lower memory_gib" if can_shrink else "leave out the longest length",
            )
            self.compilations += 1
        return self._programs[key]

    def compile(self, size: int, length: int, last: int, rotary: Rotary) -> Any:
        """Compile the program for `size` windows of `length` tokens, and the last `last` NLLs."""
        tokens = jax.ShapeDtypeStruct((size, length + 1), np.int32)
        arguments = (self.params, tokens, rotary, last)
        made = jax.eval_shape(self._nll_of_last, *arguments)
        nll, is_top1 = _as_scores(made)
        shapes = (size, last), (size, length)
        is_right = getattr(nll, "shape", None) in shapes and nll.dtype == np.float32
        if is_top1 is not None:
            is_right &= (is_top1.shape, is_top1.dtype) == (nll.shape, np.bool_)
        if not is_right:
            raise UserError(
                f"nll_fn: returned {made} for tokens [{size}, {length + 1}]; it must return "
                f"float32 [{size}, {length}], the NLL of tokens[:, 1:], or Scores of them, and "
                f"nll_of_last [{size}, {last}]"
            )
        return compiled(self._nll_of_last, *arguments)


def _as_scores(returned: Any) -> Any:
    """Return what a model returned as `Scores`; without first choices if it only gives NLLs."""
    return returned if isinstance(returned, Scores) else Scores(returned, None)  # type: ignore[arg-type]
