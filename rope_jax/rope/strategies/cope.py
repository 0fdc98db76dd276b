"""`cope`: clipping of the slowest pairs."""

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from rope_jax.rope.geometry import RotaryGeometry
from rope_jax.rope.numbers import Whole
from rope_jax.rope.strategies.base import Scaling


class CoPEScaling(Scaling):
    """CoPE: the last c pairs × ½(1 + cos x), x from 0 to π, so that the slowest does not rotate.

    This is `cut: soft`. `cut: hard` sets the frequencies of the last c pairs to 0, the sharp edge
    that the taper is meant to avoid. The authors' code clips min(20, d/2) pairs: 20 of 64, but
    every pair at d 32; the default here is 20 in 64 at every d.
    """

    source: ClassVar[str] = "Li et al., arXiv 2602.05258"
    type: Literal["cope"] = "cope"
    c: Annotated[int, Whole] | None = Field(
        None, ge=1, lt=2**31, description="pairs to clip; null: 20 in 64, in proportion"
    )
    cut: Literal["soft", "hard"] = Field(
        "soft", description="soft: a taper to 0 over the c pairs; hard: 0 for all of them"
    )

    @model_validator(mode="after")
    def _taper_has_two_ends(self) -> "CoPEScaling":
        if self.c == 1 and self.cut == "soft":
            raise ValueError("c: should be at least 2, not 1 (a taper starts at ½(1 + cos 0) = 1)")
        return self

    def scaled(self, geometry: RotaryGeometry) -> tuple[np.ndarray, float]:
        pairs = geometry.rotary_dim // 2
        if pairs < 2:
            raise ValueError(f"rotary_dim: cope needs at least 4, not {2 * pairs}")
        fewest = 2 if self.cut == "soft" else 1
        c = self.c or max(fewest, round(20 / 64 * pairs))
        if c > pairs:
            raise ValueError(
                f"c: {c} pairs to clip, but rotary_dim {2 * pairs} has only {pairs}; "
                f"give {fewest} to {pairs}"
            )
        theta = geometry.inv_freq()
        if self.cut == "hard":
            theta[pairs - c :] = 0
        else:
            theta[pairs - c :] *= 0.5 * (1 + np.cos(np.linspace(0, np.pi, c)))
            theta[-1] = 0  # exactly: 1 + cos π rounds to more than 0
        return theta, 1.0
