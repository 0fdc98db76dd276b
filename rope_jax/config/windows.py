"""Schemas of a stage's windows: their positions, short ones among them, and their documents."""

from typing import Annotated, Literal

from pydantic import Field

from rope_jax.config.types import Frozen, Length
from rope_jax.rope import AnyScaling
from rope_jax.rope.numbers import Whole
from rope_jax.rope.strategies import NoScaling

# How far fraction · rows may be from a whole number, so that 0.3333 is a third of 3 rows.
_TOLERANCE = 1e-3


class Positions(Frozen):
    """How the tokens of a training window are numbered."""

    type: str

    def length_of(self, seq_len: int) -> int:
        """Return the number that all positions of a window of T tokens are below."""
        return seq_len

    def check(self, seq_len: int) -> None:
        """Check that a window of T tokens can be numbered so; ValueError names the setting."""


class PlainPositions(Positions):
    """Consecutive numbers from 0."""

    type: Literal["plain"] = "plain"


class JumpingPositions(Positions):
    """Increasing numbers with gaps, so that short windows train long distances."""

    length: Length = Field(description="positions are below this; at least seq_len")

    def length_of(self, seq_len: int) -> int:
        return self.length

    def check(self, seq_len: int) -> None:
        if self.length < seq_len:
            raise ValueError(
                f"length: {self.length} positions are too few for seq_len {seq_len}; give at "
                f"least {seq_len}"
            )


class RandomizedPositions(JumpingPositions):
    """A sorted sample without replacement from [0, length), one per row: arXiv 2305.16843."""

    type: Literal["randomized"] = "randomized"
    # drawing marks every position below it
    length: Annotated[int, Field(ge=2, le=2**26), Whole] = Field(
        description="positions are below this; at least seq_len"
    )


class PosePositions(JumpingPositions):
    """PoSE: chunks of a row with a random jump before all but the first: arXiv 2309.10400, §3.2."""

    type: Literal["pose"] = "pose"
    chunks: Annotated[int, Field(ge=2, le=2**16), Whole] = Field(
        2, description="parts that a row is cut into, with a jump between any two"
    )

    def check(self, seq_len: int) -> None:
        super().check(seq_len)
        if self.chunks > seq_len:
            raise ValueError(
                f"chunks: {self.chunks} are too many for seq_len {seq_len}; give at most {seq_len}"
            )


AnyPositions = Annotated[
    PlainPositions | RandomizedPositions | PosePositions, Field(discriminator="type")
]


class MixedConfig(Frozen):
    """Rows of short windows with a scaling of their own, as in LongRoPE2: arXiv 2502.20082."""

    fraction: Annotated[float, Field(gt=0, lt=1)] = Field(
        description="share of the rows of every batch that hold short windows"
    )
    seq_len: Length = Field(description="tokens per short window; divides the stage's seq_len")
    scaling: AnyScaling = Field(NoScaling(), description="scaling of the short windows")

    def rows_of(self, windows: int) -> int:
        """Return how many rows of a batch hold short windows. ValueError: no whole number."""
        exact = self.fraction * windows
        rows = round(exact)
        if abs(exact - rows) <= _TOLERANCE and 0 < rows < windows:
            return rows
        if windows == 1:
            raise ValueError("fraction: a batch of 1 row cannot be split; raise batch_size")
        near = {min(max(int(exact) + more, 1), windows - 1) / windows for more in (0, 1)}
        raise ValueError(
            f"fraction: {self.fraction:g} of {windows} rows (batch_size) is not a whole "
            f"number of rows; give {' or '.join(f'{x:.6g}' for x in sorted(near))}"
        )

    def check(self, seq_len: int, windows: int) -> None:
        """Check that rows of T tokens can hold short windows; ValueError names the setting."""
        if seq_len % self.seq_len or self.seq_len == seq_len:
            raise ValueError(
                f"seq_len: {self.seq_len} does not divide the stage's seq_len {seq_len} into "
                "several windows"
            )
        self.rows_of(windows)


class DocumentsConfig(Frozen):
    """Several documents in one window."""

    mask: Literal["document", "none"] = Field(
        "document",
        description="what a token sees: its own document, or the window across all borders",
    )
    positions: Literal["reset", "continue"] = Field(
        "reset", description="at a document's start, positions restart at 0 or count on"
    )

    @property
    def positions_count_what_is_seen(self) -> bool:
        """Whether a token's plain position is the number of earlier tokens that it sees."""
        return (self.mask == "document") == (self.positions == "reset")
