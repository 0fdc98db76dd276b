"""The sweep: (scaling, protocol, length) → negative log-likelihood, by document.

What is to be scored is worked out first, as measurements to be made. Those that take the same
windows with the same rotary numbers share a reading, and each reading is run once.

Shapes: B batch, n context length, W windows, D documents.
"""

import functools
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from rope_jax.config import validate
from rope_jax.errors import UserError
from rope_jax.evaluation import protocols
from rope_jax.evaluation.protocols import Windows
from rope_jax.evaluation.readings import LastNLLFunction, NLLFunction, Reader, Reading
from rope_jax.evaluation.statistics import Sums
from rope_jax.rope import Rotary, RotaryGeometry, RotaryLayers, Scaling
from rope_jax.rope.strategies import NoScaling
from rope_jax.sweep_schema import (
    Protocol,
    SweepConfig,
    SweepEntry,
    TrainedEntry,
    check_stride,
    check_targets,
)

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
    plan = _Plan(
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


def sweep_lengths(config: SweepConfig, window: int) -> list[int]:
    """The lengths of a sweep, the window among them where it lies between them."""
    if config.lengths is None:
        return [window // 2, *(window * 2**k for k in range(5))] if window > 3 else [window]
    lengths = list(config.lengths)
    if lengths[0] < window < lengths[-1]:
        lengths = sorted({*lengths, window})
    return lengths


def memory_budget(config: SweepConfig) -> float:
    """Bytes for what one batch needs while it is being read."""
    gib = config.memory_gib
    if gib is not None:
        return gib * 2**30
    there = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    return _CPU_GIB * 2**30 if there is None else _SHARE_OF_ACCELERATOR * there


@dataclass(frozen=True)
class _Job:
    """A measurement to be made: windows of a reading, or their first `length` targets."""

    entry: str
    scaling: Scaling
    protocol: Protocol
    length: int
    windows: Windows
    reading: Reading

    @property
    def last(self) -> int:
        """How many targets at the end of the reading's windows this needs."""
        return self.reading.length - int(self.windows.first.min()) + 1

    def nats(self, nll: NDArray[np.float32], documents: int) -> NDArray[Any]:
        """Of each document [D], from the NLL of its windows' last targets [W, last or more]."""
        positions = np.arange(self.reading.length - nll.shape[1], self.reading.length) + 1
        counts = (positions >= self.windows.first[:, None]) & (positions <= self.length)
        scored = np.where(counts, nll, 0).astype(np.float64).sum(1)
        return np.bincount(self.windows.document, scored / self._divisor(), documents)

    def weights(self, documents: int) -> NDArray[Any]:
        """What a document's nats count as [D]: its targets; yarn_compat: its windows."""
        return np.bincount(self.windows.document, self._scored() / self._divisor(), documents)

    def _scored(self) -> NDArray[np.float64]:
        return (self.length - self.windows.first + 1).astype(np.float64)

    def _divisor(self) -> NDArray[np.float64]:
        scored = self._scored()
        return scored if self.protocol == "yarn_compat" else np.ones_like(scored)


class _Plan:
    """What is measured: every entry, by every protocol, at every length."""

    def __init__(
        self,
        layers: RotaryLayers,
        trained: Scaling,
        window: int,
        documents: Sequence[NDArray[np.integer]],
        bos_id: int | None,
        config: SweepConfig,
    ) -> None:
        self.layers, self.trained, self.window = layers, trained, window
        self.config, self.bos_id = config, bos_id
        self.lengths = sweep_lengths(config, window)
        self.targets = config.targets or self.lengths[0] // 2
        self.stride = config.stride or min(256, self.lengths[0] // 2)
        try:
            check_targets(self.targets, tuple(self.lengths))
            if set(protocols.SLIDING) & set(config.protocols):
                check_stride(self.stride, tuple(self.lengths))
        except ValueError as error:
            raise UserError(str(error)) from None
        if config.bos != "none" and bos_id is None:
            raise UserError("bos: there is no document-start token; give bos_id, or bos: none")
        _, self.streams = protocols.make_streams(
            documents,
            longest=self.lengths[-1],
            max_documents=config.max_documents,
            bos=config.bos,
            bos_id=bos_id,
            seed=config.seed,
        )
        self._check_scalings()

    @property
    def has_baseline(self) -> bool:
        """Whether `trained` at the window, by same_tokens, is there to compare with."""
        return self.window in self.lengths and "same_tokens" in self.config.protocols

    def jobs(self) -> Iterator[_Job]:
        """One for each row of the results; the baseline last, where there is one."""
        for length in self.lengths:
            for protocol in self.config.protocols:
                for entry in self.config.scalings:
                    yield self._job(entry, protocol, length)
        if self.has_baseline:
            yield self._job(TrainedEntry(), "same_tokens", self.window)

    def tokens_of(self, reading: Reading) -> NDArray[np.int32]:
        """A reading's windows, [W, n + 1]."""
        return protocols.cut(
            self.streams,
            reading.document,
            reading.start,
            reading.length,
            bos=self.config.bos,
            bos_id=self.bos_id,
        )

    @functools.cache  # noqa: B019  (a plan lives as long as its sweep)
    def fingerprint(self, protocol: Protocol, length: int) -> str:
        """Of what a protocol scores at a length."""
        windows = self._windows(protocol, length)
        return protocols.fingerprint(self.streams, windows, length, self.config.bos)

    def key(self, job: _Job) -> str:
        """Equal for measurements that give the same figures with the same model."""
        scored = self.fingerprint(job.protocol, job.length)
        return f"{job.protocol} {job.length} {self.config.bos} {scored} {job.reading.key()}"

    def _job(self, entry: SweepEntry, protocol: Protocol, length: int) -> _Job:
        windows = self._windows(protocol, length)
        scaling = entry.at(length, self.window, self.trained)
        read, rotary = length, self._rotary(scaling, length)
        if protocol == "per_position" and self.reads_prefixes(entry, length):
            read, rotary = self.lengths[-1], self._rotary(scaling, self.lengths[-1])
        reading = Reading(read, windows.document, windows.start, rotary)
        return _Job(entry.label, scaling, protocol, length, windows, reading)

    def reads_prefixes(self, entry: SweepEntry, length: int) -> bool:
        """Whether the longest windows hold what shorter ones with the same start would give.

        A causal model's first n outputs are those of a window of n tokens, where the rotary
        numbers are the same for both. An `auto` factor is another one at every length: it never
        qualifies, not even below the window, where it rests at 1.
        """
        if entry.factor_label == "auto":
            return False
        longest = self.lengths[-1]
        here, there = (
            self._rotary(entry.at(n, self.window, self.trained), n) for n in (length, longest)
        )
        return all(
            np.array_equal(a, b)
            for a, b in zip(
                (*here.frequencies, here.query_scale),
                (*there.frequencies, there.query_scale[..., :length]),
                strict=True,
            )
        )

    @functools.cache  # noqa: B019  (a plan lives as long as its sweep)
    def _windows(self, protocol: Protocol, length: int) -> Windows:
        return protocols.plan(
            protocol,
            self.streams,
            length,
            lengths=self.lengths,
            targets=self.targets,
            blocks=self.config.max_blocks,
            stride=self.stride,
            seed=self.config.seed,
        )

    def _rotary(self, scaling: Scaling, length: int) -> Rotary:
        """Of one shape for all entries: what differs by layer in one does so in all."""
        positions = np.arange(length, dtype=np.int32)[None]
        rotary = self.layers.rotary(scaling, positions, length)
        axis = self._layer_axis
        return jax.tree.map(lambda leaf: np.broadcast_to(leaf, (axis, *leaf.shape[1:])), rotary)

    @functools.cached_property
    def _layer_axis(self) -> int:
        """1 where all layers are alike in every entry at every length, else their number."""
        return max(
            len(self.layers.each(entry.at(length, self.window, self.trained)))
            for entry in (*self.config.scalings, TrainedEntry())
            for length in self.lengths
        )

    def _check_scalings(self) -> None:
        """Before the work: each has a formula for every layer at the longest length, and acts."""
        own = all(layer.scaling is not None for layer in self.layers.pattern)
        for entry in (TrainedEntry(), *self.config.scalings):
            if own and entry.type != "trained":
                raise UserError(
                    f"scalings: {entry.label} changes nothing: every layer of this model has a "
                    "scaling of its own"
                )
            scaling = entry.at(self.lengths[-1], self.window, self.trained)
            try:
                self.layers.check(scaling, self.lengths[-1])
            except ValueError as error:
                raise UserError(f"scalings: {entry.label}: {error}") from None


def _measure(
    jobs: Sequence[_Job], reader: Reader, journal: Journal, plan: _Plan, progress: Progress
) -> list[Measurement]:
    """One measurement a job, in their order."""
    keys = [plan.key(job) for job in jobs]
    # Each reading once, with the jobs that take their figures from it.
    readings = {job.reading.key(): job.reading for job in jobs}
    wanted: dict[str, list[tuple[_Job, str]]] = {}
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


def _measurement(job: _Job, nats: list[float], seconds: float, plan: _Plan) -> Measurement:
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
