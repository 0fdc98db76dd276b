"""`yarn`: interpolation by parts, with a temperature on attention."""

import math
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from rope_jax.rope.geometry import RotaryGeometry
from rope_jax.rope.strategies.base import Factor, Scaling


class YaRNScaling(Scaling):
    """YaRN: fast pairs as they are, slow ones θ/s, a linear ramp between, and m = 0.1 ln s + 1.

        dim(r) = d·ln(L/(2πr)) / (2 ln b)       the (fractional) pair that turns r times in L
        low    = max(floor(dim(beta_fast)), 0)
        high   = min(ceil(dim(beta_slow)), d − 1)
        ramp_i = clip((i − low)/(high − low), 0, 1)
        θ'_i   = θ_i·(1 − ramp_i) + θ_i/s·ramp_i

    The ramp runs in the index of the pair, as the authors' and Hugging Face's code do. high is
    clamped to d − 1, not to the last pair d/2 − 1: with d 128, b 1e4, L 65,536 it is 65, and the
    last pair stays short of fully interpolated. Positions are not divided by s as well, and no
    root is taken of m.
    """

    source: ClassVar[str] = "Peng et al., arXiv 2309.00071; Hugging Face `yarn`"
    type: Literal["yarn"] = "yarn"
    factor: Factor
    beta_fast: float = Field(
        32.0, gt=0, allow_inf_nan=False, description="turns in L above which a pair keeps θ"
    )
    beta_slow: float = Field(
        1.0, gt=0, allow_inf_nan=False, description="turns in L below which a pair gets θ/s"
    )
    truncate: bool = Field(True, description="round the ramp's ends outward to whole pairs")
    attention_factor: float | None = Field(
        None, gt=0, lt=1e6, description="m itself; null: 0.1·ln(factor) + 1"
    )

    @model_validator(mode="after")
    def _betas_in_order(self) -> Self:
        if self.beta_fast <= self.beta_slow:
            raise ValueError(
                f"beta_fast ({self.beta_fast:g}) must be above beta_slow ({self.beta_slow:g})"
            )
        return self

    def ramp_ends(self, geometry: RotaryGeometry) -> tuple[float, float]:
        """(low, high), in pairs: where the ramp leaves 0 and where it reaches 1."""

        def pair_turning(turns: float) -> float:
            length_per_radian = geometry.train_length / (2 * math.pi * turns)
            if not 0 < length_per_radian < math.inf:
                raise OverflowError
            return geometry.rotary_dim * math.log(length_per_radian) / (2 * math.log(geometry.base))

        low, high = pair_turning(self.beta_fast), pair_turning(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        return max(low, 0), min(high, geometry.rotary_dim - 1)

    def scaled(self, geometry: RotaryGeometry) -> tuple[np.ndarray, float]:
        if geometry.base == 1:
            raise ValueError("base: yarn needs a base above 1 (all pairs turn alike at base 1)")
        low, high = self.ramp_ends(geometry)
        if low > high:
            # The clamps above have crossed: a ramp from here would run backwards, and leave fast
            # pairs interpolated or slow ones as they are. Other code does so silently.
            turns = geometry.train_length * geometry.inv_freq() / (2 * math.pi)
            raise ValueError(
                f"beta_fast, beta_slow: no pair turns between {self.beta_slow:g} and "
                f"{self.beta_fast:g} times in train_length {geometry.train_length}; the pairs "
                f"turn {turns[-1]:.3g} to {turns[0]:.3g} times"
            )
        if low == high:
            high += 0.001
        ramp = np.clip((np.arange(geometry.rotary_dim // 2) - low) / (high - low), 0, 1)
        theta = geometry.inv_freq()
        m = self.attention_factor
        return (
            theta * (1 - ramp) + theta / self.factor * ramp,
            0.1 * math.log(self.factor) + 1 if m is None else m,
        )
