"""Reading windows with rotary numbers: batches that fit a memory budget, one program a length.

Frequencies are an argument of the compiled function, so a length compiles once whatever the number
of scalings. Shapes: B batch, n context length, W windows, L layers.
"""

import hashlib
import itertools
import time
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import NDArray

from rope_jax.errors import UserError
from rope_jax.rope import Rotary

NLLFunction = Callable[[Any, Int[Array, "B n+1"], Rotary], Float[Array, "B n"]]
LastNLLFunction = Callable[[Any, Int[Array, "B n+1"], Rotary, int], Float[Array, "B last"]]


@dataclass(frozen=True)
class Reading:
    """Windows of one length, read with one strategy's numbers."""

    length: int
    document: NDArray[np.int64]
    start: NDArray[np.int64]
    rotary: Rotary
    """Leaves [L|1, 1, …], of one shape for all readings of a length."""

    def key(self) -> str:
        """Equal for readings that give the same numbers."""
        digest = hashlib.sha256(f"{self.length}".encode())
        for array in (self.document, self.start, *jax.tree.leaves(self.rotary)):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


class Reader:
    """Runs readings; compiles once for each shape."""

    def __init__(
        self,
        nll_fn: NLLFunction,
        nll_of_last: LastNLLFunction | None,
        params: Any,
        *,
        rows_at: Callable[[int], int],
        row_multiple: int,
        tokens_of: Callable[[Reading], NDArray[np.int32]],
        programs: MutableMapping[Any, Any],
    ) -> None:
        """rows_at(n): how many windows of length n are read at once, at most.

        row_multiple: their number is a multiple of it, filled up if need be.
        programs: what was compiled for the same functions and shapes of params; added to.
        """
        self.params, self.tokens_of = params, tokens_of
        self.rows_at, self.row_multiple = rows_at, row_multiple
        self._whole = jax.jit(nll_fn)
        self._of_last = None if nll_of_last is None else jax.jit(nll_of_last, static_argnums=3)
        self._compiled = programs
        self.compilations = 0

    def read(
        self,
        readings: Sequence[Reading],
        last: int,
        windows: Sequence[int],
        tick: Callable[[int], None],
    ) -> Iterator[tuple[NDArray[np.float32], float]]:
        """(NLL of the last targets [W, last or more], seconds) of each reading of one length.

        Where a batch holds more windows than a reading has, it takes those of several, each row
        with its own rotary numbers: the accelerator is full, and short batches are rare.
        windows: how many all readings of this length have, those that need no more included: the
            batch size follows from them, so that a sweep that goes on computes what it would have.
        tick(windows): told after every batch how many more were read.
        """
        most = self.rows_at(readings[0].length)
        stacked = max(windows) < most
        total = sum(windows) if stacked else max(windows)
        size = -(-total // -(-total // most))  # batches as equal as can be
        size = -(-size // self.row_multiple) * self.row_multiple
        groups = [list(readings)] if stacked else [[reading] for reading in readings]
        for group in groups:
            yield from self._read_group(group, last, size, stacked, tick)

    def _read_group(
        self,
        group: Sequence[Reading],
        last: int,
        size: int,
        stacked: bool,
        tick: Callable[[int], None],
    ) -> Iterator[tuple[NDArray[np.float32], float]]:
        started = time.perf_counter()
        tokens = np.concatenate([self.tokens_of(reading) for reading in group])
        owner = np.repeat(np.arange(len(group)), [len(reading.start) for reading in group])
        together = jax.tree.map(
            lambda *leaves: np.concatenate(leaves, axis=1), *(reading.rotary for reading in group)
        )
        found: list[NDArray[np.float32]] = []

        def fetch(batch: Any) -> None:
            left = len(tokens) - size * len(found)
            found.append(np.asarray(batch)[:left])
            tick(len(found[-1]))

        under_way = None
        for first in range(0, len(tokens), size):
            # A short last batch is filled up with the last row, which is then dropped.
            rows = np.minimum(np.arange(first, first + size), len(tokens) - 1)
            rotary = together
            if stacked:
                rotary = jax.tree.map(lambda leaf, rows=rows: leaf[:, owner[rows]], together)
            program = self._program(size, group[0].length, last, rotary)
            before, under_way = under_way, program(self.params, tokens[rows], rotary)
            if before is not None:
                fetch(before)
        fetch(under_way)
        nll = np.concatenate(found)
        seconds = time.perf_counter() - started
        ends = np.cumsum([len(reading.start) for reading in group])
        for begin, end in itertools.pairwise([0, *ends]):
            share = seconds * (end - begin) / len(tokens)
            yield nll[begin:end], share

    def _program(self, size: int, length: int, last: int, rotary: Rotary) -> Any:
        if self._of_last is None:
            last = length
        axes = [leaf.shape for leaf in jax.tree.leaves(rotary)]
        shape = (size, length, last, *itertools.chain(*axes))
        if shape not in self._compiled:
            example = jax.ShapeDtypeStruct((size, length + 1), np.int32)
            function: Any = self._whole
            arguments: tuple[Any, ...] = (self.params, example, rotary)
            if last < length:
                function, arguments = self._of_last, (*arguments, last)
            made = jax.eval_shape(function, *arguments)
            if getattr(made, "shape", None) != (size, last) or made.dtype != np.float32:
                raise UserError(
                    f"nll_fn: returned {made} for tokens [{size}, {length + 1}]; it must return "
                    f"float32 [{size}, {last}], the NLL of "
                    + ("tokens[:, 1:]" if last == length else f"the last {last} of them")
                )
            self._compiled[shape] = function.lower(*arguments).compile()
            self.compilations += 1
        return self._compiled[shape]
