"""`shaw`: trained vectors per distance, added to keys and values."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rope_jax.positions.encodings.base import Encoding, Positions, Sizes
from rope_jax.positions.interaction import (
    AddedValues,
    Params,
    plus_key_by_distance,
    value_by_distance,
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

    scores = staticmethod(plus_key_by_distance)  # type: ignore[pydantic-field]

    @property
    def values(self) -> AddedValues:
        return value_by_distance
