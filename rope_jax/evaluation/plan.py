"""Plan a sweep: which entry is measured by what at which length, on which windows.

Shapes: W windows, U units (see `protocols`), L layers; n_plus_1 = n + 1 tokens; count,
last_or_more: targets at the end of a window.
"""

import functools
import hashlib
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Float64, Int32
from numpy.typing import NDArray

from rope_jax.config.entries import SweepEntry, Trained, TrainedEntry
from rope_jax.config.sweep import SweepConfig, check_stride, check_targets
from rope_jax.config.tasks import LongPPL, SampledTask, SweepTask
from rope_jax.errors import UserError, errors_in
from rope_jax.evaluation.metrics import (
    KeyTokenMetric,
    KeyTokens,
    SampledTaskMetric,
    TaskMetric,
    read_key_tokens,
)
from rope_jax.positions.bands import of_tokens
from rope_jax.positions.mapping import with_map
from rope_jax.positions.maps import PositionMap
from rope_jax.protocols import BASELINE, PROTOCOLS
from rope_jax.protocols.base import Metric, Streams, Windows, make_streams
from rope_jax.rope import Rotary, RotaryLayers, Scaling
from rope_jax.rope.strategies import NoScaling
from rope_jax.tasks import TokenizerView


@dataclass(frozen=True)
class ResolvedSweep:
    """A sweep in which nothing is left open, for the checkpoints that it reads."""

    config: SweepConfig
    lengths: tuple[int, ...]
    """Ascending, with every window that lies between the shortest and the longest."""
    readable: tuple[int, ...]
    """The lengths that the model can read."""
    targets: int
    """Scored targets of a block of same_tokens."""
    stride: int
    """Tokens from one window to the next, of the protocols that have a stride."""
    masks: Mapping[str, KeyTokens]
    """Key tokens by the path of their file."""


