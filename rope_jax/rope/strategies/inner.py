"""`resonance` and `bucketed`: another strategy, changed or chosen by the text's length."""

import math
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Union

import numpy as np
from pydantic import Field, create_model, model_validator

from rope_jax.rope.geometry import RotaryGeometry, SeqLen, as_float
from rope_jax.rope.settings import Factor, validated
from rope_jax.rope.strategies.base import ByLength, ByPair, Lengths, Scaled, Scaling, WithInner
from rope_jax.rope.strategies.pi import NoScaling
from rope_jax.rope.strategies.registry import PLAIN

if TYPE_CHECKING:
    AnyPlain = Scaling
else:
    AnyPlain = Annotated[Union[*PLAIN], Field(discriminator="type")]


class ResonanceScaling(WithInner):
    """Resonance RoPE: 2π / round(2π/θ'_i), θ' from an inner strategy: wavelengths in whole tokens.

    m is the inner strategy's. A pair with frequency 0 keeps it. A θ' from a traced length is
    float32, and a wavelength near a half-integer may round to the other neighbour: for texts of up
    to 200,000 tokens (d 64, base 1e4, L 2048) at most 1 wavelength in 60 does, and none below 119
    tokens.
    """

    source: ClassVar[str] = "Wang et al., arXiv 2403.00071"
    follows_length: ClassVar[str] = "as inner"
    type: Literal["resonance"] = "resonance"
    inner: AnyPlain = Field(NoScaling(), description="the strategy whose wavelengths are rounded")

    def scaled(self, geometry: RotaryGeometry) -> tuple[np.ndarray, float]:
        inv_freq, m = self.inner.scaled(geometry)
        return np.asarray(_whole_wavelengths(inv_freq, np)), m

    def scaled_at(self, geometry: RotaryGeometry, length: Lengths, xp: ModuleType) -> Scaled:
        inv_freq, m = self.inner.scaled_at(geometry, length, xp)
        return _whole_wavelengths(inv_freq, xp), m

    def check(
        self, geometry: RotaryGeometry, seq_len: SeqLen = None, head_dim: int | None = None
    ) -> None:
        self.inner.check(geometry, seq_len, head_dim)
        super().check(geometry, seq_len, head_dim)

    def for_layer(self, layer: int, layers: int) -> "ResonanceScaling":
        return self.model_copy(update={"inner": self.inner.for_layer(layer, layers)})


def _whole_wavelengths(inv_freq: ByPair, xp: ModuleType) -> ByPair:
    """Return the frequencies whose wavelengths 2π/θ' are rounded to whole tokens."""
    turn = inv_freq.dtype.type(2 * np.pi)
    turning = inv_freq > 0
    wavelengths = xp.round(turn / xp.where(turning, inv_freq, 1))
    return xp.where(turning, turn / wavelengths, 0)


_WITH_FACTOR = {
    strategy.model_fields["type"].default: strategy
    for strategy in PLAIN
    if strategy.has_extension_factor()
}


def _without_factor(strategy: type[Scaling]) -> Any:
    """Return the strategy with the constant 1 in place of its setting `factor`."""
    name, constant = f"{strategy.__name__}InBuckets", (ClassVar[float], 1.0)
    more: Any = {"factor": constant}
    return create_model(name, __base__=strategy, __doc__=strategy.__doc__, **more)


if TYPE_CHECKING:
    AnyWithoutFactor = Scaling
else:
    AnyWithoutFactor = Annotated[
        Union[*map(_without_factor, _WITH_FACTOR.values())], Field(discriminator="type")
    ]


class BucketedScaling(Scaling):
    """An inner strategy with the smallest of several factors f for which f·L ≥ n, or the largest.

    n is the text's length. m is the inner strategy's, with the same factor. Unlike those of a
    dynamic strategy, the frequencies of a growing text change only where it outgrows a factor.
    (Qwen's own factors, 1, 3, 7, …, serve up to L, 2L, 4L, … tokens, which is another rule.)
    """

    source: ClassVar[str] = "after Qwen's dynamic NTK in chunks of lengths, arXiv 2309.16609"
    follows_length: ClassVar[str] = "yes"
    type: Literal["bucketed"] = "bucketed"
    factors: Annotated[tuple[Factor, ...], Field(min_length=1, strict=False)] = Field(
        description="extension factors f, ascending; f covers texts of up to f·L tokens"
    )
    inner: AnyWithoutFactor = Field(
        description="the strategy that takes the factor; its own is left out"
    )

    @model_validator(mode="before")
    @classmethod
    def _factors_are_here(cls, settings: object) -> object:
        inner = settings.get("inner") if isinstance(settings, dict) else None
        if isinstance(inner, dict) and "factor" in inner:
            raise ValueError("inner.factor: is chosen from factors; leave it out")
        return settings

    @model_validator(mode="after")
    def _every_factor_fits(self) -> "BucketedScaling":
        if list(self.factors) != sorted(set(self.factors)):
            listed = ", ".join(f"{factor:g}" for factor in self.factors)
            raise ValueError(f"factors: [{listed}] must be ascending, without repeats")
        if self.inner.query_scale is not None:
            raise ValueError("inner.query_scale: has no effect there; move it up beside inner")
        for factor in self.factors:
            self.with_inner_factor(factor)
        return self

    def with_inner_factor(self, factor: float) -> Scaling:
        """Return the inner strategy with an extension factor. ValueError: it does not fit."""
        settings = self.inner.model_dump() | {"factor": factor}
        return validated(_WITH_FACTOR[self.inner.type], settings, "inner.")

    @property
    def longest_extension(self) -> float:
        return self.factors[-1]

    @property
    def needs_whole_head(self) -> bool:
        return any(self.with_inner_factor(factor).needs_whole_head for factor in self.factors)

    def scaled_at(self, geometry: RotaryGeometry, length: Lengths, xp: ModuleType) -> Scaled:
        pairs = geometry.rotary_dim // 2
        by_factor: list[tuple[ByPair, ByLength]] = []
        for factor in self.factors:
            inv_freq, m = self.with_inner_factor(factor).scaled_at(geometry, length, xp)
            inv_freq = xp.broadcast_to(as_float(inv_freq, xp), (*length.shape, pairs))
            by_factor.append((inv_freq, xp.full(length.shape, m, inv_freq.dtype)))
        chosen, chosen_m = by_factor.pop()
        # the last one that covers a length is the smallest
        for factor, (inv_freq, m) in [*zip(self.factors, by_factor, strict=False)][::-1]:
            covered = length <= _longest(factor, geometry, np.iinfo(length.dtype).max)
            chosen = xp.where(covered[..., None], inv_freq, chosen)
            chosen_m = xp.where(covered, m, chosen_m)
        return chosen, chosen_m

    def check(
        self, geometry: RotaryGeometry, seq_len: SeqLen = None, head_dim: int | None = None
    ) -> None:
        for factor in self.factors:
            self.with_inner_factor(factor).check(geometry, seq_len, head_dim)
        super().check(geometry, seq_len, head_dim)


def _longest(factor: float, geometry: RotaryGeometry, limit: int) -> int:
    """⌊f·L⌋, the length of the longest text that a factor covers, at most `limit`.

    The tolerance is for factors such as 1.15, of which 100 times is just below 115 in floats.
    """
    return math.floor(min(factor * geometry.train_length * (1 + 1e-15), limit))
