"""`rope` and `none`: rotation of queries and keys, and no encoding at all."""

from typing import Any, ClassVar, Literal

from rope_jax.positions.encodings.base import Encoding, Params
from rope_jax.rope.geometry import Layout


class RoPE(Encoding):
    """Rotary: pairs of dimensions of queries and keys turn by angles p·θ_i (section `rope`)."""

    source: ClassVar[str] = "RoFormer, arXiv 2104.09864"
    differs_by_head: ClassVar[bool] = False
    uses_positions: ClassVar[bool] = True
    is_rotary: ClassVar[bool] = True
    ignored: ClassVar[tuple[str, ...]] = ()
    takes_maps: ClassVar[bool] = True
    type: Literal["rope"] = "rope"

    def rotate_queries(self, params: Params, x: Any, cos: Any, sin: Any, layout: Layout) -> Any:
        from rope_jax.rope.rotation import rotate_heads

        return rotate_heads(x, cos, sin, layout)


class NoEncoding(Encoding):
    """NoPE: nothing; only the causal mask tells the order of the tokens."""

    source: ClassVar[str] = "Haviv et al., arXiv 2203.16634; Kazemnejad et al., arXiv 2305.19466"
    differs_by_head: ClassVar[bool] = False
    type: Literal["none"] = "none"
