"""What a sweep measures: every entry, by every protocol, at every length.

Shapes: W windows, D documents.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from rope_jax.config.sweep import (
    Protocol,
    SweepConfig,
    SweepEntry,
    TrainedEntry,
    check_stride,
    check_targets,
)
from rope_jax.errors import UserError
from rope_jax.evaluation import protocols
from rope_jax.evaluation.protocols import Windows
from rope_jax.evaluation.reader import Reading
from rope_jax.rope import Rotary, RotaryLayers, Scaling


def sweep_lengths(config: SweepConfig, window: int) -> list[int]:
    """The lengths of a sweep, the window among them where it lies between them."""
    if config.lengths is None:
        return [window // 2, *(window * 2**k for k in range(5))] if window > 3 else [window]
    lengths = list(config.lengths)
    if lengths[0] < window < lengths[-1]:
        lengths = sorted({*lengths, window})
    return lengths


@dataclass(frozen=True)
class Job:
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


class Plan:
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

    def jobs(self) -> Iterator[Job]:
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

    def key(self, job: Job) -> str:
        """Equal for measurements that give the same figures with the same model."""
        scored = self.fingerprint(job.protocol, job.length)
        return f"{job.protocol} {job.length} {self.config.bos} {scored} {job.reading.key()}"

    def _job(self, entry: SweepEntry, protocol: Protocol, length: int) -> Job:
        windows = self._windows(protocol, length)
        scaling = entry.at(length, self.window, self.trained)
        read, rotary = length, self._rotary(scaling, length)
        if protocol == "per_position" and self.reads_prefixes(entry, length):
            read, rotary = self.lengths[-1], self._rotary(scaling, self.lengths[-1])
        reading = Reading(read, windows.document, windows.start, rotary)
        return Job(entry.label, scaling, protocol, length, windows, reading)

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
            len(self.layers.per_layer(entry.at(length, self.window, self.trained)))
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
