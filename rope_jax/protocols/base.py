"""What a sweep measures on windows of texts. Shapes: W windows, n_plus_1 = n + 1 tokens."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
from jaxtyping import Float64, Int32, Int64

from rope_jax.protocols.windows import RELIABLE_UNITS, Streams, Windows

TOKEN_BUDGET = 2**14
"""How many tokens `max_blocks: auto` scores per protocol, if the documents have as many."""
Tiles = tuple[Int64[np.ndarray, " W"], Int64[np.ndarray, " W"]]
"""By window: the index of its first input, and the position of the first target that it scores."""


class Metric(ABC):
    """What is measured at each length: perplexity by a protocol, or a task."""

    name: str
    streams: Streams
    by_position: bool = False
    """Whether windows begin at the same places at every length and score the positions past the
    previous length, so that a causal model's pass over the longest windows gives them all."""

    @abstractmethod
    def windows(self, length: int) -> Windows:
        """Return the windows of one of the lengths, with the targets that they score."""

    def tokens(self, windows: Windows, length: int) -> Int32[np.ndarray, "W n_plus_1"]:
        """Return the tokens of windows, read at a length that may exceed theirs."""
        return self.streams.cut(windows, length)

    def fingerprint(self, windows: Windows, length: int) -> str:
        return self.streams.fingerprint(windows, length)

    def divisor(self, windows: Windows, length: int) -> Float64[np.ndarray, " W"]:
        """Return what a window's NLLs are divided by: 1, or the targets for a mean of means."""
        return np.ones(len(windows.start))


@dataclass(eq=False, repr=False, kw_only=True)
class Protocol(Metric):
    """Which windows of a sweep's documents are read, and which of their targets are scored.

    lengths: ascending. targets, max_blocks, stride, seed: as in a sweep's config.
    """

    title: ClassVar[str]
    """Above a panel of a figure: what is scored."""
    caption: ClassVar[str] = "context length"
    """What the columns of a table stand for; {stride} is replaced by the stride in tokens."""
    scored: ClassVar[str] = ""
    """What follows the caption where a table has to explain itself: which targets are scored."""
    axis_label: ClassVar[str] = "context length (tokens)"
    uses_stride: ClassVar[bool] = False

    streams: Streams = field(kw_only=False)
    lengths: Sequence[int]
    targets: int
    max_blocks: int | Literal["auto"]
    stride: int
    seed: int

    def __post_init__(self) -> None:
        self.longest = self.lengths[-1]
        blocks = self.max_blocks
        if blocks == "auto":
            documents = len(self.streams.tokens)
            blocks = -(-TOKEN_BUDGET // (documents * self.tokens_per_block))
            if self.streams.units == "blocks":
                blocks = max(blocks, -(-RELIABLE_UNITS // documents))
        self.blocks = int(blocks)

    @property
    def tokens_per_block(self) -> int:
        """How many targets of a document are a block, of which `max_blocks` are scored."""
        return self.longest

    def stride_at(self, length: int) -> int | None:
        """Return how far apart windows of a document start; None: at random places."""
        return None


class TilingProtocol(Protocol):
    """A protocol whose windows cover a document from its start.

    Covered are the first `blocks` × longest targets of a document or, if it is shorter, the largest
    multiple of longest that fits. Where blocks are the units, they are `blocks` parts of longest
    targets instead, each a unit, with as much text between them.
    """

    @abstractmethod
    def tile(self, length: int, covered: int) -> Tiles:
        """Cut the first `covered` targets of a text into windows of `length`.

        Positions are from 1 to `length`. The targets behind the first scored one are scored too.
        """

    def windows(self, length: int) -> Windows:
        parts: list[Windows] = []
        for index, stream in enumerate(self.streams.tokens):
            for begin, covered in self._parts(len(stream)):
                starts, firsts = self.tile(length, covered)
                lead = len(self.streams.bos_ids)  # start tokens are no targets
                is_led = (begin + starts == 0) | (self.streams.bos == "every_window")
                firsts = np.where(is_led, np.maximum(firsts, lead), firsts)
                document, unit = (np.full(len(starts), i, np.int64) for i in (index, len(parts)))
                parts.append(Windows(document, begin + starts, firsts, unit))
        columns = zip(*(part[:4] for part in parts), strict=True)  # all but `answers`
        return Windows(*map(np.concatenate, columns))

    def _parts(self, size: int) -> list[tuple[int, int]]:
        """(first input, number of targets) of the parts of a stream that are covered."""
        if self.streams.units == "documents":
            return [(0, min(self.blocks, (size - 1) // self.longest) * self.longest)]
        count = min(self.blocks, 1 + (size - 1 - self.longest) // (2 * self.longest))
        return [(2 * self.longest * part, self.longest) for part in range(count)]
