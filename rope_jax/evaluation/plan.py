"""Plan a sweep: which entry is measured by what at which length, on which windows.

Shapes: W windows, U units (see `protocols`), L layers; n_plus_1 = n + 1 tokens; count,
last_or_more: targets at the end of a window.
"""

import functools
import hashlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float32, Float64, Int32, Int64
from numpy.typing import NDArray

from rope_jax.config.entries import SweepEntry, TrainedEntry
from rope_jax.config.sections import Trained
from rope_jax.config.sweep import SweepConfig, check_stride, check_targets
from rope_jax.config.tasks import LongPPL, SampledTask, SweepTask
from rope_jax.config.types import errors_in
from rope_jax.errors import UserError
from rope_jax.evaluation.entries import check_entries
from rope_jax.evaluation.metrics import (
    KeyTokenMetric,
    Metric,
    Perplexity,
    SampledTaskMetric,
    TaskCell,
    exact_answers,
)
from rope_jax.positions.bands import of_tokens
from rope_jax.positions.mapping import with_map
from rope_jax.positions.maps import PositionMap
from rope_jax.protocols import BASELINE, PROTOCOLS
from rope_jax.protocols.windows import Streams, Windows, make_streams
from rope_jax.rope import Rotary, RotaryLayers, Scaling
from rope_jax.tasks import Words


