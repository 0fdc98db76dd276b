"""Measure what a plan says: read its windows in steps that fit into memory, and score them.

Shapes: B rows, n context length, W windows; n_plus_1 = n + 1 tokens, inputs and targets.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Int, PyTree
from numpy.typing import NDArray

from rope_jax.devices.hardware import compiled
from rope_jax.devices.memory import check_fits, least_available, program_bytes
from rope_jax.errors import UserError
from rope_jax.evaluation.metrics import TaskMetric, exact_answers
from rope_jax.evaluation.plan import EvalBatch, Job, SweepPlan
from rope_jax.evaluation.results import Measurement, SweepResult, TaskMeasurement
from rope_jax.model.loss import Scores
from rope_jax.protocols import Protocol
from rope_jax.results.statistics import Sums
from rope_jax.rope import Rotary

LastNLLFunction = Callable[
    [Any, Int[Array, "B n_plus_1"], Rotary, int], Float[Array, "B last"] | Scores
]
"""nll_of_last(params, tokens, rotary, last): the NLL in nats, float32, of each window's last `last`
targets, or of all n, or their `Scores`, which tasks need."""

# A CPU is fastest when a batch fits its caches; an accelerator, when its memory is well filled.
_CPU_BYTES = 2**25
_SHARE_OF_ACCELERATOR = 0.5


class JournalEntry(NamedTuple):
    """One measurement in a journal."""

    nats: list[float]
    """One sum per unit."""
    seconds: float
    num_correct: list[int] | None = None
    """How many answers are exact; None: it has none."""


# Keyed by `Job.key`.
Journal = MutableMapping[str, JournalEntry]
Progress = Callable[[str, float, float], object]
# Called after every step with the scores of its windows.
Tick = Callable[[Scores], None]


def measure(
    plan: SweepPlan,
    nll_of_last: LastNLLFunction,
    params: PyTree,
    *,
    row_bytes: Callable[[int], float],
    row_multiple: Callable[[int], int],
    journal: Journal | None = None,
    programs: MutableMapping[Any, Any] | None = None,
    progress: Progress = lambda *_: None,
    cost: Callable[[int], float] = float,
) -> SweepResult:
    """Make the measurements of a plan. The other arguments are those of `evaluation.sweep`.

    cost: of reading a window of n tokens, in any unit, for the progress (default: n).
    """
    jobs = plan.jobs()
    programs = {} if programs is None else programs
    memory_gib = plan.sweep.config.memory_gib
    reader = Reader(nll_of_last, params, row_bytes, row_multiple, memory_gib, programs)
    journal = {} if journal is None else journal
    _fill(journal, jobs, reader, progress, cost)
    made = [_measurement(job, journal[job.key], plan.token_bytes) for job in jobs]
    measurements = [m for m in made if isinstance(m, Measurement)]
    return SweepResult(
        config=plan.sweep.config,
        window=plan.trained.window,
        longest=plan.sweep.lengths[-1],
        documents=plan.documents,
        unit_kind=plan.units,
        baseline=measurements.pop() if plan.baseline else None,
        measurements=measurements,
        task_measurements=[m for m in made if isinstance(m, TaskMeasurement)],
        compilations=reader.compilations,
    )


def _fill(
    journal: Journal,
    jobs: Sequence[Job],
    reader: "Reader",
    progress: Progress,
    cost: Callable[[int], float],
) -> None:
    """Measure the jobs that are not in the journal; those with equal batches read them once."""
    by_program: dict[tuple[int, str], list[Job]] = {}
    for job in sorted(jobs, key=lambda job: job.batch.length):
        by_program.setdefault((job.batch.length, job.batch.structure), []).append(job)
    to_read = []
    for of_program in by_program.values():
        missing = [job for job in of_program if job.key not in journal]
        # over all jobs and batches, read or not: a resumed sweep then computes the same
        last = max(job.last for job in of_program)
        windows = [batch.windows for batch in _distinct_batches(of_program)]
        if missing:
            to_read.append((missing, _distinct_batches(missing), last, windows))
    every_batch = [batch for _, batches, *_ in to_read for batch in batches]
    done, total = 0.0, sum((cost(batch.length) * batch.windows for batch in every_batch), 0.0)
    # All programs are compiled first, that of the longest windows before the others: whether they
    # fit in memory is then known, and compiling is no part of the speed by which the rest is timed.
    for _, batches, last, windows in reversed(to_read):
        progress(f"compiling for length {batches[0].length:,}", done, total)
        reader.prepare(batches, last, windows)
    for missing, batches, last, windows in to_read:  # shortest first: a result shows soon
        length, means = batches[0].length, _RunningMeans(missing, batches)
        progress(f"length {length:,}", done, total)

        def tick(scores: Scores, length: int = length, means: _RunningMeans = means) -> None:
            nonlocal done
            done += len(scores.nll) * cost(length)
            progress(f"length {length:,}: {means.after(np.asarray(scores.nll))}", done, total)

        results = reader.read(batches, last, windows, tick)
        for batch, (scores, seconds) in zip(batches, results, strict=True):
            for job in missing:
                if job.batch.key == batch.key and job.key not in journal:
                    journal[job.key] = _entry(job, scores, seconds)
    progress("done", total, total)


class _RunningMeans:
    """The mean NLL so far of the batch that is being read, as progress shows it."""

    def __init__(self, jobs: Sequence[Job], batches: Sequence[EvalBatch]) -> None:
        # of the lengths that one pass gives, the longest
        of_batches = {job.batch.key: job for job in sorted(jobs, key=lambda job: job.length)}
        shown = [of_batches[batch.key] for batch in batches]
        self._rows = ((job, row) for job in shown for row in range(job.batch.windows))
        self._has_metrics = len({job.metric.name for job in jobs}) > 1
        self._nats, self._tokens = 0.0, 0

    def after(self, nll: Float[np.ndarray, "rows last"]) -> str:
        """Add the next rows; return the entry that the last one belongs to, and its mean so far."""
        for values in nll:
            job, row = next(self._rows)
            if row == 0:
                self._nats, self._tokens = 0.0, 0
                self._is_scored = job.answers(nll.shape[1]) >= 0
            scored = values[self._is_scored[row]]
            self._nats, self._tokens = self._nats + float(scored.sum()), self._tokens + len(scored)
        metric = f"{job.metric.name} " if self._has_metrics else ""
        return f"{metric}{job.entry} {self._nats / max(1, self._tokens):.3f} nats"


def _distinct_batches(jobs: Iterable[Job]) -> list[EvalBatch]:
    return list({job.batch.key: job.batch for job in jobs}.values())


def _entry(job: Job, scores: Scores, seconds: float) -> JournalEntry:
    answers = job.answers(scores.nll.shape[1])
    nats = job.by_unit(np.where(answers >= 0, scores.nll, 0).astype(np.float64).sum(1)).tolist()
    if not isinstance(job.metric, TaskMetric):
        return JournalEntry(nats, seconds)
    if scores.is_top1 is None:
        raise UserError(
            f"tasks: {job.metric.name}: nll_fn returns only NLLs; it must return Scores, which say "
            "whether each target is the first choice"
        )
    num_correct = job.by_unit(exact_answers(answers, np.asarray(scores.is_top1)))
    return JournalEntry(nats, seconds, num_correct.astype(int).tolist())


def _measurement(
    job: Job, entry: JournalEntry, token_bytes: NDArray[Any] | None
) -> Measurement | TaskMeasurement:
    metric, windows, length = job.metric, job.windows, job.length
    sums = Sums(np.array(entry.nats), job.by_unit(windows.scored_tokens(length)))
    of_job = ("entry", "scaling", "map", "length", "targets")
    shared = {name: getattr(job, name) for name in of_job} | {"seconds": entry.seconds}
    if isinstance(metric, TaskMetric):
        assert windows.answers is not None
        return TaskMeasurement(
            **shared,
            sums=sums,
            task=metric.settings,
            depth=metric.depth,
            ablated=metric.ablated,
            num_correct=np.array(entry.num_correct, np.int64),
            answers=job.by_unit(windows.answers.max(1) + 1).astype(np.int64),
        )
    assert isinstance(metric, Protocol)
    if token_bytes is not None:
        scored = metric.streams.scored_bytes(windows, length, token_bytes)
        sums = sums._replace(bytes=job.by_unit(scored))
    first_windows = np.unique(windows.unit, return_index=True)[1]
    return Measurement(
        **shared,
        sums=sums,
        protocol=metric.name,
        first_position=int(windows.first.min()),
        stride=metric.stride_at(length),
        unit_documents=windows.document[first_windows],
        tokens=int(windows.scored_tokens(length).sum()),
    )


@dataclass
class Reader:
    """Reads batches with one model, compiling once for each shape."""

    nll_of_last: LastNLLFunction
    params: PyTree
    row_bytes: Callable[[int], float] = lambda length: math.inf  # one window at a time
    row_multiple: Callable[[int], int] = lambda length: 1
    memory_gib: float | None = None
    """How much windows of row_bytes(n) bytes may take; None: what this device is fastest with."""
    programs: MutableMapping[Any, Any] = field(default_factory=dict)
    """Compiled for the same function and shapes of params; new ones are added."""
    compilations: int = 0

    def __post_init__(self) -> None:
        self._jitted = jax.jit(self.nll_of_last, static_argnums=3)

    def read(
        self, batches: Sequence[EvalBatch], last: int, windows: Sequence[int], tick: Tick
    ) -> Iterator[tuple[Scores, float]]:
        """Yield each batch's scores of at least the last `last` targets, and its seconds.

        All batches have one length and structure. If a step can hold more windows than a batch
        has, it combines several batches, each row with its own frequencies. Scores are on the host.

        windows: the number in each batch of this length and structure, including those that need
            not be read again: the size of a step follows from them, so a resumed sweep computes
            exactly what an uninterrupted one would have.
        """
        size, mixed = self._step(batches[0].length, windows)
        for group in [list(batches)] if mixed else [[batch] for batch in batches]:
            began = time.perf_counter()
            scores = self._read_group(group, last, size, tick, mixed=mixed)
            seconds = (time.perf_counter() - began) / len(scores.nll)
            begin = 0
            for batch in group:
                rows = slice(begin, begin + batch.windows)
                yield jax.tree.map(lambda x, rows=rows: x[rows], scores), seconds * batch.windows
                begin += batch.windows

    def prepare(self, batches: Sequence[EvalBatch], last: int, windows: Sequence[int]) -> None:
        """Compile the program that `read` will need; UserError if it needs too much memory."""
        size, mixed = self._step(batches[0].length, windows)
        rows = size if mixed else 1
        rotary = jax.tree.map(lambda leaf: np.repeat(leaf, rows, axis=1), batches[0].rotary)
        calls = -(-(sum if mixed else max)(batch.windows for batch in batches) // size)
        self._program(size, batches[0].length, last, rotary, calls)

    def _step(self, length: int, windows: Sequence[int]) -> tuple[int, bool]:
        """Return how many windows a step reads, and whether it combines batches."""
        limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
        budget = _CPU_BYTES if limit is None else _SHARE_OF_ACCELERATOR * limit
        if self.memory_gib is not None:
            budget = self.memory_gib * 2**30
        most, multiple = max(1, int(budget / self.row_bytes(length))), self.row_multiple(length)
        mixed = max(windows) < most
        total = sum(windows) if mixed else max(windows)
        size = -(-total // -(-total // most))  # the fewest steps, of equal size
        return -(-size // multiple) * multiple, mixed

    def _read_group(
        self, group: Sequence[EvalBatch], last: int, size: int, tick: Tick, *, mixed: bool
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
            tick(steps[step])

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
        if key not in self.programs:
            self.programs[key] = self.compile(size, length, last, rotary)
            used = program_bytes(self.programs[key], calls)
            can_shrink = size > self.row_multiple(length)
            check_fits(
                f"lengths: {size:,} × {length:,} tokens at a time take",
                used,
                least_available(),
                "lower memory_gib" if can_shrink else "leave out the longest length",
            )
            self.compilations += 1
        return self.programs[key]

    def compile(self, size: int, length: int, last: int, rotary: Rotary) -> Any:
        """Compile the program for `size` windows of `length` tokens, and the last `last` NLLs."""
        tokens = jax.ShapeDtypeStruct((size, length + 1), np.int32)
        arguments = (self.params, tokens, rotary, last)
        made = jax.eval_shape(self._jitted, *arguments)
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
        return compiled(self._jitted, *arguments)


def _as_scores(returned: object) -> Any:
    """Return what a model returned as `Scores`; without first choices if it only gives NLLs."""
    return returned if isinstance(returned, Scores) else Scores(returned, None)  # type: ignore[arg-type]
