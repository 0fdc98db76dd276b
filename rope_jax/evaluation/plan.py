"""Plan a sweep: which entry is measured by which protocol at which length, on which windows.

Shapes: W windows, D documents; n_plus_1 = n + 1 tokens, the n inputs and targets of a window.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Float32, Float64, Int32
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
    """Return the lengths to sweep, adding the window if it lies between the shortest and longest.

    Without lengths in the config: the window times 1/2, 1, 2, 4, 8 and 16.
    """
    if config.lengths is None:
        return [window // 2, *(window * 2**k for k in range(5))] if window > 3 else [window]
    lengths = list(config.lengths)
    if lengths[0] < window < lengths[-1]:
        lengths = sorted({*lengths, window})
    return lengths


@dataclass(frozen=True)
class Job:
    """One measurement to make: some targets of the windows of a reading.

    The reading's windows may be longer than `length` (the prefix shortcut of per_position): then
    only their first `length` targets concern this job.
    """

    entry: str
    scaling: Scaling
    protocol: Protocol
    length: int
    windows: Windows
    reading: Reading

    @property
    def last(self) -> int:
        """How many targets at the end of the reading's windows this job needs."""
        return self.reading.length - int(self.windows.first.min()) + 1

    @property
    def tokens(self) -> int:
        """How many targets are scored."""
        return int((self.length - self.windows.first + 1).sum())

    def nats(
        self, nll: Float32[np.ndarray, "W last_or_more"], documents: int
    ) -> Float64[np.ndarray, " D"]:
        """Sum by document the NLL of the scored targets, given that of each window's last targets.

        yarn_compat: the sum of the windows' means.
        """
        positions = np.arange(self.reading.length - nll.shape[1], self.reading.length) + 1
        is_scored = (positions >= self.windows.first[:, None]) & (positions <= self.length)
        by_window = np.where(is_scored, nll, 0).astype(np.float64).sum(1)
        return np.bincount(self.windows.document, by_window / self._divisor(), documents)

    def weights(self, documents: int) -> Float64[np.ndarray, " D"]:
        """Return what to divide the documents' nats by: scored targets; yarn_compat: windows."""
        by_window = self._scored() / self._divisor()
        return np.bincount(self.windows.document, by_window, documents)

    def _scored(self) -> Float64[np.ndarray, " W"]:
        return (self.length - self.windows.first + 1).astype(np.float64)

    def _divisor(self) -> Float64[np.ndarray, " W"]:
        scored = self._scored()
        return scored if self.protocol == "yarn_compat" else np.ones_like(scored)