def resolve_sweep(
    config: SweepConfig,
    layers: RotaryLayers,
    checkpoints: Sequence[Trained],
    *,
    longest: int | None = None,
    takes_maps: bool = True,
) -> ResolvedSweep:
    """Decide what a sweep's config leaves open, and check its entries for every checkpoint.

    checkpoints: how each was trained, the newest last. longest: the most tokens that the model can
    read (None: any number). takes_maps: whether it can read with a position map.
    UserError: a setting does not fit the lengths, the checkpoints or the model's layers.
    """
    windows = [trained.window for trained in checkpoints]
    lengths = sweep_lengths(config, windows)
    targets = config.targets or lengths[0] // 2
    stride = config.stride or min(256, lengths[0] // 2)
    with errors_in("", UserError):
        check_targets(targets, lengths)
        if any(PROTOCOLS[name].uses_stride for name in config.protocols):
            check_stride(stride, lengths)
    scaled = next((x.scaling for x in checkpoints if x.scaling.type != "none"), NoScaling())
    entries = tuple(entry.resolved(scaled) for entry in config.scalings)
    labels = [entry.label for entry in entries]
    if twice := [label for label in labels if labels.count(label) > 1]:
        raise UserError(f"scalings: {twice[0]} is there twice; leave one out, or give it a name")
    config = config.model_copy(update={"scalings": entries})
    for trained in checkpoints:
        check_entries(config.scalings, layers, trained, lengths[-1], takes_maps=takes_maps)
    readable = tuple(n for n in lengths if longest is None or n <= longest)
    if not readable:
        raise UserError(
            f"lengths: {lengths[0]:,} is too long: the model's positions end at {longest:,} tokens"
        )
    masks = {}
    for task in config.tasks:
        if isinstance(task, LongPPL):
            with errors_in(f"tasks: {task.label}: ", UserError):
                masks[task.mask] = read_key_tokens(task.mask)
    return ResolvedSweep(config, lengths, readable, targets, stride, masks)


def sweep_lengths(config: SweepConfig, windows: Sequence[int]) -> tuple[int, ...]:
    """Return the lengths to sweep, adding windows that lie between the shortest and longest.

    windows: of the checkpoints, the newest last. Without lengths: the last window times 1/2, 1, 2,
    4, 8 and 16, or only the window if it is below 4.
    """
    lengths, window = config.lengths, windows[-1]
    if lengths is None:
        doubled = (window // 2, *(window * 2**k for k in range(5)))
        lengths = doubled if window > 3 else (window,)
    between = (n for n in windows if lengths[0] < n < lengths[-1])
    return tuple(sorted({*lengths, *between}))


def check_entries(
    entries: Sequence[SweepEntry],
    layers: RotaryLayers,
    trained: Trained,
    length: int,
    *,
    takes_maps: bool = True,
) -> None:
    """UserError if an entry has no effect, or does not work in every layer, at the longest length.

    trained: how the checkpoint was trained, whose own scaling is checked as well.
    """
    fixed = all(layer.scaling is not None for layer in layers.pattern)
    for entry in (TrainedEntry(), *entries):
        if fixed and entry.type != "trained" and entry.layers == "global":
            advice = "; give type: trained beside the map" if entry.map else ""
            raise UserError(
                f"scalings: {entry.label} changes nothing: every layer of this model has a "
                f"scaling of its own{advice}"
            )
        with errors_in(f"scalings: {entry.label}: ", UserError):
            scaling = entry.at(length, trained)
            layers.check(scaling, length)
            if not takes_maps and (entry.map is not None or trained.map is not None):
                raise ValueError("map: this model cannot read with a position map")
            with errors_in("map."):
                map_ = entry.map_at(length, trained)
                if map_ is None and entry.map is not None:
                    raise ValueError(
                        f"type: {entry.map.type} with auto settings acts beyond the window of "
                        f"{trained.window:,} tokens, and no length is longer; give numbers"
                    )
                if map_ is not None and map_ != trained.map:
                    map_.check_reach(_known_length(scaling, trained, length), length)
                    _check_map(map_, layers, trained.window, length)


def _check_map(map_: PositionMap, layers: RotaryLayers, window: int, length: int) -> None:
    """ValueError, which begins with a key of the map, if a map has no effect."""
    if not map_.has_effect(window, length):
        raise ValueError(
            f"type: {map_.type} with these settings changes nothing in a text of {length:,} tokens"
        )
    map_.check_layers(layers)
    for band in map_.bands(window, length):
        if band.far is not None:
            if all(layer.scaling is not None for layer in layers.pattern):
                raise ValueError(
                    "far: changes nothing: every layer of this model has a scaling of its own"
                )
            with errors_in("far."):
                layers.check(band.far, length)


def _known_length(scaling: Scaling, trained: Trained, length: int) -> int:
    """The window, times what a scaling stretches beyond the trained one; at most `length`."""
    if math.isinf(scaling.longest_extension):
        return length
    more = max(1.0, scaling.longest_extension / trained.scaling.longest_extension)
    # n/L·L may be rounded to less than n
    return min(length, math.floor(trained.window * more + 1e-6))


@dataclass(frozen=True)
class EvalBatch:
    """Windows of one length to be read with one scaling's frequencies, for several measurements."""

    length: int
    windows: int
    """W, how many."""
    windows_hash: str
    tokens: Callable[[], Int32[np.ndarray, "W n_plus_1"]]
    rotary: Rotary
    """Leaves [L|1, 1, …], with the same shapes for all batches of a length and structure."""

    @property
    def structure(self) -> str:
        """What the program depends on besides shapes."""
        return str(jax.tree.structure(self.rotary))

    @functools.cached_property
    def key(self) -> str:
        """A hash that is equal for batches that give the same NLLs."""
        digest = hashlib.sha256(f"{self.length} {self.windows_hash} {self.structure}".encode())
        for array in jax.tree.leaves(self.rotary):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class Job:
    """One measurement to make: the NLL of an entry by one metric at one length.

    `batch` says which windows the model reads, and `windows` which of their targets are scored. The
    batch's windows are longer than `length` where a protocol goes by position and one pass gives
    the NLL at every length; only the first `length` targets of a window then count.
    """

    entry: str
    scaling: Scaling
    map: PositionMap | None
    metric: Metric
    length: int
    windows: Windows
    targets: str
    """Hash of the tokens that are scored."""
    batch: EvalBatch

    @property
    def key(self) -> str:
        """Equal for jobs that give the same results with the same model."""
        bos = self.metric.streams.bos
        return f"{self.metric.name} {self.length} {bos} {self.targets} {self.batch.key}"

    @property
    def last(self) -> int:
        """How many targets at the end of the batch's windows are needed."""
        return self.batch.length - int(self.windows.first.min()) + 1

    def answers(self, count: int) -> Int32[np.ndarray, "W count"]:
        """Return which answer each of the windows' last targets belongs to; −1: not scored."""
        return self.windows.scored(self.length, self.batch.length, count)

    def by_unit(self, of_windows: NDArray[Any]) -> Float64[np.ndarray, " U"]:
        """Sum values [W] of windows by unit, each divided by the metric's divisor."""
        divided = of_windows / self.metric.divisor(self.windows, self.length)
        return np.bincount(self.windows.unit, divided)


class SweepPlan:
    """The jobs of a sweep of one checkpoint, and the tokens they read."""

    def __init__(
        self,
        sweep: ResolvedSweep,
        layers: RotaryLayers,
        trained: Trained,
        documents: Sequence[NDArray[np.integer]],
        bos_ids: Sequence[int],
        *,
        words: TokenizerView | None = None,
        token_bytes: NDArray[Any] | None = None,
    ) -> None:
        """Choose the documents, and the windows of every protocol and task.

        trained: how the checkpoint was trained; the other arguments as for `evaluation.sweep`. The
        documents and targets are those of all lengths, also of those that the model cannot read,
        so that models with different limits can be compared.

        UserError: a setting does not fit the documents.
        """
        self.sweep, self.layers, self.trained = sweep, layers, trained
        self.token_bytes, config = token_bytes, sweep.config
        if config.bos != "none" and not bos_ids:
            raise UserError("bos: there is no document-start token; give bos_id, or bos: none")
        streams = make_streams(
            documents,
            longest=sweep.lengths[-1],
            max_documents=config.max_documents,
            bos=config.bos,
            bos_ids=bos_ids,
            seed=config.seed,
        )
        self.documents, self.units = len(streams.tokens), streams.units
        self.indices = streams.indices
        largest = max(int(stream[1:].max()) for stream in streams.tokens)  # of the targets
        if token_bytes is not None and largest >= len(token_bytes):
            raise UserError(f"token_bytes: has no entry for token {largest} of the documents")
        self.metrics: list[Metric] = [
            PROTOCOLS[name](
                streams,
                lengths=sweep.lengths,
                targets=sweep.targets,
                max_blocks=config.max_blocks,
                stride=sweep.stride,
                seed=config.seed,
            )
            for name in config.protocols
        ]
        for task in config.tasks:
            with errors_in(f"tasks: {task.label}: ", UserError):
                self.metrics += self._task_metrics(task, streams, documents, words)

    def jobs(self) -> list[Job]:
        """Return one job for each row of the results, in their order, and then the baseline."""
        of_rows = [
            self._job(entry, metric, length)
            for length in self.sweep.readable
            for metric in self.metrics
            for entry in self.sweep.config.scalings
        ]
        return of_rows + ([self.baseline] if self.baseline else [])

    @functools.cached_property
    def baseline(self) -> Job | None:
        """What all curves are compared with, if its length and protocol are measured."""
        for metric in self.metrics:
            if metric.name == BASELINE and self.trained.window in self.sweep.readable:
                return self._job(TrainedEntry(), metric, self.trained.window)
        return None

    def reads_prefixes(self, entry: SweepEntry, length: int) -> bool:
        """Whether a pass over the longest windows also gives the NLLs of those of `length`.

        The model is causal: its first n outputs for a longer window equal those for a window of n
        tokens if the frequencies and query scales are the same for both. An `auto` factor depends
        on the length and never qualifies, not even up to the window, where it is always 1.
        """
        if entry.is_auto:
            return False
        longest = self.sweep.readable[-1]
        short, long = (self._rotary(entry, n) for n in (length, longest))
        long = of_tokens(long, lambda x: x[..., :length])
        if str(jax.tree.structure(short)) != str(jax.tree.structure(long)):
            return False
        return all(map(np.array_equal, jax.tree.leaves(short), jax.tree.leaves(long)))

    def _task_metrics(
        self,
        task: SweepTask,
        streams: Streams,
        documents: Sequence[NDArray[np.integer]],
        words: TokenizerView | None,
    ) -> Sequence[TaskMetric]:
        """Return the metrics of a task, one per depth. ValueError: the task does not fit."""
        longest, seed = self.sweep.lengths[-1], self.sweep.config.seed
        if isinstance(task, LongPPL):
            mask, width = self.sweep.masks[task.mask], self.sweep.targets
            return [
                KeyTokenMetric(
                    task, mask, documents, streams, width=width, longest=longest, seed=seed
                )
            ]
        assert isinstance(task, SampledTask)
        if words is None:
            raise ValueError("sweep() needs words, which make tokens of texts")
        if task.needs_words and not words.has_words:
            raise ValueError(
                f"{task.task} is for models with a tokenizer, and this one reads bytes; choose "
                "passkey"
            )
        words = words._replace(bos_ids=streams.bos_ids)
        metrics = [
            SampledTaskMetric(task, words, streams, longest, seed, depth=depth, ablated=ablated)
            for depth, ablated in (*((depth, False) for depth in task.places), (None, True))
        ]
        for metric in metrics:  # made now, so that a window that is too short shows
            self._windows(metric, self.sweep.lengths[0])
        return metrics

    @functools.cache  # noqa: B019  (it lives as long as its sweep)
    def _windows(self, metric: Metric, length: int) -> tuple[Windows, str, str]:
        """Return a metric's windows, and hashes of the scored tokens and of the windows."""
        windows = metric.windows(length)
        targets = metric.fingerprint(windows, length)
        # the windows of all protocols are of the same documents
        digest = hashlib.sha256(targets.encode() if isinstance(metric, TaskMetric) else b"")
        digest.update(np.stack([windows.document, windows.start]).tobytes())
        return windows, targets, digest.hexdigest()

    def _job(self, entry: SweepEntry, metric: Metric, length: int) -> Job:
        windows, targets, windows_hash = self._windows(metric, length)
        read_length = length
        if metric.by_position and self.reads_prefixes(entry, length):
            read_length = self.sweep.readable[-1]
        tokens = functools.partial(metric.tokens, windows, read_length)
        rotary = self._rotary(entry, read_length)
        batch = EvalBatch(read_length, len(windows.start), windows_hash, tokens, rotary)
        scaling, map_ = entry.at(length, self.trained), entry.map_at(length, self.trained)
        return Job(entry.label, scaling, map_, metric, length, windows, targets, batch)

    def _rotary(self, entry: SweepEntry, length: int) -> Rotary:
        """Return a `Rotary` whose layer axis has the same size for all entries and lengths."""
        axis = self._layer_axis
        rotary = entry_rotary(entry, length, self.layers, self.trained)
        return jax.tree.map(lambda leaf: np.broadcast_to(leaf, (axis, *leaf.shape[1:])), rotary)

    @functools.cached_property
    def _layer_axis(self) -> int:
        """1 if all layers are alike in every entry at every length, else the number of layers."""
        entries = (*self.sweep.config.scalings, TrainedEntry())
        every = itertools.product(entries, self.sweep.readable)
        made = [entry_rotary(*each, self.layers, self.trained) for each in every]
        return max(leaf.shape[0] for leaf in jax.tree.leaves(made))


def entry_rotary(entry: SweepEntry, length: int, layers: RotaryLayers, trained: Trained) -> Rotary:
    """Return the rotary frequencies with which an entry reads windows of a length."""
    # the checkpoint's own map has the L that it was trained with
    is_own = entry.type == "trained" and entry.map is None
    window = layers.geometry.train_length if is_own else trained.window
    scaling, map_ = entry.at(length, trained), entry.map_at(length, trained)
    return rotary_at(length, layers, scaling, map_, window)


def rotary_at(
    length: int, layers: RotaryLayers, scaling: Scaling, map_: PositionMap | None, window: int
) -> Rotary:
    """Return the rotary frequencies of windows of a length; window: L of the map."""
    positions = np.arange(length, dtype=np.int32)[None]
    rotary = layers.rotary(scaling, positions, length)
    if map_ is None:
        return rotary
    return with_map(rotary, map_, layers, positions, window=window, seq_len=length)
