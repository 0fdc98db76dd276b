"""`pope`: every dimension is a magnitude with an angle of its own."""

import math
from typing import Any, ClassVar, Literal

from pydantic import Field

from rope_jax.positions.encodings.base import Encoding, Params, Sizes
from rope_jax.rope.geometry import Layout


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
    # The kernels expect values as wide as keys.
    needs_interaction: ClassVar[bool] = True
    type: Literal["pope"] = "pope"
    initial_delta: Literal["zero", "uniform"] = Field(
        "zero", description="δ before training: zero, or uniform in [−2π, 0]"
    )

    def rotary_dim(self, head_dim: int) -> int:
        return 2 * head_dim

    def parameter_shapes(self, sizes: Sizes) -> dict[str, tuple[int, ...]]:
        return {"delta": (sizes.layers, sizes.heads, sizes.head_dim)}

    def initial(self, sizes: Sizes, key: Any) -> Params:
        import jax
        import jax.numpy as jnp

        shape = self.parameter_shapes(sizes)["delta"]
        if self.initial_delta == "zero":
            return {"delta": jnp.zeros(shape, jnp.float32)}
        return {"delta": jax.random.uniform(key, shape, minval=-2 * math.pi, maxval=0.0)}

    def layer_params(self, parameters: Params, positions: Any, pairs: int) -> Params:
        import jax.numpy as jnp

        from rope_jax.positions.functions import bounded

        delta = bounded(parameters["delta"], -2 * math.pi, 0.0)
        return {"cos_delta": jnp.cos(delta), "sin_delta": jnp.sin(delta)}

    def rotate_queries(self, params: Params, x: Any, cos: Any, sin: Any, layout: Layout) -> Any:
        _check_width(cos, x.shape[-1])
        cos_delta, sin_delta = (params[name][None, None] for name in ("cos_delta", "sin_delta"))
        # angle i·θ − δ
        cos, sin = cos * cos_delta + sin * sin_delta, sin * cos_delta - cos * sin_delta
        # Attention divides by √(2H), the root of the width that it sees, but the paper by √H.
        return _polar(x, cos, sin, math.sqrt(2))

    def rotate_keys(self, params: Params, x: Any, cos: Any, sin: Any, layout: Layout) -> Any:
        _check_width(cos, x.shape[-1])
        return _polar(x, cos, sin)


def _check_width(cos: Any, head_dim: int) -> None:
    if cos.shape[-1] != head_dim:
        raise ValueError(
            f"rotary_dim: is {2 * cos.shape[-1]}, but pope turns each of a head's {head_dim} "
            f"dimensions by a frequency of its own; give {2 * head_dim}, or null"
        )


def _polar(x: Any, cos: Any, sin: Any, scale: float = 1.0) -> Any:
    """Return scale·softplus(x)·e^(i·angle), real and imaginary parts: [.., H] becomes [.., 2H]."""
    import jax
    import jax.numpy as jnp

    magnitude = jax.nn.softplus(x.astype(jnp.float32)) * scale
    return jnp.concatenate([magnitude * cos, magnitude * sin], axis=-1).astype(x.dtype)
