"""The sweep: (scaling, protocol, length) → negative log-likelihood, by document.

Frequencies are an argument of the compiled function, so a length compiles once whatever the
number of scalings. Shapes: B batch, n context length, W windows, D documents.
"""

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import NDArray

from rope_jax.config import validate
from rope_jax.errors import UserError
from rope_jax.evaluation import protocols
from rope_jax.evaluation.protocols import Bucket
from rope_jax.evaluation.statistics import Sums
from rope_jax.rope import Rotary, RotaryGeometry, RotaryLayers, Scaling
from rope_jax.rope.strategies import NoScaling
from rope_jax.sweep_schema import Protocol, SweepConfig, SweepEntry, TrainedEntry, check_targets

NLLFunction = Callable[[Any, Int[Array, "B n+1"], Rotary], Float[Array, "B n"]]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Measurement:
    """One row before statistics."""

    entry: str
    scaling: Scaling
    protocol: Protocol
    length: int
    """Of the window that was read."""
    bucket: Bucket
    sums: Sums
    targets: str
    """Hash of what was scored."""
    seconds: float


@dataclass(frozen=True)
class SweepResult:
    """What a sweep measured. `baseline`: `trained` at the window, by protocol and bucket."""

    config: SweepConfig
    window: int
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
    progress: Progress = lambda *_: None,
    **settings: Any,
) -> SweepResult:
    """Measure a model's negative log-likelihood at context lengths past its window.

    nll_fn(params, tokens [B, n+1], rotary) -> float32 [B, n], the NLL in nats of tokens[:, 1:].
        Any JAX function. It must take its frequencies from `rotary` (see `rope_jax.rope`), and
        multiply its queries by `rotary.query_scale` where an entry has a query scale.
    scalings: entries as in a sweep file: "trained", {"type": "ntk", "factor": "auto"}, …
    lengths: context lengths in tokens, rising; None: the window times 1/2, 1, 2, 4, 8, 16.
        The window is added where it lies between them: all else is compared with it.
    documents: token arrays without document-start tokens; where `bos` asks, bos_id is added.
    params: passed to nll_fn as it is (closed over, it would be compiled in as constants).
    geometry: the model's rotary geometry, or those of its layers where they differ; window: the
        length it was last trained at (default: train_length); trained: its own scaling (default:
        none). An entry's scaling is that of the layers without one of their own.
    settings: other keys of a sweep file (protocols, blocks, seed, batch_tokens, …).

    Every length reads the same documents. Raises UserError for bad input.
    """
    raw = {"scalings": scalings, "lengths": lengths} | settings
    config = validate(SweepConfig, {k: v for k, v in raw.items() if v is not None}, "sweep")
    layers = geometry if isinstance(geometry, RotaryLayers) else RotaryLayers(geometry)
    return _Sweep(
        nll_fn,
        params,
        layers,
        trained or NoScaling(),
        window or layers.geometry.train_length,
        documents,
        bos_id,
        config,
    ).run(progress)


