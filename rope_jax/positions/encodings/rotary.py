"""`rope`, `xpos`, `pope`: rotation of queries and keys; `none`: nothing."""

import math
from typing import Annotated, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from pydantic import Field

from rope_jax.positions.encodings.base import (
    Angles,
    Encoding,
    Heads,
    Positions,
    RotatedHeads,
    Sizes,
    bounded,
)
from rope_jax.positions.interaction import Params, decaying_product
from rope_jax.rope import Layout, rotate_heads


class RoPE(Encoding):
    """Rotary: pairs of dimensions of queries and keys turn by angles p·θ_i (section `rope`)."""

    source: ClassVar[str] = "RoFormer, arXiv 2104.09864"
    differs_by_head: ClassVar[bool] = False
    uses_positions: ClassVar[bool] = True
    is_rotary: ClassVar[bool] = True
    ignored: ClassVar[tuple[str, ...]] = ()
    takes_maps: ClassVar[bool] = True
    type: Literal["rope"] = "rope"

    def rotate_queries(
        self, params: Params, x: Heads, cos: Angles, sin: Angles, layout: Layout
    ) -> RotatedHeads:
        return rotate_heads(x, cos, sin, layout)


class NoEncoding(Encoding):
    """NoPE: nothing; only the causal mask tells the order of the tokens."""

    source: ClassVar[str] = "Haviv et al., arXiv 2203.16634; Kazemnejad et al., arXiv 2305.19466"
    differs_by_head: ClassVar[bool] = False
    type: Literal["none"] = "none"


_GAMMA = 0.4


class XPosEncoding(Encoding):
    """xPos: rotation as in `rope`; pair i's share of q·k also decays by ζ_i^((i − j)/scale_base).

    ζ_i = (2i + 0.4d)/(1.4d) for the pairs i of the d rotary dimensions, so that the slowest pair
    decays least; other dimensions do not decay. The paper multiplies queries by ζ^(p/512) and keys
    by ζ^(−p/512), which overflows at a few tens of thousands of tokens; here only distances enter
    (see `decaying_product`), in tokens of the window.
    """

    source: ClassVar[str] = "Sun et al., arXiv 2212.10554; torchscale"
    differs_by_head: ClassVar[bool] = False
    uses_positions: ClassVar[bool] = True
    uses_distances: ClassVar[bool] = True
    is_rotary: ClassVar[bool] = True
    ignored: ClassVar[tuple[str, ...]] = ()
    scores = staticmethod(decaying_product)  # type: ignore[pydantic-field]
    type: Literal["xpos"] = "xpos"
    scale_base: Annotated[float, Field(ge=64, allow_inf_nan=False)] = Field(
        512.0, description="tokens after which pair i has decayed by ζ_i"
    )

    def layer_params(
        self, parameters: Params, positions: Positions, pairs: int, heads: int
    ) -> Params:
        dim = 2 * pairs
        zeta = (np.arange(0, dim, 2) + _GAMMA * dim) / ((1 + _GAMMA) * dim)
        return {"decay": jnp.asarray(-np.log(zeta) / self.scale_base, jnp.float32)[None]}

    def rotate_queries(
        self, params: Params, x: Heads, cos: Angles, sin: Angles, layout: Layout
    ) -> RotatedHeads:
        if layout == "interleaved":
            # Scores don't know the layout. Reordered dimensions give the same products, since
            # queries and keys are reordered alike.
            dim = 2 * cos.shape[-1]
            parts = x[..., 0:dim:2], x[..., 1:dim:2], x[..., dim:]
            x = jnp.concatenate(parts, axis=-1)
        return rotate_heads(x, cos, sin, "half")