def sweep_lengths(config: SweepConfig, window: int) -> list[int]:
    """Return the lengths to sweep, adding the window if it lies between the shortest and longest.

    Without lengths: the window times 1/2, 1, 2, 4, 8 and 16, or only the window if it is below 4.
    """
    if config.lengths is None:
        return [window // 2, *(window * 2**k for k in range(5))] if window > 3 else [window]
    is_between = config.lengths[0] < window < config.lengths[-1]
    return sorted({*config.lengths, window}) if is_between else list(config.lengths)


def readable(lengths: Sequence[int], longest: int | None) -> list[int]:
    """Return the lengths up to the longest that a model can read; None: it can read any."""
    return [length for length in lengths if longest is None or length <= longest]


@dataclass(frozen=True)
class EvalBatch:
    """Windows of one length to be read with one scaling's frequencies, for several measurements."""

    length: int
    windows: int
    """W, how many."""
    windows_hash: str
    """Equal for the same windows."""
    tokens: Callable[[], Int32[np.ndarray, "W n_plus_1"]]
    rotary: Rotary
    """Leaves [L|1, 1, …], with the same shapes for all batches of a length and structure."""

    @property
    def structure(self) -> str:
        """What the program depends on besides shapes: batches with the same may share one."""
        return structure_of(self.rotary)

    @functools.cached_property
    def key(self) -> str:
        """A hash that is equal for batches that give the same NLLs."""
        digest = hashlib.sha256(f"{self.length} {self.windows_hash} {self.structure}".encode())
        for array in jax.tree.leaves(self.rotary):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


def structure_of(rotary: Rotary) -> str:
    """Return what a program depends on in its `rotary` besides shapes; "" without a map."""
    return str(jax.tree.structure(rotary)) if rotary.bands else ""


@dataclass(frozen=True)
class Job:
    """One measurement to make: the NLL of some of the first `length` targets in a batch's windows.

    The batch's windows are longer where a protocol goes by position.
    """

    entry: str
    scaling: Scaling
    map: PositionMap | None
    metric: Metric
    cell: TaskCell
    length: int
    windows: Windows
    batch: EvalBatch

    @property
    def last(self) -> int:
        """How many targets at the end of the batch's windows are needed."""
        return self.batch.length - int(self.windows.first.min()) + 1

    def nats(self, nll: Float32[np.ndarray, "W last_or_more"]) -> Float64[np.ndarray, " U"]:
        """Sum the last targets' NLL where scored, by unit, each window's divided by its divisor."""
        is_scored = self._answers(nll.shape[1]) >= 0
        by_window = np.where(is_scored, nll, 0).astype(np.float64).sum(1)
        return np.bincount(self.windows.unit, by_window / self._divisor())

    def num_correct(self, is_top1: Bool[np.ndarray, "W last_or_more"]) -> Int64[np.ndarray, " U"]:
        """Count the exact answers by unit; is_top1: of each window's last targets."""
        exact = exact_answers(self._answers(is_top1.shape[1]), is_top1)
        return np.bincount(self.windows.unit, exact).astype(np.int64)

    def answers(self) -> Int64[np.ndarray, " U"]:
        """Return how many answers there are in each unit."""
        return self.num_correct(np.ones((len(self.windows.start), self.last), bool))

    def weights(self) -> Float64[np.ndarray, " U"]:
        """Return how many targets are scored in each unit, or windows for a mean of their means."""
        scored = self.windows.scored_tokens(self.length)
        return np.bincount(self.windows.unit, scored / self._divisor())

    def bytes(self) -> Float64[np.ndarray, " U"] | None:
        """Return the bytes of the scored targets of each unit, if known, divided as `nats` are."""
        scored = self.metric.scored_bytes(self.windows, self.length)
        return None if scored is None else np.bincount(self.windows.unit, scored / self._divisor())

    def unit_documents(self) -> Int64[np.ndarray, " U"]:
        """Return the index of each unit's document among those of the sweep."""
        _, first = np.unique(self.windows.unit, return_index=True)
        return self.windows.document[first]

    def _answers(self, count: int) -> Int32[np.ndarray, "W count"]:
        return self.windows.scored(self.length, self.batch.length, count)

    def _divisor(self) -> Float64[np.ndarray, " W"]:
        return self.metric.divisor(self.windows, self.length)


class Plan:
    """The jobs of a sweep and the tokens they read."""

    def __init__(
        self,
        layers: RotaryLayers,
        trained: Trained,
        documents: Sequence[NDArray[np.integer]],
        bos_id: int | None,
        config: SweepConfig,
        *,
        takes_maps: bool = True,
        longest: int | None = None,
        words: Words | None = None,
        token_bytes: NDArray[Any] | None = None,
    ) -> None:
        """Choose the documents and check every setting against them and the model.

        The other arguments are those of `evaluation.sweep`. Lengths beyond `longest` are left out,
        but documents and targets are those of all lengths, so that models with different limits can
        be compared.

        UserError: a setting does not fit the lengths, the documents or the model's layers.
        """
        self.layers, self.trained, self.window = layers, trained, trained.window
        self.config, self.bos_id, self.longest = config, bos_id, longest
        self.token_bytes = token_bytes
        self.lengths = sweep_lengths(config, self.window)
        self.targets = config.targets or self.lengths[0] // 2
        self.stride = config.stride or min(256, self.lengths[0] // 2)
        with errors_in("", UserError):
            check_targets(self.targets, tuple(self.lengths))
            if any(PROTOCOLS[name].uses_stride for name in config.protocols):
                check_stride(self.stride, tuple(self.lengths))
        if config.bos != "none" and bos_id is None:
            raise UserError("bos: there is no document-start token; give bos_id, or bos: none")
        chosen = make_streams(
            documents,
            longest=self.lengths[-1],
            max_documents=config.max_documents,
            bos=config.bos,
            bos_id=bos_id,
            seed=config.seed,
        )
        self.documents, self.units = len(chosen.tokens), chosen.units
        largest = max(int(stream[1:].max()) for stream in chosen.tokens)  # of the targets
        if token_bytes is not None and largest >= len(token_bytes):
            raise UserError(f"token_bytes: has no entry for token {largest} of the documents")
        self.metrics = [
            *(self._perplexity(name, chosen) for name in config.protocols),
            *(self._task(task, chosen, documents, words) for task in config.tasks),
        ]
        check_entries(config, layers, trained, self.lengths[-1], takes_maps=takes_maps)

    @property
    def readable_lengths(self) -> list[int]:
        """The lengths that the model can read."""
        return readable(self.lengths, self.longest)

    def jobs(self) -> list[Job]:
        """Return one job for each row of the results, in the rows' order."""
        return [
            self._job(entry, metric, length, cell)
            for length in self.readable_lengths
            for metric in self.metrics
            for cell in metric.cells
            for entry in self.config.scalings
        ]

    def every_job(self) -> list[Job]:
        """Return all jobs, with the one that all curves are compared with."""
        baseline = self.baseline_job()
        return [*self.jobs(), *([baseline] if baseline else [])]

    def baseline_job(self) -> Job | None:
        """Return what all curves are compared with, if its length and protocol are measured."""
        for metric in self.metrics:
            if metric.label == BASELINE and self.window in self.readable_lengths:
                return self._job(TrainedEntry(), metric, self.window, TaskCell())
        return None

    def key(self, job: Job) -> str:
        """Return a key that is equal for jobs that give the same results with the same model."""
        scored = job.metric.fingerprint(job.length, job.cell)
        return f"{job.metric.label} {job.length} {self.config.bos} {scored} {job.batch.key}"

    def reads_prefixes(self, entry: SweepEntry, length: int) -> bool:
        """Whether a pass over the longest windows also gives the NLLs of those of `length`.

        The model is causal: its first n outputs for a longer window equal those for a window of n
        tokens if the frequencies and query scales are the same for both. An `auto` factor depends
        on the length and never qualifies, not even up to the window, where it is always 1.
        """
        if entry.is_auto:
            return False
        longest = self.readable_lengths[-1]
        short, long = (self._rotary(entry, n) for n in (length, longest))
        long = of_tokens(long, lambda x: x[..., :length])
        return structure_of(short) == structure_of(long) and all(
            map(np.array_equal, jax.tree.leaves(short), jax.tree.leaves(long))
        )

    def _job(self, entry: SweepEntry, metric: Metric, length: int, cell: TaskCell) -> Job:
        windows = metric.windows(length, cell)
        read_length = length
        if metric.by_position and self.reads_prefixes(entry, length):
            read_length = self.readable_lengths[-1]
        scaling, map_ = self._reads_with(entry, length)
        return Job(
            entry=entry.label,
            scaling=scaling,
            map=map_,
            metric=metric,
            cell=cell,
            length=length,
            windows=windows,
            batch=EvalBatch(
                length=read_length,
                windows=len(windows.start),
                windows_hash=metric.windows_hash(windows, read_length, cell),
                tokens=functools.partial(metric.tokens, windows, read_length, cell),
                rotary=self._rotary(entry, read_length),
            ),
        )

    def _perplexity(self, protocol: str, streams: Streams) -> Metric:
        return Perplexity(
            PROTOCOLS[protocol](
                streams,
                lengths=self.lengths,
                targets=self.targets,
                max_blocks=self.config.max_blocks,
                stride=self.stride,
                seed=self.config.seed,
            ),
            self.token_bytes,
        )

    def _task(
        self,
        task: SweepTask,
        streams: Streams,
        documents: Sequence[NDArray[np.integer]],
        words: Words | None,
    ) -> Metric:
        bos: Any = {"bos": self.config.bos, "bos_id": self.bos_id}
        how: Any = {"longest": self.lengths[-1], "seed": self.config.seed}
        with errors_in(f"tasks: {task.label}: ", UserError):
            if isinstance(task, LongPPL):
                return KeyTokenMetric(task, documents, width=self.targets, **how, **bos)
            assert isinstance(task, SampledTask)
            if words is None:
                raise ValueError("sweep() needs words, which make tokens of texts")
            if task.needs_words and not words.has_words:
                raise ValueError(
                    f"{task.task} is for models with a tokenizer, and this one reads bytes; choose "
                    "passkey or multikey"
                )
            words = words._replace(bos_id=None if self.config.bos == "none" else self.bos_id)
            metric = SampledTaskMetric(task, words, streams, **how)
            for cell in metric.cells:  # made now, so that a window that is too short shows
                metric.windows(self.lengths[0], cell)
            return metric

    def _reads_with(self, entry: SweepEntry, length: int) -> tuple[Scaling, PositionMap | None]:
        window, scaling, map_ = self.trained
        return entry.at(length, window, scaling), entry.map_at(length, window, map_)

    def _rotary(self, entry: SweepEntry, length: int) -> Rotary:
        """Return a `Rotary` whose layer axis has the same size for all entries and lengths."""
        scaling, map_ = self._reads_with(entry, length)
        positions = np.arange(length, dtype=np.int32)[None]
        rotary = self.layers.rotary(scaling, positions, length)
        if map_ is not None:
            # the checkpoint's own map has the L that it was trained with
            is_own = entry.type == "trained" and entry.map is None
            window = self.layers.geometry.train_length if is_own else self.window
            rotary = with_map(rotary, map_, self.layers, positions, window=window, seq_len=length)
        axis = self._layer_axis
        return jax.tree.map(lambda leaf: np.broadcast_to(leaf, (axis, *leaf.shape[1:])), rotary)

    @functools.cached_property
    def _layer_axis(self) -> int:
        """1 if all layers are alike in every entry at every length, else the number of layers."""
        scalings: list[Scaling] = []
        layers = 1
        for entry, length in itertools.product(
            (*self.config.scalings, TrainedEntry()), self.lengths
        ):
            scaling, map_ = self._reads_with(entry, length)
            scalings.append(scaling)
            layers = max(layers, map_.layer_count if map_ else 1)
            bands = map_.bands(self.window, length) if map_ else ()
            scalings += [band.far for band in bands if band.far is not None]
        return max(layers, *(len(self.layers.per_layer(scaling)) for scaling in scalings))
