"""`longrope`: searched factors per pair, one list for short texts and one for long ones."""

import math
from types import ModuleType
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from rope_jax.rope.geometry import RotaryGeometry
from rope_jax.rope.numbers import AttentionFactor, Factor, PairFactors
from rope_jax.rope.strategies.base import Scaling, per_pair


class LongRoPEScaling(Scaling):
    """LongRoPE: θ_i / λ_i, one list of λ up to length L, another beyond; m = √(1 + ln s / ln L).

    λ is short_factor for texts of n ≤ L tokens and long_factor for n > L. m depends on s (`factor`)
    only, not on n, and so applies to short texts too.
    """

    source: ClassVar[str] = "Ding et al., arXiv 2402.13753; Hugging Face `longrope`"
    follows_length: ClassVar[str] = "at L, unless the lists are equal"
    type: Literal["longrope"] = "longrope"
    short_factor: PairFactors = Field(description="λ of each pair for texts of at most L tokens")
    long_factor: PairFactors = Field(description="λ of each pair for longer texts")
    factor: Factor | None = Field(None, description="s, from which m is computed")
    attention_factor: AttentionFactor | None = Field(None, description="m; null: computed from s")

    @model_validator(mode="after")
    def _a_way_to_m(self) -> "LongRoPEScaling":
        if self.factor is None and self.attention_factor is None:
            raise ValueError("factor: is needed to compute m; give it, or attention_factor")
        return self

    @property
    def length_dependent(self) -> bool:
        return self.short_factor != self.long_factor

    def m(self, geometry: RotaryGeometry) -> float:
        """Return the attention factor."""
        if self.attention_factor is not None:
            return self.attention_factor
        if geometry.train_length < 2:
            raise ValueError("train_length: longrope needs at least 2 (m divides by ln L)")
        return math.sqrt(1 + math.log(self.factor or 1) / math.log(geometry.train_length))

    def scaled(self, geometry: RotaryGeometry) -> tuple[np.ndarray, float]:
        factors = per_pair(self.short_factor, geometry, "short_factor")
        return geometry.inv_freq() / factors, self.m(geometry)

    def scaled_at(self, geometry: RotaryGeometry, length: Any, xp: ModuleType) -> tuple[Any, Any]:
        short, m = self.scaled(geometry)
        long = geometry.inv_freq() / per_pair(self.long_factor, geometry, "long_factor")
        dtype = np.float64 if xp is np else np.float32
        is_long = (length > geometry.train_length)[..., None]
        shape = (*length.shape, short.size)
        short, long = (xp.broadcast_to(x.astype(dtype), shape) for x in (short, long))
        return xp.where(is_long, long, short), m
