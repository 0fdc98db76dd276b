"""`xpos`: rotation, and a decay with the distance that is faster in faster pairs."""

from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from rope_jax.positions.encodings.base import Encoding, Params, Scores
from rope_jax.rope.geometry import Layout

_GAMMA = 0.4


class XPosEncoding(Encoding):
    """xPos: rotation as in `rope`; pair i's share of q·k also decays by ζ_i^((i − j)/scale_base).

    ζ_i = (2i + 0.4d)/(1.4d) for the pairs i of the d rotary dimensions, so that the slowest pair
    decays least; other dimensions do not decay. The paper multiplies queries by ζ^(p/512) and keys
    by ζ^(−p/512), which overflows at a few tens of thousands of tokens; here only distances enter
    (see `_scores`), in tokens of the window.
    """

    source: ClassVar[str] = "Sun et al., arXiv 2212.10554; torchscale"
    differs_by_head: ClassVar[bool] = False
    uses_positions: ClassVar[bool] = True
    uses_distances: ClassVar[bool] = True
    is_rotary: ClassVar[bool] = True
    ignored: ClassVar[tuple[str, ...]] = ()
    needs_interaction: ClassVar[bool] = True
    type: Literal["xpos"] = "xpos"
    scale_base: Annotated[float, Field(ge=64, allow_inf_nan=False)] = Field(
        512.0, description="tokens after which pair i has decayed by ζ_i"
    )

    def layer_params(self, parameters: Params, positions: Any, pairs: int) -> Params:
        dim = 2 * pairs
        zeta = (np.arange(0, dim, 2) + _GAMMA * dim) / ((1 + _GAMMA) * dim)
        return {"decay": (-np.log(zeta) / self.scale_base).astype(np.float32)[None]}

    def rotate_queries(self, params: Params, x: Any, cos: Any, sin: Any, layout: Layout) -> Any:
        import jax.numpy as jnp

        from rope_jax.rope.rotation import rotate_heads

        if layout == "interleaved":
            # Scores don't know the layout. Reordered dimensions give the same products, since
            # queries and keys are reordered alike.
            dim = 2 * cos.shape[-1]
            parts = x[..., 0:dim:2], x[..., 1:dim:2], x[..., dim:]
            x = jnp.concatenate(parts, axis=-1)
        return rotate_heads(x, cos, sin, "half")

    @property
    def scores(self) -> Scores:
        return _scores


def _scores(params: Params, q: Any, k: Any, query_index: Any, key_index: Any) -> Any:
    """q·k with pair i's share times exp(−decay_i·(i − j)).

    The decay is a factor exp(−decay·(i − r)) of the query times exp(−decay·(r − j)) of the key. For
    keys before all queries, r is the last key: neither factor is above 1, and those of far keys
    rightly underflow to 0. If the blocks overlap, r is the middle of the overlap, and the factors
    of blocks of n tokens stay below 3.5^(n/2/scale_base): nothing overflows up to 60·scale_base.
    """
    import jax.numpy as jnp

    from rope_jax.positions.interaction import dot_product

    last = key_index[-1]
    middle = last - jnp.maximum(last - query_index[0], 0) // 2

    def decayed(x: Any, distance: Any) -> Any:
        factor = jnp.exp(-params["decay"][None] * distance.astype(jnp.float32)[:, None])
        rest = jnp.ones((distance.shape[0], x.shape[-1] - 2 * factor.shape[-1]), jnp.float32)
        factor = jnp.concatenate([factor, factor, rest], axis=-1)
        factor = factor.reshape((1,) * (x.ndim - 2) + factor.shape)
        return (x.astype(jnp.float32) * factor).astype(x.dtype)

    q, k = decayed(q, query_index - middle), decayed(k, middle - key_index)
    return dot_product(params, q, k, query_index, key_index)
