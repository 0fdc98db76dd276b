"""`p_rope`, `cope`, `drope`: some pairs, or all, do not rotate."""

import math
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from rope_jax.rope.geometry import RotaryGeometry
from rope_jax.rope.settings import Factor, Whole
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


class DRoPEScaling(Scaling):
    """DroPE: no rotation (NoPE), and logits × (1 + c·ln s) for texts s times longer than L.

    A model trained with rotation needs a short recalibration at L without it. The factor on the
    logits is m² with m = √(1 + c·ln s); it acts on the whole head only where rotary_dim is
    head_dim. The default factor of 1 gives a layer without positions.
    """

    source: ClassVar[str] = "Gelberg et al., arXiv 2512.12167"
    type: Literal["drope"] = "drope"
    factor: Factor = 1.0
    c: float | None = Field(
        None,
        ge=0,
        lt=1e6,
        description="growth with ln s, fitted to the model; 0.412 and 0.103 in the paper",
    )

    @model_validator(mode="after")
    def _c_is_known(self) -> "DRoPEScaling":
        if self.factor != 1 and self.c is None:  # not `> 1`: in a sweep it may be "auto"
            raise ValueError(
                "c: drope needs it for a factor above 1; fit it to the model "
                "(0.412 and 0.103 in the paper)"
            )
        return self

    @property
    def needs_whole_head(self) -> bool:
        return self.factor > 1

    def scaled(self, geometry: RotaryGeometry) -> tuple[np.ndarray, float]:
        m = math.sqrt(1 + (self.c or 0) * math.log(self.factor))
        return np.zeros(geometry.rotary_dim // 2), m
