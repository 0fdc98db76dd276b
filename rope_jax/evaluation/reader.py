"""Run windows through the model in batches that fit a memory budget, one program per length.

The rotary frequencies are an argument of the compiled function, so each length compiles once,
however many scalings there are.

Shapes: B batch, n context length, W windows, L layers; n_plus_1 = n + 1 tokens, inputs and targets.
"""

import functools
import hashlib
import itertools
import time
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Int, Int32

from rope_jax.devices import processes
from rope_jax.devices.compiling import compiled
from rope_jax.devices.memory import device_bytes, in_gib, program_bytes
from rope_jax.errors import UserError
from rope_jax.model.loss import Scores
from rope_jax.rope import Rotary

NLLFunction = Callable[[Any, Int[Array, "B n_plus_1"], Rotary], Float[Array, "B n"]]
"""A model: its parameters, tokens and frequencies ↦ NLL of tokens[:, 1:] in nats, float32."""
LastNLLFunction = Callable[[Any, Int[Array, "B n_plus_1"], Rotary, int], Float[Array, "B last"]]
"""The same for the last targets only; how many is its last argument."""
ScoresFunction = Callable[[Any, Int[Array, "B n_plus_1"], Rotary], Scores]
"""A model that also says whether each target is its first choice, as tasks need."""
LastScoresFunction = Callable[[Any, Int[Array, "B n_plus_1"], Rotary, int], Scores]
"""The same for the last targets only."""


@dataclass(frozen=True)
class Reading:
    """One pass of the model: windows of one length, read with one scaling's frequencies.

    Measurements that need the same pass share it.
    """

    length: int
    windows: int
    """W, how many."""
    text: str
    """A hash that is equal for the same windows."""
    tokens: Callable[[], Int32[np.ndarray, "W n_plus_1"]]
    rotary: Rotary
    """Leaves [L|1, 1, …], with the same shapes for all readings of a length and structure."""

    @property
    def structure(self) -> str:
        """What the program depends on besides shapes: readings with the same may share one."""
        return structure_of(self.rotary)

    @functools.cached_property
    def key(self) -> str:
        """A hash that is equal for readings that give the same NLLs."""
        digest = hashlib.sha256(f"{self.length} {self.text} {self.structure}".encode())
        for array in jax.tree.leaves(self.rotary):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


def structure_of(rotary: Rotary) -> str:
    """Return what a program depends on in its `rotary` besides shapes; "" without a map."""
    return str(jax.tree.structure(rotary)) if rotary.bands else ""


class WindowScores(NamedTuple):
    """The result of a reading, for the last targets of each window."""

    nll: Float32[np.ndarray, "W last"]
    """In nats."""
    is_first: Bool[np.ndarray, "W last"] | None
    """Whether the target is the model's first choice; None: the model does not say."""
    seconds: float
    """The reading's share of the time of its batches."""


