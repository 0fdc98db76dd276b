"""The sweep: (scaling, protocol, length) → negative log-likelihood, by document.

What is to be scored is worked out first, as measurements to be made. Those that take the same
windows with the same rotary numbers share a reading, and each reading is run once.

Shapes: B batch, n context length, W windows, D documents.
"""

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from rope_jax.config.explain import validate
from rope_jax.config.sweep import (
    Protocol,
    SweepConfig,
)
from rope_jax.evaluation.plan import Job, Plan
from rope_jax.evaluation.reader import LastNLLFunction, NLLFunction, Reader
from rope_jax.evaluation.statistics import Sums
from rope_jax.rope import RotaryGeometry, RotaryLayers, Scaling
from rope_jax.rope.strategies import NoScaling

# (what is being read, tokens read, tokens in all)
Progress = Callable[[str, int, int], None]
# By key: nats of each document, and the seconds they took.
Journal = MutableMapping[str, tuple[list[float], float]]
# Unless the caller knows better: what a token takes, about, in a model of some 100 dimensions.
_BYTES_PER_TOKEN = 2**14
# A CPU is fastest while a batch fits its caches; an accelerator while its memory is full.
_CPU_GIB = 1 / 32
_SHARE_OF_ACCELERATOR = 0.5


@dataclass(frozen=True)
class Measurement:
    """One row before statistics."""

    entry: str
    scaling: Scaling
    protocol: Protocol
    length: int
    """Context length. per_position may have read it as the beginning of longer windows."""
    first_position: int
    """Of the targets that count, the least; the last one is at `length`."""
    sums: Sums
    tokens: int
    """How many targets count."""
    targets: str
    """Hash of what was scored."""
    seconds: float


@dataclass(frozen=True)
class SweepResult:
    """What a sweep measured. `baseline`: `trained` at the window, by protocol."""

    config: SweepConfig
    window: int
    longest: int
    """The longest length."""
    stride: int
    """Between windows that slide."""
    documents: int
    measurements: list[Measurement]
    baseline: dict[str, Measurement]
    compilations: int


def sweep(
    nll_fn: NLLFunction,
    scalings: Sequence[Any],
    lengths: Sequence[int] | None,
    documents: Sequence[NDArray[np.integer]],
    *,
    params: Any,
    geometry: RotaryGeometry | RotaryLayers,
    trained: Scaling | None = None,
    window: int | None = None,
    bos_id: int | None = None,
    nll_of_last: LastNLLFunction | None = None,
    row_bytes: Callable[[int], float] = lambda length: _BYTES_PER_TOKEN * length,
    row_multiple: int = 1,
    journal: Journal | None = None,
    programs: MutableMapping[Any, Any] | None = None,
    progress: Progress = lambda *_: None,
    **settings: Any,
) -> SweepResult:
    """Measure a model's negative log-likelihood at context lengths past its window.

    nll_fn(params, tokens [B, n+1], rotary) -> float32 [B, n], the NLL in nats of tokens[:, 1:].
        Any JAX function. It must take its frequencies from `rotary`, whose leaves have the axes
        [L|1, B|1] in front (see `rope_jax.rope.Rotary`), and multiply its queries by
        `rotary.query_scale` where an entry has a query scale.
    nll_of_last(params, tokens, rotary, last) -> float32 [B, last]: the same of the last targets
        alone, where that is cheaper. same_tokens needs no more.
    scalings: entries as in a sweep file: "trained", {"type": "ntk", "factor": "auto"}, …
    lengths: context lengths in tokens, rising; None: the window times 1/2, 1, 2, 4, 8, 16.
        The window is added where it lies between them: all else is compared with it.
    documents: token arrays without document-start tokens; where `bos` asks, bos_id is added.
    params: passed to nll_fn as it is (closed over, it would be compiled in as constants).
    geometry: the model's rotary geometry, or those of its layers where they differ; window: the
        length it was last trained at (default: train_length); trained: its own scaling (default:
        none). An entry's scaling is that of the layers without one of their own.
    row_bytes(n): the memory that a window of n tokens takes; with the budget `memory_gib` it sets
        the batch size at each length. row_multiple: batch sizes are a multiple, as of devices.
    journal: what was measured before and need not be again, of this very nll_fn, params and
        documents; it is added to as the sweep goes on.
    programs: a dict that several sweeps share, of the same nll_fn and shapes of params (of several
        checkpoints, say): what one has compiled the next need not.
    settings: other keys of a sweep file (protocols, blocks, seed, memory_gib, …).

    Every length reads the same documents. Raises UserError for bad input.
    """
    raw = {"scalings": scalings, "lengths": lengths} | settings
    config = validate(SweepConfig, {k: v for k, v in raw.items() if v is not None}, "sweep")
    layers = geometry if isinstance(geometry, RotaryLayers) else RotaryLayers(geometry)
    plan = Plan(
        layers,
        trained or NoScaling(),
        window or layers.geometry.train_length,
        documents,
        bos_id,
        config,
    )
    jobs = list(plan.jobs())
    budget = memory_budget(config)
    reader = Reader(
        nll_fn,
        nll_of_last,
        params,
        rows_at=lambda length: max(1, int(budget / row_bytes(length))),
        row_multiple=row_multiple,
        tokens_of=plan.tokens_of,
        programs={} if programs is None else programs,
    )
    made = _measure(jobs, reader, {} if journal is None else journal, plan, progress)
    baseline = {"same_tokens": made[-1]} if plan.has_baseline else {}
    return SweepResult(
        config,
        plan.window,
        plan.lengths[-1],
        plan.stride,
        len(plan.streams),
        made[: len(made) - len(baseline)],
        baseline,
        reader.compilations,
    )