class Plan:
    """The jobs of a sweep, and the tokens that they read."""

    def __init__(
        self,
        layers: RotaryLayers,
        trained: Scaling,
        window: int,
        documents: Sequence[NDArray[np.integer]],
        bos_id: int | None,
        config: SweepConfig,
    ) -> None:
        """Choose the documents and check every setting against them and the model.

        UserError: a setting does not fit the lengths, the documents or the model's layers.
        """
        self.layers, self.trained, self.window = layers, trained, window
        self.config, self.bos_id = config, bos_id
        self.lengths = sweep_lengths(config, window)
        self.targets = config.targets or self.lengths[0] // 2
        self.stride = config.stride or min(256, self.lengths[0] // 2)
        self._check_settings()
        _, self.streams = protocols.make_streams(
            documents,
            longest=self.lengths[-1],
            max_documents=config.max_documents,
            bos=config.bos,
            bos_id=bos_id,
            seed=config.seed,
        )
        self._check_scalings()

    def jobs(self) -> list[Job]:
        """Return one job for each row of the results, in the rows' order."""
        return [
            self._job(entry, protocol, length)
            for length in self.lengths
            for protocol in self.config.protocols
            for entry in self.config.scalings
        ]

    def baseline_job(self) -> Job | None:
        """Return the job that all curves are compared with: `trained` at the window, same_tokens.

        None where the window is not among the lengths or same_tokens not among the protocols.
        """
        if self.window in self.lengths and "same_tokens" in self.config.protocols:
            return self._job(TrainedEntry(), "same_tokens", self.window)
        return None

    def tokens_of(self, reading: Reading) -> Int32[np.ndarray, "W n_plus_1"]:
        """Return the tokens of a reading's windows."""
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
        """Return a hash of the tokens that a protocol scores at a length."""
        windows = self._windows(protocol, length)
        return protocols.fingerprint(self.streams, windows, length, self.config.bos)

    def key(self, job: Job) -> str:
        """Return a key that is equal for jobs that give the same figures with the same model."""
        scored = self.fingerprint(job.protocol, job.length)
        return f"{job.protocol} {job.length} {self.config.bos} {scored} {job.reading.key}"

    def reads_prefixes(self, entry: SweepEntry, length: int) -> bool:
        """Whether the longest windows give what windows of `length` with the same start would.

        The model is causal: its first n outputs are those for a window of n tokens, provided that
        the rotary numbers are the same for both. An `auto` factor differs at every length and never
        qualifies, not even below the window, where it stays at 1.
        """
        if entry.is_auto:
            return False
        longest = self.lengths[-1]
        short, long = (
            self._rotary(entry.at(n, self.window, self.trained), n) for n in (length, longest)
        )
        return all(
            np.array_equal(a, b)
            for a, b in zip(
                (*short.frequencies, short.query_scale),
                (*long.frequencies, long.query_scale[..., :length]),
                strict=True,
            )
        )

    def _job(self, entry: SweepEntry, protocol: Protocol, length: int) -> Job:
        windows = self._windows(protocol, length)
        scaling = entry.at(length, self.window, self.trained)
        read_length = length
        if protocol == "per_position" and self.reads_prefixes(entry, length):
            read_length = self.lengths[-1]
        reading = Reading(
            length=read_length,
            document=windows.document,
            start=windows.start,
            rotary=self._rotary(scaling, read_length),
        )
        return Job(
            entry=entry.label,
            scaling=scaling,
            protocol=protocol,
            length=length,
            windows=windows,
            reading=reading,
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
        """Return rotary numbers whose layer axis is the same for all entries and lengths."""
        positions = np.arange(length, dtype=np.int32)[None]
        rotary = self.layers.rotary(scaling, positions, length)
        axis = self._layer_axis
        return jax.tree.map(lambda leaf: np.broadcast_to(leaf, (axis, *leaf.shape[1:])), rotary)

    @functools.cached_property
    def _layer_axis(self) -> int:
        """1 if all layers are alike in every entry at every length, else the number of layers."""
        return max(
            len(self.layers.per_layer(entry.at(length, self.window, self.trained)))
            for entry in (*self.config.scalings, TrainedEntry())
            for length in self.lengths
        )

    def _check_settings(self) -> None:
        """Check what depends on the lengths or on the caller's documents."""
        try:
            check_targets(self.targets, tuple(self.lengths))
            if set(protocols.SLIDING) & set(self.config.protocols):
                check_stride(self.stride, tuple(self.lengths))
        except ValueError as error:
            raise UserError(str(error)) from None
        if self.config.bos != "none" and self.bos_id is None:
            raise UserError("bos: there is no document-start token; give bos_id, or bos: none")

    def _check_scalings(self) -> None:
        """Check that each entry has an effect, and a formula for every layer at all lengths."""
        fixed = all(layer.scaling is not None for layer in self.layers.pattern)
        for entry in (TrainedEntry(), *self.config.scalings):
            if fixed and entry.type != "trained":
                raise UserError(
                    f"scalings: {entry.label} changes nothing: every layer of this model has a "
                    "scaling of its own"
                )
            try:
                scaling = entry.at(self.lengths[-1], self.window, self.trained)
                self.layers.check(scaling, self.lengths[-1])
            except ValueError as error:
                raise UserError(f"scalings: {entry.label}: {error}") from None