class Reader:
    """Runs readings of one model, compiling once for each shape."""

    def __init__(
        self,
        nll_fn: NLLFunction | ScoresFunction,
        nll_of_last: LastNLLFunction | LastScoresFunction | None,
        params: Any,
        *,
        rows_at: Callable[[int], int],
        row_multiple: Callable[[int], int],
        programs: MutableMapping[Any, Any],
    ) -> None:
        """Prepare to run readings; nothing is compiled yet.

        rows_at(n): the largest number of windows of length n in one batch.
        row_multiple(n): batch sizes are rounded up to a multiple of this.
        programs: programs already compiled for the same functions and shapes of params; new ones
            are added.
        """
        self.params = params
        self.rows_at, self.row_multiple = rows_at, row_multiple
        self._nll = jax.jit(nll_fn)
        self._nll_of_last = None if nll_of_last is None else jax.jit(nll_of_last, static_argnums=3)
        self._programs = programs
        self.compilations = 0

    def read(
        self,
        readings: Sequence[Reading],
        last: int,
        windows: Sequence[int],
        tick: Callable[[int], None],
    ) -> Iterator[WindowScores]:
        """Yield what the model says of at least the last `last` targets for each reading.

        All readings have one length and structure.

        If a batch can hold more windows than a reading has, it combines several readings, each row
        with its own frequencies.

        windows: the number of windows in every reading of this length and structure, including
            readings that need not be run again. The batch size follows from these numbers, so a
            resumed sweep computes exactly what an uninterrupted one would have.
        tick(windows): called after every batch with the number of windows in it.
        """
        most = self.rows_at(readings[0].length)
        mixed = max(windows) < most
        total = sum(windows) if mixed else max(windows)
        size = -(-total // -(-total // most))  # the fewest batches, of equal size
        multiple = self.row_multiple(readings[0].length)
        size = -(-size // multiple) * multiple
        groups = [list(readings)] if mixed else [[reading] for reading in readings]
        for group in groups:
            started = time.perf_counter()
            found = self._read_group(group, last, size, tick, mixed=mixed)
            seconds = time.perf_counter() - started
            ends = np.cumsum([reading.windows for reading in group])
            for begin, end in itertools.pairwise([0, *ends.tolist()]):
                nll, is_first = jax.tree.map(lambda x, own=slice(begin, end): x[own], found)
                share = seconds * (end - begin) / len(found.nll)
                yield WindowScores(nll, is_first, seconds=share)

    def _read_group(
        self,
        group: Sequence[Reading],
        last: int,
        size: int,
        tick: Callable[[int], None],
        *,
        mixed: bool,
    ) -> Scores:
        """Read the windows of a group of readings in batches of `size` rows.

        mixed: whether a batch may hold rows of several readings.
        """
        tokens = np.concatenate([reading.tokens() for reading in group])
        owner = np.repeat(np.arange(len(group)), [reading.windows for reading in group])
        stacked = jax.tree.map(
            lambda *leaves: np.concatenate(leaves, axis=1), *(reading.rotary for reading in group)
        )
        found: list[Scores] = []

        def fetch(batch: Scores) -> None:
            left = len(tokens) - size * len(found)
            found.append(jax.tree.map(lambda x: np.asarray(x)[:left], batch))
            tick(len(found[-1].nll))

        running: Scores | None = None  # one batch is computed while the next is prepared
        for first in range(0, len(tokens), size):
            # A short last batch is padded with copies of the last row, which are then dropped.
            rows = np.minimum(np.arange(first, first + size), len(tokens) - 1)
            rotary = stacked
            if mixed:
                rotary = jax.tree.map(lambda leaf, rows=rows: leaf[:, owner[rows]], stacked)
            program = self._program(size, group[0].length, last, rotary, -(-len(tokens) // size))
            previous, running = running, _as_scores(program(self.params, tokens[rows], rotary))
            if previous is not None:
                fetch(previous)
        assert running is not None  # a reading has at least one window
        fetch(running)
        joined: Scores = jax.tree.map(lambda *parts: np.concatenate(parts), *found)
        return joined

    def _program(self, size: int, length: int, last: int, rotary: Rotary, calls: int) -> Any:
        """Return the compiled program for batches of this shape.

        UserError if `calls` calls of it need more memory than there is.
        """
        if self._nll_of_last is None:
            last = length
        leaf_shapes = [leaf.shape for leaf in jax.tree.leaves(rotary)]
        key = (size, length, last, jax.tree.structure(rotary), *itertools.chain(*leaf_shapes))
        if key not in self._programs:
            self._programs[key] = self.compile(size, length, last, rotary)
            used = program_bytes(self._programs[key], calls)
            self._check_memory(used, size, length)
            self.compilations += 1
        return self._programs[key]

    def compile(self, size: int, length: int, last: int, rotary: Rotary) -> Any:
        """Compile the program for `size` windows of `length` tokens, and the last `last` NLLs."""
        tokens = jax.ShapeDtypeStruct((size, length + 1), np.int32)
        function: Any = self._nll
        arguments: tuple[Any, ...] = (self.params, tokens, rotary)
        if last < length:
            function, arguments = self._nll_of_last, (*arguments, last)
        made = jax.eval_shape(function, *arguments)
        nll, is_first = _as_scores(made)
        shapes_are_right = getattr(nll, "shape", None) == (size, last) and nll.dtype == np.float32
        if is_first is not None:
            shapes_are_right &= (is_first.shape, is_first.dtype) == ((size, last), np.bool_)
        if not shapes_are_right:
            which = "tokens[:, 1:]" if last == length else f"the last {last} of tokens[:, 1:]"
            raise UserError(
                f"nll_fn: returned {made} for tokens [{size}, {length + 1}]; it must return "
                f"float32 [{size}, {last}], the NLL of {which}, or Scores of them"
            )
        return compiled(function, *arguments)

    def _check_memory(self, used: int, size: int, length: int) -> None:
        """UserError if a program for batches of this shape needs more memory than there is."""
        available = processes.smallest(device_bytes())
        if used <= available:
            return
        advice = (
            "lower memory_gib"
            if size > self.row_multiple(length)
            else "leave out the longest length"
        )
        raise UserError(
            f"lengths: {size:,} × {length:,} tokens at a time take at least {in_gib(used)} GiB per "
            f"device, but there are only {in_gib(available)}; {advice}"
        )


def _as_scores(found: Any) -> Any:
    """Return what a model returned as `Scores`; without first choices if it only gives NLLs."""
    return found if isinstance(found, Scores) else Scores(found, None)  # type: ignore[arg-type]
