"""`cope`: soft clipping of the slowest pairs."""

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from rope_jax.rope.geometry import RotaryGeometry
from rope_jax.rope.numbers import Whole
from rope_jax.rope.strategies.base import Scaling


class CoPEScaling(Scaling):
    """CoPE: the last c pairs × ½(1 + cos x), x from 0 to π, so that the slowest does not rotate.

    The authors' code clips 20 of 64 pairs, and min(20, d/2) in other heads, which with d 32 is
    every pair. Here the default is 20 in 64, in proportion.
    """

    source: ClassVar[str] = "Li et al., arXiv 2602.05258"
    type: Literal["cope"] = "cope"
    c: Annotated[int, Whole] | None = Field(
        None, ge=2, lt=2**31, description="pairs to clip; null: 20 in 64, in proportion"
    )

    def scaled(self, geometry: RotaryGeometry) -> tuple[np.ndarray, float]:
        pairs = geometry.rotary_dim // 2
        if pairs < 2:
            raise ValueError(f"rotary_dim: cope needs at least 4, not {2 * pairs}")
        # at least 2: one alone would be multiplied by ½(1 + cos 0) = 1
        c = self.c or max(2, round(20 / 64 * pairs))
        if c > pairs:
            raise ValueError(
                f"c: {c} pairs to clip, but rotary_dim {2 * pairs} has only {pairs}; "
                f"give 2 to {pairs}"
            )
        theta = geometry.inv_freq()
        theta[pairs - c :] *= 0.5 * (1 + np.cos(np.linspace(0, np.pi, c)))
        theta[-1] = 0  # exactly: 1 + cos π rounds to more than 0
        return theta, 1.0