def memory_budget(config: SweepConfig) -> float:
    """Bytes for what one batch needs while it is being read."""
    gib = config.memory_gib
    if gib is not None:
        return gib * 2**30
    there = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    return _CPU_GIB * 2**30 if there is None else _SHARE_OF_ACCELERATOR * there


def _measure(
    jobs: Sequence[Job], reader: Reader, journal: Journal, plan: Plan, progress: Progress
) -> list[Measurement]:
    """One measurement a job, in their order."""
    keys = [plan.key(job) for job in jobs]
    # Each reading once, with the jobs that take their figures from it.
    readings = {job.reading.key(): job.reading for job in jobs}
    wanted: dict[str, list[tuple[Job, str]]] = {}
    for job, key in zip(jobs, keys, strict=True):
        if key not in journal:
            wanted.setdefault(job.reading.key(), []).append((job, key))
    done, total = 0, sum(readings[name].length * len(readings[name].start) for name in wanted)
    # The longest first: what does not fit in memory is known at once, and what is left is less.
    for length in sorted({readings[name].length for name in wanted}, reverse=True):
        names = [name for name in wanted if readings[name].length == length]
        last = max(job.last for job in jobs if job.reading.length == length)
        windows = [len(r.start) for r in readings.values() if r.length == length]
        progress(f"length {length:,}", done, total)

        def tick(read: int, length: int = length) -> None:
            nonlocal done
            done += read * length
            progress(f"length {length:,}", done, total)

        found = reader.read([readings[name] for name in names], last, windows, tick)
        for name, (nll, seconds) in zip(names, found, strict=True):
            for job, key in wanted[name]:
                journal[key] = job.nats(nll, len(plan.streams)).tolist(), seconds
    progress("done", total, total)
    return [_measurement(job, *journal[key], plan) for job, key in zip(jobs, keys, strict=True)]


def _measurement(job: Job, nats: list[float], seconds: float, plan: Plan) -> Measurement:
    return Measurement(
        job.entry,
        job.scaling,
        job.protocol,
        job.length,
        int(job.windows.first.min()),
        Sums(np.array(nats), job.weights(len(plan.streams))),
        int((job.length - job.windows.first + 1).sum()),
        plan.fingerprint(job.protocol, job.length),
        seconds,
    )
