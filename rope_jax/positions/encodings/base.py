"""The base class of every position encoding.

Shapes: L layers, B batch, S tokens, T queries, D model, N heads, K key-value heads, H head dim, R
head dim after rotation, pairs d/2 of the rotary dimension d. An axis marked # may have size 1.
"""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from rope_jax.positions.interaction import AddedValues, Params, dot_product
from rope_jax.rope.geometry import Layout
from rope_jax.rope.settings import Settings

Positions = Int[Array | np.ndarray, "#B S"]
Embeddings = Float[Array, "B S D"]
# Of queries, or of keys, whose S tokens have K heads; cos and sin are the same for all heads, or
# for groups of consecutive ones.
Heads = Float[Array, "B T N H"]
Angles = Float[Array, "#B T groups pairs"]
RotatedHeads = Float[Array, "B T N R"]


class Sizes(NamedTuple):
    """What the shapes of an encoding's parameters depend on."""

    layers: int
    hidden_size: int
    heads: int
    head_dim: int
    std: float
    """Standard deviation of the initial weights."""


class Encoding(Settings):
    """Settings of one encoding. A docstring's first line is its entry in docs/positions.md.

    A subclass overrides what it does: add to the embeddings (`embed`), rotate (`rotate_queries`,
    `rotate_keys`), change scores or values inside attention (`scores`, `values`).
    """

    is_rotary: ClassVar[bool] = False
    """Whether it rotates by rotary frequencies, so that scalings apply to it."""
    uses_positions: ClassVar[bool] = False
    """Whether it uses position numbers, which may jump, in rotations or embeddings."""
    uses_distances: ClassVar[bool] = False
    """Whether it counts the tokens of the window between a query and a key."""
    takes_maps: ClassVar[bool] = False
    """Whether position maps apply: only rotation decides at which distance a key is seen."""
    differs_by_head: ClassVar[bool] = True
    """Whether it has params for each head, so that devices cannot share the heads."""
    ignored: ClassVar[tuple[str, ...]] = ("base", "rotary_dim", "layout", "map")
    """Keys of the section `rope` that do not apply to it."""
    scores = staticmethod(dot_product)  # type: ignore[pydantic-field]
    """The logits of queries and keys, as `ScoreFunction` describes them."""

    @property
    def scores_are_products(self) -> bool:
        """Whether the logits are q·k/√H exactly, of rotated q and k, and nothing else."""
        return self.scores is dot_product

    @property
    def needs_interaction(self) -> bool:
        """Whether it takes an attention backend that does more than plain dot products."""
        return not self.scores_are_products or self.values is not None

    @property
    def longest(self) -> int | None:
        """The most tokens that a window can have, or None if there is no limit."""
        return None

    def resolved(self, longest: int) -> "Encoding":
        """Return the encoding with defaults that follow from the longest trained window."""
        return self

    def rotary_dim(self, head_dim: int) -> int:
        """Return the default rotary dimension d."""
        return head_dim

    def rotated_width(self, head_dim: int) -> int:
        """Return R, the width of a head's queries and keys after the rotation."""
        return head_dim

    def parameter_shapes(self, sizes: Sizes) -> dict[str, tuple[int, ...]]:
        """Return the shape of each parameter, by name."""
        return {}

    def initial(self, sizes: Sizes, key: Key[Array, ""]) -> Params:
        """Draw the parameters: float32, from a normal distribution, like the model's own.

        Their first axis is L, or 1 if all layers share them.
        """
        return {
            name: sizes.std * jax.random.normal(jax.random.fold_in(key, number), shape)
            for number, (name, shape) in enumerate(self.parameter_shapes(sizes).items())
        }

    def embed(self, parameters: Params, x: Embeddings, positions: Positions) -> Embeddings:
        """Return the embeddings with what the encoding adds at the tokens' positions."""
        return x

    def layer_params(
        self, parameters: Params, positions: Positions, pairs: int, heads: int
    ) -> Params:
        """Return what every layer needs inside attention: float arrays [L|1, …]."""
        return {}

    def rotate_queries(
        self, params: Params, x: Heads, cos: Angles, sin: Angles, layout: Layout
    ) -> RotatedHeads:
        """Rotate queries, whose heads share the angles of `groups` in turn. params: the layer's."""
        return x

    def rotate_keys(
        self, params: Params, x: Heads, cos: Angles, sin: Angles, layout: Layout
    ) -> RotatedHeads:
        """Rotate keys; by default like queries."""
        return self.rotate_queries(params, x, cos, sin, layout)

    @property
    def values(self) -> AddedValues | None:
        """What is added to the weighted values, if anything."""
        return None


def bounded(
    x: Float[Array, "*shape"], low: float, high: float | None = None
) -> Float[Array, "*shape"]:
    """Return min(max(x, low), high) with a derivative of 1, so that x can come back from beyond."""
    return x + jax.lax.stop_gradient(jnp.clip(x, low, high) - x)