class PoPEEncoding(Encoding):
    """PoPE: logits Σ_c softplus(q_c)·softplus(k_c)·cos((j − i)·θ_c + δ_c)/√H, θ_c = b^(−c/H).

    δ_c is trained, per layer, head and dimension, and used within −2π ≤ δ ≤ 0 (§3, eq. 6). It
    begins at 0, which the paper finds important at lengths beyond training, or as δ ~ U(−2π, 0),
    slightly better within. In the paper δ rotates the keys; here it rotates the queries, which is
    the same but gives each head its own δ with grouped keys.

    Each of the H dimensions rotates, so the rotary dimension is 2H, and queries and keys are twice
    as wide in attention as values.
    """

    source: ClassVar[str] = "Gopalakrishnan et al., arXiv 2509.10534"
    uses_positions: ClassVar[bool] = True
    is_rotary: ClassVar[bool] = True
    # Every dimension turns by a frequency of its own, and there are no pairs.
    ignored: ClassVar[tuple[str, ...]] = ("rotary_dim", "layout")
    takes_maps: ClassVar[bool] = True
    type: Literal["pope"] = "pope"
    initial_delta: Literal["zero", "uniform"] = Field(
        "zero", description="δ before training: zero, or uniform in [−2π, 0]"
    )

    @property
    def needs_interaction(self) -> bool:
        return True  # the kernels expect values as wide as keys

    def rotary_dim(self, head_dim: int) -> int:
        return 2 * head_dim

    def rotated_width(self, head_dim: int) -> int:
        return 2 * head_dim

    def parameter_shapes(self, sizes: Sizes) -> dict[str, tuple[int, ...]]:
        return {"delta": (sizes.layers, sizes.heads, sizes.head_dim)}

    def initial(self, sizes: Sizes, key: Key[Array, ""]) -> Params:
        shape = self.parameter_shapes(sizes)["delta"]
        if self.initial_delta == "zero":
            return {"delta": jnp.zeros(shape, jnp.float32)}
        return {"delta": jax.random.uniform(key, shape, minval=-2 * math.pi, maxval=0.0)}

    def layer_params(
        self, parameters: Params, positions: Positions, pairs: int, heads: int
    ) -> Params:
        delta = bounded(parameters["delta"], -2 * math.pi, 0.0)
        return {"cos_delta": jnp.cos(delta), "sin_delta": jnp.sin(delta)}

    def rotate_queries(
        self, params: Params, x: Heads, cos: Angles, sin: Angles, layout: Layout
    ) -> RotatedHeads:
        _check_width(cos, x.shape[-1])
        cos_delta, sin_delta = (params[name][None, None] for name in ("cos_delta", "sin_delta"))
        # angle i·θ − δ
        cos, sin = cos * cos_delta + sin * sin_delta, sin * cos_delta - cos * sin_delta
        # Attention divides by √(2H), the root of the width that it sees, but the paper by √H.
        return _polar(x, cos, sin, math.sqrt(2))

    def rotate_keys(
        self, params: Params, x: Heads, cos: Angles, sin: Angles, layout: Layout
    ) -> RotatedHeads:
        _check_width(cos, x.shape[-1])
        return _polar(x, cos, sin)


def _check_width(cos: Float[Array, "*axes pairs"], head_dim: int) -> None:
    if cos.shape[-1] != head_dim:
        raise ValueError(
            f"rotary_dim: is {2 * cos.shape[-1]}, but pope turns each of a head's {head_dim} "
            f"dimensions by a frequency of its own; give {2 * head_dim}, or null"
        )


def _polar(
    x: Heads, cos: Float[Array, "#B T #N H"], sin: Float[Array, "#B T #N H"], scale: float = 1.0
) -> Float[Array, "B T N 2*H"]:
    """Return scale·softplus(x)·e^(i·angle), the real parts before the imaginary ones."""
    magnitude = jax.nn.softplus(x.astype(jnp.float32)) * scale
    parts = magnitude[..., None, :] * jnp.stack([cos, sin], axis=-2)
    return parts.reshape(*x.shape[:-1], -1).astype(x.dtype)