def sweep_lengths(config: SweepConfig, window: int) -> list[int]:
    """The lengths of a sweep, the window among them where it lies between them."""
    if config.lengths is None:
        return [window // 2, *(window * 2**k for k in range(5))] if window > 3 else [window]
    lengths = list(config.lengths)
    if lengths[0] < window < lengths[-1]:
        lengths = sorted({*lengths, window})
    return lengths


class _Sweep:
    def __init__(
        self,
        nll_fn: NLLFunction,
        params: Any,
        layers: RotaryLayers,
        trained: Scaling,
        window: int,
        documents: Sequence[NDArray[np.integer]],
        bos_id: int | None,
        config: SweepConfig,
    ) -> None:
        self.params, self.layers, self.trained = params, layers, trained
        self.window, self.config, self.bos_id = window, config, bos_id
        self.lengths = sweep_lengths(config, window)
        self.targets = config.targets or self.lengths[0] // 2
        try:
            check_targets(self.targets, tuple(self.lengths))
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
        self.windows = {
            (layout, length): self._plan(layout, length)
            for protocol in config.protocols
            for layout in [protocols.LAYOUT[protocol]]
            for length in protocols.lengths_read(protocol, self.lengths)
        }
        self.nll_fn = jax.jit(nll_fn)
        self.compiled: dict[tuple[int, ...], Any] = {}
        self.known: dict[Any, tuple[NDArray[np.float32], float]] = {}

    def run(self, progress: Progress) -> SweepResult:
        work = list(self._work())
        self._check_scalings()
        measurements = []
        for done, (entry, protocol, length) in enumerate(work):
            progress(f"{entry.label} at {length}", done, len(work))
            measurements += self._measure(entry, protocol, length)
        progress("done", len(work), len(work))
        return SweepResult(
            self.config,
            self.window,
            len(self.streams),
            measurements,
            self._baseline(),
            len(self.compiled),
        )

    def _work(self) -> Iterator[tuple[SweepEntry, Protocol, int]]:
        # By length, so that a length's compiled function is used up before the next is made.
        for length in self.lengths:
            for protocol in self.config.protocols:
                if length in protocols.lengths_read(protocol, self.lengths):
                    for entry in self.config.scalings:
                        yield entry, protocol, length

    def _plan(self, layout: str, length: int) -> protocols.Windows:
        return protocols.plan(
            layout,
            self.streams,
            length,
            longest=self.lengths[-1],
            targets=self.targets,
            blocks=self.config.max_blocks,
            seed=self.config.seed,
        )

    def _baseline(self) -> dict[str, Measurement]:
        """`trained` at the window, for the protocols whose scored tokens do not move."""
        if self.window not in self.lengths or "same_tokens" not in self.config.protocols:
            return {}
        return {"same_tokens": self._measure(TrainedEntry(), "same_tokens", self.window)[0]}

    def _measure(self, entry: SweepEntry, protocol: Protocol, length: int) -> list[Measurement]:
        layout = protocols.LAYOUT[protocol]
        windows = self.windows[layout, length]
        scaling = entry.at(length, self.window, self.trained)
        nll, seconds = self._nll(layout, length, scaling)
        made = []
        for bucket in protocols.buckets(protocol, length, self.targets, self.lengths):
            scored = nll[:, bucket.first - 1 : bucket.last].astype(np.float64)
            count = len(self.streams)
            sums = Sums(
                np.bincount(windows.document, scored.sum(1), count),
                np.bincount(windows.document, minlength=count) * np.float64(scored.shape[1]),
            )
            targets = protocols.fingerprint(self.streams, windows, bucket, self.config.bos)
            made.append(
                Measurement(entry.label, scaling, protocol, length, bucket, sums, targets, seconds)
            )
        return made

    def _nll(self, layout: str, length: int, scaling: Scaling) -> tuple[NDArray[np.float32], float]:
        """NLL of every target of a layout's windows, [W, length], and its seconds, compiling apart.

        Entries whose frequencies agree (every `auto` one up to the window) are run once.
        """
        rotary = self._rotary(scaling, length)
        key = (layout, length, *(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(rotary)))
        if key not in self.known:
            self.known[key] = self._run(layout, length, rotary)
        return self.known[key]

    def _rotary(self, scaling: Scaling, length: int) -> Rotary:
        """Of one shape for all entries: what differs by layer in one does so in all."""
        positions = np.arange(length, dtype=np.int32)[None]
        rotary = self.layers.rotary(scaling, positions, length)
        axis = self.layer_axis
        return jax.tree.map(lambda leaf: np.broadcast_to(leaf, (axis, *leaf.shape[1:])), rotary)

    @functools.cached_property
    def layer_axis(self) -> int:
        """1 where all layers are alike in every entry at every length, else their number."""
        return max(
            len(self.layers.each(entry.at(length, self.window, self.trained)))
            for entry in (*self.config.scalings, TrainedEntry())
            for length in self.lengths
        )

    def _run(self, layout: str, length: int, rotary: Rotary) -> tuple[NDArray[np.float32], float]:
        tokens = protocols.cut(
            self.streams,
            self.windows[layout, length],
            length,
            bos=self.config.bos,
            bos_id=self.bos_id,
        )
        # One batch size a length for every protocol: one compilation.
        most = max(len(w.document) for (_, n), w in self.windows.items() if n == length)
        size = min(max(1, self.config.batch_tokens // length), most)
        shape = (size, length + 1)
        if shape not in self.compiled:
            example = jax.ShapeDtypeStruct(shape, np.int32)
            made = jax.eval_shape(self.nll_fn, self.params, example, rotary)
            if getattr(made, "shape", None) != (size, length) or made.dtype != np.float32:
                raise UserError(
                    f"nll_fn: returned {made} for tokens [{size}, {length + 1}]; it must return "
                    f"float32 [{size}, {length}], the NLL of tokens[:, 1:]"
                )
            self.compiled[shape] = self.nll_fn.lower(self.params, example, rotary).compile()
        started = time.perf_counter()
        rows = []
        for first in range(0, len(tokens), size):
            batch = tokens[first : first + size]
            # A short last batch is filled up with its own last row, which is then dropped.
            padded = np.pad(batch, ((0, size - len(batch)), (0, 0)), mode="edge")
            nll = self.compiled[shape](self.params, padded, rotary)
            rows.append(np.asarray(nll)[: len(batch)])
        return np.concatenate(rows), time.perf_counter() - started

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
