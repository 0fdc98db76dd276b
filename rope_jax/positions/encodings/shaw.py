"""`shaw`: trained vectors per distance, added to keys and values."""

from typing import Annotated, ClassVar, Literal

import jax.numpy as jnp
from jaxtyping import Array, Float
from pydantic import Field

from rope_jax.positions.encodings.base import Encoding, Positions, Sizes
from rope_jax.positions.interaction import (
    AddedValues,
    Block,
    Indices,
    Logits,
    Params,
    add_by_distance,
    dot_product,
    sum_by_distance,
)
from rope_jax.rope.settings import Whole


class ShawEncoding(Encoding):
    """Shaw: logits q_i·(k_j + a^K_c)/√H and values v_j + a^V_c, with c = min(i − j, max_distance).

    All heads of a layer share the tables a^K and a^V [L, max_distance + 1, H] (§3.3).
    """

    source: ClassVar[str] = "Shaw et al., arXiv 1803.02155"
    differs_by_head: ClassVar[bool] = False
    uses_distances: ClassVar[bool] = True
    type: Literal["shaw"] = "shaw"
    max_distance: Annotated[int, Whole] = Field(
        16, gt=0, lt=2**31, description="distance from which all keys share one vector"
    )

    def parameter_shapes(self, sizes: Sizes) -> dict[str, tuple[int, ...]]:
        shape = (sizes.layers, self.max_distance + 1, sizes.head_dim)
        return {"keys": shape, "values": shape}

    def layer_params(
        self, parameters: Params, positions: Positions, pairs: int, heads: int
    ) -> Params:
        return parameters

    @staticmethod
    def scores(params: Params, block: Block) -> Logits:
        """Add q_i·a^K_c. The product comes before the distances: no array has axes T, S and H."""
        table = params["keys"].astype(block.q.dtype)
        by_distance = jnp.einsum(
            "bkgth,ch->bkgtc", block.q, table, preferred_element_type=jnp.float32
        )
        return add_by_distance(dot_product(params, block), by_distance, block.at)

    @property
    def values(self) -> AddedValues:
        return _values


def _values(params: Params, weights: Logits, index: Indices) -> Float[Array, "B K G T V"]:
    """Σ_j w_ij·a^V_c, as the sum over c of (the weights at this distance)·a^V_c."""
    table = params["values"].astype(weights.dtype)
    by_distance = sum_by_distance(weights, table.shape[0], index)
    return jnp.einsum("bkgtc,cv->bkgtv", by_distance, table, preferred_element_type=jnp.float32)
