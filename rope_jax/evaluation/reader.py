"""Read windows with the model in steps that fit a memory budget, one program per length.

Shapes: B rows, n context length, W windows, L layers; n_plus_1 = n + 1 tokens, inputs and targets.
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

from rope_jax.devices.compiling import compiled
from rope_jax.devices.memory import check_fits, least_available, program_bytes
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


class WindowScores(NamedTuple):
    """The result of a batch, for the last targets of each window."""

    nll: Float32[np.ndarray, "W last"]
    """In nats."""
    is_top1: Bool[np.ndarray, "W last"] | None
    """Whether the target is the model's first choice; None: the model does not say."""
    seconds: float
    """The batch's share of the time of its steps."""


class Reader:
    """Reads batches with one model, compiling once for each shape."""

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
        """rows_at(n): the largest number of windows of length n in one step.
        row_multiple(n): the number of rows of a step is rounded up to a multiple of this.
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
        most = self.rows_at(batches[0].length)
        mixed = max(windows) < most
        total = sum(windows) if mixed else max(windows)
        size = -(-total // -(-total // most))  # the fewest steps, of equal size
        multiple = self.row_multiple(batches[0].length)
        size = -(-size // multiple) * multiple
        groups = [list(batches)] if mixed else [[batch] for batch in batches]
        for group in groups:
            started = time.perf_counter()
            scores = self._read_group(group, last, size, tick, mixed=mixed)
            seconds = time.perf_counter() - started
            ends = np.cumsum([batch.windows for batch in group])
            for begin, end in itertools.pairwise([0, *ends.tolist()]):
                nll, is_top1 = jax.tree.map(lambda x, rows=slice(begin, end): x[rows], scores)
                share = seconds * (end - begin) / len(scores.nll)
                yield WindowScores(nll, is_top1, seconds=share)

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
        fetched: list[Scores] = []

        def fetch(step: Scores) -> None:
            left = len(tokens) - size * len(fetched)
            fetched.append(jax.tree.map(lambda x: np.asarray(x)[:left], step))
            tick(len(fetched[-1].nll))

        running: Scores | None = None  # one step is computed while the next is prepared
        for first in range(0, len(tokens), size):
            # A short last step is padded with copies of the last row, which are then dropped.
            rows = np.minimum(np.arange(first, first + size), len(tokens) - 1)
            rotary = stacked
            if mixed:
                rotary = jax.tree.map(lambda leaf, rows=rows: leaf[:, owner[rows]], stacked)
            program = self._program(size, group[0].length, last, rotary, -(-len(tokens) // size))
            previous, running = running, _as_scores(program(self.params, tokens[rows], rotary))
            if previous is not None:
                fetch(previous)
        assert running is not None  # a batch has at least one window
        fetch(running)
        joined: Scores = jax.tree.map(lambda *parts: np.concatenate(parts), *fetched)
        return joined

    def _program(self, size: int, length: int, last: int, rotary: Rotary, calls: int) -> Any:
        """Return the program; UserError if `calls` calls of it need more memory than there is."""
        if self._nll_of_last is None:
            last = length
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
        function: Any = self._nll
        arguments: tuple[Any, ...] = (self.params, tokens, rotary)
        if last < length:
            function, arguments = self._nll_of_last, (*arguments, last)
        made = jax.eval_shape(function, *arguments)
        nll, is_top1 = _as_scores(made)
        shapes_are_right = getattr(nll, "shape", None) == (size, last) and nll.dtype == np.float32
        if is_top1 is not None:
            shapes_are_right &= (is_top1.shape, is_top1.dtype) == ((size, last), np.bool_)
        if not shapes_are_right:
            which = "tokens[:, 1:]" if last == length else f"the last {last} of tokens[:, 1:]"
            raise UserError(
                f"nll_fn: returned {made} for tokens [{size}, {length + 1}]; it must return "
                f"float32 [{size}, {last}], the NLL of {which}, or Scores of them"
            )
        return compiled(function, *arguments)


def _as_scores(returned: Any) -> Any:
    """Return what a model returned as `Scores`; without first choices if it only gives NLLs."""
    return returned if isinstance(returned, Scores) else Scores(returned, None)  # type: ignore[arg-type]
