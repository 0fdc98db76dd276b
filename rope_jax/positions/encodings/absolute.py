"""`sinusoidal` and `learned`: a vector per position, added to the embeddings."""

import math
from typing import Annotated, ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from pydantic import Field

from rope_jax.positions.encodings.base import Embeddings, Encoding, Positions, Sizes
from rope_jax.positions.interaction import Params
from rope_jax.rope import Frequencies, cos_sin
from rope_jax.rope.settings import Whole


class SinusoidalEncoding(Encoding):
    """Sinusoidal: embeddings × √D + p, with p[2i] = sin(k/10000^(2i/D)), p[2i+1] = cos(same).

    k is the position, D the width of the model. The factor √D is that of the paper (§3.4), without
    which small initial embeddings would vanish beside p. If D is odd, the last sine has no cosine.
    """

    source: ClassVar[str] = "Vaswani et al., arXiv 1706.03762, §3.4 and §3.5"
    differs_by_head: ClassVar[bool] = False
    uses_positions: ClassVar[bool] = True
    type: Literal["sinusoidal"] = "sinusoidal"

    def embed(self, parameters: Params, x: Embeddings, positions: Positions) -> Embeddings:
        width = x.shape[-1]
        theta = 10000.0 ** (-np.arange(0, width, 2, dtype=np.float64) / width)
        cos, sin = cos_sin(Frequencies.from_float64(theta), positions)
        p = jnp.stack([sin, cos], axis=-1).reshape(*sin.shape[:-1], -1)[..., :width]
        return (x.astype(jnp.float32) * np.float32(math.sqrt(width)) + p).astype(x.dtype)


class LearnedEncoding(Encoding):
    """Learned: embeddings + a trained vector per position. There is none past the table's end.

    Positions outside the table give NaN: a model must not be scored where it has no position.
    """

    source: ClassVar[str] = "Gehring et al., arXiv 1705.03122; GPT-2"
    differs_by_head: ClassVar[bool] = False
    uses_positions: ClassVar[bool] = True
    type: Literal["learned"] = "learned"
    length: Annotated[int, Whole] | None = Field(
        None,
        gt=0,
        lt=2**31,
        description="number of positions in the table; null: the longest trained window",
    )

    @property
    def longest(self) -> int | None:
        return self.length

    def resolved(self, longest: int) -> "LearnedEncoding":
        return self if self.length else self.model_copy(update={"length": longest})

    def parameter_shapes(self, sizes: Sizes) -> dict[str, tuple[int, ...]]:
        if self.length is None:
            raise ValueError("length: is not known yet; give it, or call `resolved` first")
        return {"table": (1, self.length, sizes.hidden_size)}

    def embed(self, parameters: Params, x: Embeddings, positions: Positions) -> Embeddings:
        positions = jnp.asarray(positions, jnp.int32)
        # jnp.take would count negative positions from the table's end.
        positions = jnp.where(positions < 0, np.int32(2**31 - 1), positions)
        p = jnp.take(parameters["table"][0], positions, axis=0, mode="fill", fill_value=jnp.nan)
        return (x.astype(jnp.float32) + p).astype(x.dtype)
