"""`p_rope`: only the fastest share of the pairs turns."""

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from rope_jax.rope.geometry import RotaryGeometry
from rope_jax.rope.numbers import Factor
from rope_jax.rope.strategies.base import Scaling


class PRoPEScaling(Scaling):
    """p-RoPE: the fastest p of the pairs turn, the others not at all (frequency 0).

    Not partial rotary: exponents run over the whole head and pairs are (i, i + head_dim/2), so
    rotary_dim must be head_dim. Partial rotary has exponents over rotary_dim = p·head_dim and
    leaves the dimensions past it out. The count of pairs is ⌊p·head_dim/2⌋.
    """

    source: ClassVar[str] = "Barbero et al., arXiv 2410.06205; Hugging Face `proportional`"
    type: Literal["p_rope"] = "p_rope"
    p: float = Field(ge=0, le=1, description="share of the pairs that turn, the fastest first")
    factor: Factor = 1.0

    @property
    def needs_whole_head(self) -> bool:
        return True

    def scaled(self, geometry: RotaryGeometry) -> tuple[np.ndarray, float]:
        theta = geometry.inv_freq() / self.factor
        theta[int(self.p * geometry.rotary_dim // 2) :] = 0
        return theta, 1.0
