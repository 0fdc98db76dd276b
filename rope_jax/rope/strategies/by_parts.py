"""`ntk_by_parts`, `yarn`, `dynamic_yarn`, `llama3`: keep fast pairs, interpolate slow ones."""

import math
from types import ModuleType
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from rope_jax.rope.geometry import RotaryGeometry
from rope_jax.rope.query_scales import ConstantScale
from rope_jax.rope.settings import AttentionFactor, Factor, Positive
from rope_jax.rope.strategies.base import (
    ByLength,
    ByPair,
    Lengths,
    Scaled,
    Scaling,
    WithFactor,
    align_pairs,
    dynamic_factor,
)


class ByParts(Scaling):
    """θ_i·(1 − ramp_i) + θ_i/s·ramp_i, where the ramp rises from 0 (fast pairs) to 1 (slow ones).

    `ramp: index` is the ramp of the authors' and Hugging Face's code:

        dim(r) = d·ln(L/(2πr)) / (2 ln b)       the (fractional) pair with r turns in L
        low    = max(floor(dim(beta_fast)), 0)
        high   = min(ceil(dim(beta_slow)), d − 1)       not d/2 − 1, the last pair
        ramp_i = clip((i − low)/(high − low), 0, 1)

    `ramp: rotations` is the paper's (eq. 18). With r_i = L·θ_i/(2π) turns in L,

        ramp_i = 1 − clip((r_i − beta_slow)/(beta_fast − beta_slow), 0, 1)

    Over trained θ_i, which have no base, dim(r) is interpolated between pairs: in −ln θ_i, it is a
    straight line through those of b^(−2i/d).

    If beta_fast and beta_slow are equal (Kimi K2), there is no ramp but a step; an index ramp whose
    ends meet is 0.001 pairs wide. Positions are not also divided by s.
    """

    beta_fast: Positive = Field(
        32.0, description="a pair with at least this many turns in L keeps θ"
    )
    beta_slow: Positive = Field(
        1.0, description="a pair with at most this many turns in L gets θ/s"
    )
    truncate: bool = Field(True, description="round the ramp's ends outward to whole pairs")
    ramp: Literal["index", "rotations"] = Field(
        "index", description="linear in the pair's index (the code) or in its turns (the paper)"
    )

    @model_validator(mode="after")
    def _ramp_makes_sense(self) -> "ByParts":
        if self.beta_fast < self.beta_slow:
            raise ValueError(
                f"beta_fast ({self.beta_fast:g}) must not be below beta_slow ({self.beta_slow:g})"
            )
        if self.ramp == "rotations" and not self.truncate:
            raise ValueError(
                "truncate: false goes with ramp: index; ramp: rotations is never rounded"
            )
        return self

    def ramp_ends(self, geometry: RotaryGeometry) -> tuple[float | int, float | int]:
        """Return (low, high): the pairs at which the index ramp leaves 0 and reaches 1."""

        def pair_turning(turns: float) -> float:
            length_per_radian = geometry.train_length / (2 * math.pi * turns)
            if not 0 < length_per_radian < math.inf:
                raise OverflowError
            log = math.log(length_per_radian)
            if geometry.trained is None:
                return geometry.rotary_dim * log / (2 * math.log(geometry.base))
            theta = np.asarray([theta for theta in geometry.trained if theta > 0])
            logs = np.maximum.accumulate(-np.log(theta))
            beyond = max(0, log - logs[-1]) + min(0, log - logs[0])
            beyond *= geometry.rotary_dim / (2 * math.log(geometry.base))
            return float(np.interp(log, logs, np.arange(len(logs))) + beyond)

        low, high = pair_turning(self.beta_fast), pair_turning(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        return max(low, 0), min(high, geometry.rotary_dim - 1)

    def share_interpolated(self, geometry: RotaryGeometry) -> np.ndarray:
        """Return ramp_i, float64 [d/2]: 0 where a pair keeps θ, 1 where it gets θ/s."""
        turns = geometry.train_length * geometry.inv_freq() / (2 * math.pi)
        if self.ramp == "rotations":
            return 1 - _ramp(turns, self.beta_slow, self.beta_fast)
        if geometry.base == 1:
            raise ValueError(
                f"base: {self.type} needs a base above 1 (all pairs turn alike at base 1)"
            )
        low, high = self.ramp_ends(geometry)
        if low > high:
            # The clamps have crossed: the ramp would run backwards and interpolate fast pairs or
            # keep slow ones, which other implementations do silently.
            raise ValueError(
                f"beta_fast, beta_slow: no pair turns between {self.beta_slow:g} and "
                f"{self.beta_fast:g} times in train_length {geometry.train_length}; the pairs "
                f"turn {turns[-1]:.3g} to {turns[0]:.3g} times"
            )
        if low == high:
            high += 0.001
        return _ramp(np.arange(geometry.rotary_dim // 2), low, high)

    def _blend(self, geometry: RotaryGeometry, s: ByLength) -> ByPair:
        """The frequencies for factors s."""
        theta, ramp = geometry.inv_freq(), self.share_interpolated(geometry)
        return align_pairs(theta * (1 - ramp), s) + align_pairs(theta * ramp, s) / s[..., None]


class NTKByPartsScaling(ByParts, WithFactor):
    """NTK by parts: θ for fast pairs, θ/s for slow ones, a linear ramp between; m = 1."""

    source: ClassVar[str] = "bloc97, NTK-by-parts, 2023; YaRN, arXiv 2309.00071, §3.2"
    type: Literal["ntk_by_parts"] = "ntk_by_parts"

    def scaled(self, geometry: RotaryGeometry) -> tuple[np.ndarray, float]:
        return np.asarray(self._blend(geometry, np.array(self.factor))), 1.0


class YaRNScaling(ByParts, WithFactor):
    """YaRN: θ for fast pairs, θ/s for slow ones, a linear ramp between; m = 0.1 ln s + 1.

    attention_factor, if given, is m itself. With mscale and mscale_all_dim, both above 0,

        m = (0.1·mscale·ln s + 1) / (0.1·mscale_all_dim·ln s + 1)

    m multiplies cos and sin, and therefore the logits by m²; no root is taken. DeepSeek's attention
    also scales its softmax by (0.1·mscale_all_dim·ln s + 1)², which is a query scale here,
    `constant`.
    """

    source: ClassVar[str] = "Peng et al., arXiv 2309.00071; Hugging Face `yarn`"
    type: Literal["yarn"] = "yarn"
    attention_factor: AttentionFactor | None = Field(None, description="m; null: computed from s")
    mscale: float | None = Field(
        None, ge=0, lt=1e6, description="numerator of DeepSeek's m, with mscale_all_dim; 0: off"
    )
    mscale_all_dim: float | None = Field(
        None, ge=0, lt=1e6, description="denominator of DeepSeek's m; 0: off"
    )

    @model_validator(mode="after")
    def _one_way_to_m(self) -> "YaRNScaling":
        if (self.mscale is None) != (self.mscale_all_dim is None):
            given = "mscale" if self.mscale_all_dim is None else "mscale_all_dim"
            other = "mscale_all_dim" if given == "mscale" else "mscale"
            raise ValueError(f"{given}: has no effect without {other}; give both")
        if self.mscale and self.mscale_all_dim and self.attention_factor is not None:
            raise ValueError(
                "attention_factor: sets m directly; give either it or mscale and mscale_all_dim"
            )
        return self

    @property
    def m(self) -> float:
        """The attention factor."""
        if self.attention_factor is not None:
            return self.attention_factor
        log = math.log(self.factor)
        if self.mscale and self.mscale_all_dim:
            return (0.1 * self.mscale * log + 1) / (0.1 * self.mscale_all_dim * log + 1)
        return 0.1 * log + 1

    @property
    def softmax_scale(self) -> float:
        """What DeepSeek's code multiplies logits by, beside m: (0.1·mscale_all_dim·ln s + 1)²."""
        return (0.1 * (self.mscale_all_dim or 0) * math.log(self.factor) + 1) ** 2

    def continued(self, factor: float) -> Scaling:
        larger = super().continued(factor)
        if self.query_scale == ConstantScale(s=self.softmax_scale):  # follows from the factor
            assert isinstance(larger, YaRNScaling)
            return larger.model_copy(update={"query_scale": ConstantScale(s=larger.softmax_scale)})
        return larger

    def scaled(self, geometry: RotaryGeometry) -> tuple[np.ndarray, float]:
        return np.asarray(self._blend(geometry, np.array(self.factor))), self.m


class DynamicYaRNScaling(ByParts):
    """YaRN with s = max(1, n/L), where n is the text's length; m = 0.1 ln s + 1."""

    source: ClassVar[str] = "YaRN, arXiv 2309.00071, §3.3"
    follows_length: ClassVar[str] = "yes"
    type: Literal["dynamic_yarn"] = "dynamic_yarn"
    attention_factor: AttentionFactor | None = Field(None, description="m; null: computed from s")

    def scaled_at(self, geometry: RotaryGeometry, length: Lengths, xp: ModuleType) -> Scaled:
        s = dynamic_factor(geometry, length, xp)
        m = 0.1 * xp.log(s) + 1 if self.attention_factor is None else self.attention_factor
        return self._blend(geometry, s), m


class Llama3Scaling(Scaling):
    """Llama 3.1: θ for pairs with many turns in L, θ/s for those with few, a ramp between.

    With r_i = L·θ_i/(2π) turns in L (L over the wavelength),

        g_i  = clip((r_i − low_freq_factor)/(high_freq_factor − low_freq_factor), 0, 1)
        θ'_i = (1 − g_i)·θ_i/s + g_i·θ_i

    This is NTK by parts with the paper's ramp, from low_freq_factor to high_freq_factor turns. If
    the two are equal (Llama 4 Scout) there is no ramp: pairs with at least that many turns keep θ.
    """

    source: ClassVar[str] = "Llama 3.1, arXiv 2407.21783; Hugging Face `llama3`"
    type: Literal["llama3"] = "llama3"
    factor: Factor = 8.0
    low_freq_factor: Positive = Field(
        1.0, description="a pair with at most this many turns in L gets θ/s"
    )
    high_freq_factor: Positive = Field(
        4.0, description="a pair with at least this many turns in L keeps θ"
    )

    @model_validator(mode="after")
    def _in_order(self) -> "Llama3Scaling":
        if self.high_freq_factor < self.low_freq_factor:
            raise ValueError(
                f"high_freq_factor ({self.high_freq_factor:g}) must not be below "
                f"low_freq_factor ({self.low_freq_factor:g})"
            )
        return self

    def scaled(self, geometry: RotaryGeometry) -> tuple[np.ndarray, float]:
        theta = geometry.inv_freq()
        turns = geometry.train_length * theta / (2 * math.pi)
        kept = _ramp(turns, self.low_freq_factor, self.high_freq_factor)
        return (1 - kept) * theta / self.factor + kept * theta, 1.0


def _ramp(x: np.ndarray, low: float | int, high: float | int) -> np.ndarray:
    """Return 0 up to low, 1 from high on, and a straight line between; a step if they are equal."""
    if low == high:
        return (x >= low).astype(np.float64)
    return np.clip((x - low) / (high - low), 0, 1)
