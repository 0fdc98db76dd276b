"""`cope`: the slowest pairs clipped softly."""

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from rope_jax.rope.geometry import RotaryGeometry
from rope_jax.rope.numbers import Whole
from rope_jax.rope.strategies.base import Scaling


class CoPEScaling(Scaling):
    """CoPE: the last c pairs × ½(1 + cos x), x from 0 to π, so the slowest stands still.

    The authors' code clips 20 of 64 pairs, and min(20, d/2) elsewhere: with d 32 that would be
    every pair. Here 20 of 64 is a proportion where c is not given.
    """

    source: ClassVar[str] = "Li et al., arXiv 2602.05258"
    type: Literal["cope"] = "cope"
    c: Annotated[int, Whole] | None = Field(
        None, ge=2, lt=2**31, description="clipped pairs; null: 20 of 64, in proportion"
    )

    def scaled(self, geometry: RotaryGeometry) -> tuple[np.ndarray, float]:
        pairs = geometry.rotary_dim // 2
        if pairs < 2:
            raise ValueError(f"rotary_dim: cope needs at least 4, not {2 * pairs}")
        # at least 2: with one, ½(1 + cos 0) = 1 changes nothing
        c = self.c or max(2, round(20 / 64 * pairs))
        if c > pairs:
            raise ValueError(
                f"c: {c} pairs to clip, and rotary_dim {2 * pairs} has {pairs}; give 2 to {pairs}"
            )
        theta = geometry.inv_freq()
        theta[pairs - c :] *= 0.5 * (1 + np.cos(np.linspace(0, np.pi, c)))
        theta[-1] = 0  # cos(π) is −1 but for rounding
        return theta, 1.0
