"""The rotary embedding as a Flax NNX module, for use in any model.

Shapes: B batch, T length, N heads, K key-value heads, H head dim, d rotary dimension.
"""

from typing import get_args

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from rope_jax.rope.angles import cos_sin
from rope_jax.rope.geometry import Frequencies, Layout, RotaryGeometry, SeqLen
from rope_jax.rope.rotation import rotate
from rope_jax.rope.strategies import Scaling


class RotaryNumbers(nnx.Variable):
    """Frequencies and m, which are not trained unless you differentiate with respect to them."""


class RotaryEmbedding(nnx.Module):
    """Rotate queries and keys with a strategy's frequencies: R(p_t·θ') q_t, RoFormer eq. 34.

        rope = RotaryEmbedding(RotaryGeometry(64, 10000.0, 4096), YaRNScaling(factor=8.0))
        q, k = rope(q, k, positions)      # before attention, after QK-norm

    `inv_freq` [d/2] (radians per token) and `attention_factor` [] are `RotaryNumbers`: replace
    them, or fit them with nnx.grad(loss, argnums=nnx.DiffState(0, RotaryNumbers)). A
    length-dependent strategy has neither; it computes them in every call, from `seq_len`.

    ValueError: an unknown layout, or a strategy that does not fit the geometry.
    """

    def __init__(
        self, geometry: RotaryGeometry, scaling: Scaling, *, layout: Layout = "half"
    ) -> None:
        if layout not in get_args(Layout):
            raise ValueError(f"layout: {layout!r} is not one of {', '.join(get_args(Layout))}")
        self.geometry, self.scaling, self.layout = geometry, scaling, layout
        if not scaling.length_dependent:
            made = scaling.frequencies(geometry)
            self.inv_freq = RotaryNumbers(jnp.asarray(made.inv_freq))
            self.attention_factor = RotaryNumbers(jnp.asarray(made.attention_factor))

    def frequencies(self, seq_len: SeqLen = None) -> Frequencies:
        """Return the frequencies in use; seq_len as in `Scaling.frequencies`."""
        if self.scaling.length_dependent:
            return self.scaling.frequencies(self.geometry, seq_len)
        made, inv_freq = self.scaling.frequencies(self.geometry), self.inv_freq[...]
        # a remainder is valid only for the frequency that it was rounded from
        remainder = jnp.where(inv_freq == made.inv_freq, made.inv_freq_remainder, np.float32(0))
        return Frequencies(inv_freq, remainder, self.attention_factor[...])

    def __call__(
        self,
        q: Float[Array, "B T N H"],
        k: Float[Array, "B T K H"],
        positions: Int[Array | np.ndarray, "#B T"],
        seq_len: SeqLen = None,
    ) -> tuple[Float[Array, "B T N H"], Float[Array, "B T K H"]]:
        """Return q and k rotated, and q multiplied by the strategy's query scale, if it has one.

        Computed in float32, returned in the dtypes of q and k; dimensions from d on pass through.
        seq_len: the text's length, which a length-dependent strategy needs: an int, a traced
        scalar, or one per row [B].

        ValueError: seq_len is needed but missing, or d is above H.
        """
        cos, sin = cos_sin(self.frequencies(seq_len), positions)
        q, k = rotate(q, cos, sin, self.layout), rotate(k, cos, sin, self.layout)
        if self.scaling.query_scale is not None:
            scale = jnp.asarray(self.scaling.query_scale_at(self.geometry, positions))
            # in float32, because rounding the scale to bfloat16 costs up to 0.4%
            q = (q.astype(jnp.float32) * scale[..., None, None]).astype(q.dtype)
        return q, k
