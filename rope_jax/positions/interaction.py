"""The static half of a position method: what attention computes, compiled into the program."""

from typing import NamedTuple

from rope_jax.positions.scores import AddedValues, Scores, dot_product
from rope_jax.positions.visible import Visible

__all__ = [
    "Interaction",
]


class Interaction(NamedTuple):
    """How queries and keys meet. The default is causal attention with plain dot products.

    visible: the keys of each band. Every key that a query sees belongs to exactly one, its own key
             to the first.
    scores:  the logits of a block of queries and a block of keys.
    values:  what is added to the weighted values (Shaw); None: nothing.
    """

    visible: tuple[Visible, ...] = (Visible(),)
    scores: Scores = dot_product
    values: AddedValues | None = None

    def within(self, sliding_window: int | None) -> "Interaction":
        """Return the same, with only the keys in a sliding window visible."""
        return self._replace(visible=tuple(band.within(sliding_window) for band in self.visible))

    @property
    def is_dot_product(self) -> bool:
        """Whether scores are plain dot products, and nothing is added to the values."""
        return self.scores is dot_product and self.values is None

    @property
    def is_plain(self) -> bool:
        """Whether every attention kernel can do it, up to a sliding window."""
        return (
            self.is_dot_product
            and len(self.visible) == 1
            and self.visible[0].within(1) == Visible(beyond=1)
        )
