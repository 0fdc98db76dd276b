"""`p_rope`: rotation of only the fastest pairs."""

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from rope_jax.rope.geometry import RotaryGeometry
from rope_jax.rope.numbers import Factor
from rope_jax.rope.strategies.base import Scaling


class PRoPEScaling(Scaling):
    """p-RoPE: only the fastest share p of the pairs rotates; the others have frequency 0.

    The number of rotating pairs is ⌊p·head_dim/2⌋. This is not partial rotary: exponents run over
    the whole head and pairs are (i, i + head_dim/2), so rotary_dim must be head_dim. Partial rotary
    has exponents over rotary_dim = p·head_dim and pairs within those dimensions only.
    """

    source: ClassVar[str] = "Barbero et al., arXiv 2410.06205; Hugging Face `proportional`"
    type: Literal["p_rope"] = "p_rope"
    p: float = Field(ge=0, le=1, description="share of the pairs that rotate, fastest first")
    factor: Factor = 1.0

    @property
    def needs_whole_head(self) -> bool:
        return True

    def scaled(self, geometry: RotaryGeometry) -> tuple[np.ndarray, float]:
        theta = geometry.inv_freq() / self.factor
        theta[int(self.p * geometry.rotary_dim // 2) :] = 0
        return theta, 1.0
