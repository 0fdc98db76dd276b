"""`drope`: no rotation at all."""

import math
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from rope_jax.rope.geometry import RotaryGeometry
from rope_jax.rope.numbers import Factor
from rope_jax.rope.strategies.base import Scaling


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
