"""What a sweep measures at each length: perplexity by a protocol, or a task.

Shapes: W windows, n_plus_1 = n + 1 tokens.
"""

import functools
import hashlib
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Int32
from numpy.typing import NDArray

from rope_jax.protocols import Protocol
from rope_jax.protocols.windows import Windows


class TaskCell(NamedTuple):
    """One place of a task's table at a length."""

    depth: float | None = None
    """Where what is asked for lies, 0 at the start; None: it has no place."""
    ablated: bool = False
    """Whether what is asked for was replaced by other text."""


class Metric(ABC):
    """A protocol or a task, with the texts that a sweep reads for it."""

    label: str
    """Its name in the results, unique in the sweep."""
    has_answers: bool
    """Whether it has answers that are exact or not, beside their NLL."""
    by_position: bool = False
    """See `Protocol.by_position`."""

    @property
    @abstractmethod
    def cells(self) -> tuple[TaskCell, ...]:
        """What is measured at each length."""

    @abstractmethod
    def windows(self, length: int, cell: TaskCell) -> Windows:
        """Return the windows of a length, and what is scored in them."""

    @abstractmethod
    def tokens(
        self, windows: Windows, length: int, cell: TaskCell
    ) -> Int32[np.ndarray, "W n_plus_1"]:
        """Return the tokens of windows, read at a length that may exceed that of `windows`."""

    def windows_hash(self, windows: Windows, length: int, cell: TaskCell) -> str:
        """Return a hash that is equal for equal `tokens`."""
        return self.fingerprint(length, cell)

    @abstractmethod
    def fingerprint(self, length: int, cell: TaskCell) -> str:
        """Return a hash of the tokens that are scored at a length."""

    def divisor(self, windows: Windows, length: int) -> Float64[np.ndarray, " W"]:
        """Return what the NLLs of a window are divided by before they are added up."""
        return np.ones(len(windows.start))

    def scored_bytes(self, windows: Windows, length: int) -> Float64[np.ndarray, " W"] | None:
        """Return the bytes of text of the scored targets of each window; None: unknown."""
        return None


class Perplexity(Metric):
    """Perplexity on a sweep's documents, by a protocol."""

    has_answers = False
    cells = (TaskCell(),)

    def __init__(self, protocol: Protocol, token_bytes: NDArray[Any] | None) -> None:
        self.label, self.by_position = protocol.name, protocol.by_position
        self.protocol, self._token_bytes = protocol, token_bytes

    @functools.cache  # noqa: B019  (it lives as long as its sweep)
    def windows(self, length: int, cell: TaskCell) -> Windows:
        return self.protocol.windows(length)

    def tokens(
        self, windows: Windows, length: int, cell: TaskCell
    ) -> Int32[np.ndarray, "W n_plus_1"]:
        return self.protocol.streams.cut(windows.document, windows.start, length)

    def windows_hash(self, windows: Windows, length: int, cell: TaskCell) -> str:
        digest = hashlib.sha256()
        for array in (windows.document, windows.start):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    @functools.cache  # noqa: B019  (it lives as long as its sweep)
    def fingerprint(self, length: int, cell: TaskCell) -> str:
        return self.protocol.streams.fingerprint(self.windows(length, cell), length)

    def divisor(self, windows: Windows, length: int) -> Float64[np.ndarray, " W"]:
        return self.protocol.divisor(windows, length)

    def scored_bytes(self, windows: Windows, length: int) -> Float64[np.ndarray, " W"] | None:
        if self._token_bytes is None:
            return None
        begin, end = windows.start + windows.first, windows.start + length + 1
        spans = zip(*(x.tolist() for x in (windows.document, begin, end)), strict=True)
        scored = [self.protocol.streams.tokens[document][slice(*span)] for document, *span in spans]
        return np.array([self._token_bytes[targets].sum() for targets in scored], np.float64)
