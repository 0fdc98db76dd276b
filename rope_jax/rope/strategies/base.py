"""The base class of every scaling strategy, and the formulas that several strategies share.

Shapes: d rotary dimension, `*batch` the axes of the text lengths (none for a single length).
"""

import math
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Float, Float32, Float64, Int, Int64
from pydantic import Field, model_validator

from rope_jax.rope.angles import Positions
from rope_jax.rope.geometry import (
    AnyArray,
    Frequencies,
    RotaryGeometry,
    SeqLen,
    as_float,
    is_on_host,
)
from rope_jax.rope.query_scales import AnyQueryScale
from rope_jax.rope.settings import Factor, Settings, validated

Lengths = Int[AnyArray, "*batch"]
ByPair = Float[AnyArray, "... pairs"]
ByLength = Float[AnyArray, "..."]
Scaled = tuple[ByPair, ByLength | float]
"""inv_freq and m."""


class Scaling(Settings):
    """Settings of one strategy. The first line of a subclass's docstring is its README entry."""

    follows_length: ClassVar[str] = "no"
    """When the frequencies depend on the text's length, in the words of the README's table."""

    factor_extends: ClassVar[bool] = True
    """Whether `factor`, if there is one, says how many times longer the context becomes."""

    query_scale: AnyQueryScale | None = Field(
        None, description="factor on whole queries that grows with their position"
    )

    @property
    def length_dependent(self) -> bool:
        """Whether a longer text changes the rotation of every key already in it."""
        return self.follows_length != "no"

    @property
    def replaces_frequencies(self) -> bool:
        """Whether all frequencies are chosen anew, whatever a model was trained with."""
        return False

    @property
    def needs_whole_head(self) -> bool:
        """Whether the formula only holds where rotary_dim is the head's whole width."""
        return False

    def frequencies(self, geometry: RotaryGeometry, seq_len: SeqLen = None) -> Frequencies:
        """Return the scaled frequencies and m as float32 arrays.

        seq_len: the text's length in tokens, needed by length-dependent strategies and ignored by
        the others. An int or an array of ints on the host gives exact frequencies; a traced scalar
        or [batch] array gives float32 ones, within 3e-7 of exact (`resonance` may differ more),
        and a new length needs no recompilation.

        Leaves: inv_freq [*batch, d/2] in radians per token, its remainder, and m [*batch].

        ValueError: a setting does not fit the geometry, or a length is needed but missing.
        """
        if not self.length_dependent or is_on_host(seq_len):
            return Frequencies.from_float64(*self.host_frequencies(geometry, seq_len))
        if seq_len is None:
            raise ValueError(f"seq_len: {self.type} depends on the text's length; give it")
        traced = jnp.asarray(seq_len)
        if not jnp.issubdtype(traced.dtype, jnp.integer):
            raise ValueError(f"seq_len: has dtype {traced.dtype}; a length is a whole number")
        inv_freq, m = self.scaled_at(geometry, traced.astype(jnp.int32), jnp)
        m = jnp.broadcast_to(jnp.asarray(m, jnp.float32), inv_freq.shape[:-1])
        return Frequencies(inv_freq, jnp.zeros_like(inv_freq), m)

    def host_frequencies(
        self, geometry: RotaryGeometry, seq_len: SeqLen = None
    ) -> tuple[Float64[np.ndarray, "*batch pairs"], ArrayLike]:
        """Return θ' in radians per token and m in float64; see `frequencies`."""
        try:
            with np.errstate(over="raise", divide="raise", invalid="raise"):
                if not self.length_dependent:
                    return self.scaled(geometry)
                inv_freq, m = self.scaled_at(geometry, _host_lengths(seq_len), np)
                return np.asarray(inv_freq), m
        except (OverflowError, FloatingPointError):
            raise ValueError(
                f"type: {self.type} with these settings and base {geometry.base:g} exceeds "
                "the range of a float"
            ) from None

    def scaled(self, geometry: RotaryGeometry) -> tuple[np.ndarray, float]:
        """Compute inv_freq, float64 [pairs], and m on the host."""
        raise NotImplementedError(f"{type(self).__name__} has no formula")

    def scaled_at(self, geometry: RotaryGeometry, length: Lengths, xp: ModuleType) -> Scaled:
        """Compute inv_freq and m at text lengths.

        The same code runs on host and device: xp is numpy (float64) or jax.numpy (float32, traced).
        """
        return self.scaled(geometry)

    def check(
        self, geometry: RotaryGeometry, seq_len: SeqLen = None, head_dim: int | None = None
    ) -> None:
        """Check that the strategy fits a geometry, and that it changes something.

        head_dim: the model's, if known; some strategies need rotary_dim to equal it.

        ValueError: the formula is undefined here, it needs the whole head, or a factor above 1
        leaves frequencies and m unchanged (a common bug, because it is silent).
        """
        if self.needs_whole_head and head_dim not in (None, geometry.rotary_dim):
            raise ValueError(
                f"type: {self.type} works on whole heads; rotary_dim {geometry.rotary_dim} is not "
                f"head_dim {head_dim}"
            )
        scaled = self.frequencies(geometry, seq_len)
        factor = self.extension_factor or 1.0
        # a length-dependent strategy changes nothing at short lengths
        if factor <= 1 or self.length_dependent:
            return
        plain = Frequencies.from_float64(geometry.inv_freq())
        if all(np.array_equal(a, b) for a, b in zip(scaled, plain, strict=True)):
            raise ValueError(
                f"factor: {factor:g} changes no frequency at train_length {geometry.train_length}; "
                f"check {self.type}'s other settings"
            )

    def query_scale_at(
        self, geometry: RotaryGeometry, positions: Positions
    ) -> Float32[AnyArray, "*#batch T"]:
        """Return the factor on queries at positions [..., T], as `QueryScale.at`; 1 without one."""
        if self.query_scale is None:
            return np.ones(np.shape(positions), np.float32)
        return self.query_scale.at(geometry, positions)

    @classmethod
    def has_extension_factor(cls) -> bool:
        """Return whether the strategy has a `factor` that `factor_extends`."""
        return "factor" in cls.model_fields and cls.factor_extends

    @property
    def extension_factor(self) -> float | None:
        """This strategy's s, how many times longer the context becomes; None if it has none."""
        return getattr(self, "factor", None) if self.has_extension_factor() else None

    @property
    def longest_extension(self) -> float:
        """How many times L the longest text may be that the scaling is meant for."""
        if self.length_dependent and self.extension_factor is None:
            return math.inf
        return self.extension_factor or 1.0

    def with_factor(self, factor: float) -> "Scaling":
        """Return a copy with another extension factor, validated like the settings in a config.

        ValueError: there is no extension factor, or the new one does not fit the other settings.
        """
        if not self.has_extension_factor():
            raise ValueError(f"factor: {self.type} has no extension factor")
        return validated(type(self), self.model_dump() | {"factor": float(factor)})

    def continued(self, factor: float) -> "Scaling":
        """Return a trained strategy with a larger `factor`, all else as it was trained.

        It is what a runtime computes if only the factor in the model's config is changed.

        ValueError: there is no factor, or the new one is smaller or does not fit.
        """
        if "factor" not in type(self).model_fields:
            raise ValueError(f"factor: the model's own scaling, {self.type}, has none to continue")
        trained: float = self.factor  # type: ignore[attr-defined]
        if factor < trained:
            raise ValueError(f"factor: {factor:g} is below the {trained:g} of training")
        return validated(type(self), self.model_dump() | {"factor": float(factor)})

    def for_layer(self, layer: int, layers: int) -> "Scaling":
        """Return the strategy of one of `layers`; ValueError: it is for another number of them."""
        return self

    def where_trained(self, scaling: "Scaling | None") -> "Scaling":
        """Return what a layer reads with that was trained with another scaling than the rest."""
        return scaling or self


class WithFactor(Scaling):
    """A strategy with a required extension factor."""

    factor: Factor


class WithInner(Scaling):
    """A strategy whose factor, and what follows from it, are those of an inner strategy."""

    if TYPE_CHECKING:  # each strategy declares it, where it stands among its other settings
        inner: Scaling

    @model_validator(mode="after")
    def _queries_are_scaled_here(self) -> "WithInner":
        if self.inner.query_scale is not None:
            raise ValueError("inner.query_scale: has no effect there; move it up beside inner")
        return self

    @property
    def factor(self) -> float | None:
        """The inner strategy's factor, if it has one."""
        return getattr(self.inner, "factor", None)

    @property
    def extension_factor(self) -> float | None:
        return self.inner.extension_factor

    @property
    def longest_extension(self) -> float:
        return self.inner.longest_extension

    @property
    def length_dependent(self) -> bool:
        return self.inner.length_dependent

    @property
    def needs_whole_head(self) -> bool:
        return self.inner.needs_whole_head

    def with_factor(self, factor: float) -> Scaling:
        """Return a copy whose inner strategy has another extension factor; ValueError as there."""
        return self.model_copy(update={"inner": self.inner.with_factor(factor)})

    def continued(self, factor: float) -> Scaling:
        return self.model_copy(update={"inner": self.inner.continued(factor)})


def _host_lengths(seq_len: SeqLen) -> Int64[np.ndarray, "*batch"]:
    """Return text lengths; ValueError unless they are whole and at least 1."""
    lengths = np.asarray(seq_len)
    if lengths.dtype.kind not in "iu" or lengths.min(initial=1) < 1:
        raise ValueError(f"seq_len: {seq_len!r} is not a whole number of at least 1")
    return lengths.astype(np.int64)  # unsigned, n − L would wrap around for n < L


def per_pair(
    values: Sequence[float], geometry: RotaryGeometry, field: str
) -> Float64[np.ndarray, " pairs"]:
    """Return a list with one number per pair as an array; ValueError if its length differs."""
    pairs = geometry.rotary_dim // 2
    if len(values) != pairs:
        raise ValueError(
            f"{field}: {len(values)} numbers for the {pairs} pairs of rotary_dim "
            f"{geometry.rotary_dim}"
        )
    return np.asarray(values, np.float64)


def dynamic_factor(
    geometry: RotaryGeometry, length: Lengths, xp: ModuleType, rate: float = 1.0
) -> ByLength:
    """Return s = max(1, 1 + rate · (n − L)/L) at text lengths n.

    With rate 1 it is max(1, n/L). In float32, rate·n/L − (rate − 1) would cancel.
    """
    excess = as_float(xp.maximum(length - geometry.train_length, 0), xp)
    return 1 + excess * float(rate / geometry.train_length)


def align_pairs(
    pairs: Float[np.ndarray, " pairs"], lengths: ByLength | ByPair
) -> Float[np.ndarray, "*ones pairs"]:
    """Return numbers by pair in the dtype of `lengths`, to broadcast with lengths[..., None]."""
    return pairs.astype(lengths.dtype).reshape((1,) * lengths.ndim + pairs.shape)


def falling_power(x: ByLength, exponents: Float[np.ndarray, " pairs"], xp: ModuleType) -> ByPair:
    """Return x^(−e) for x ≥ 1 and host exponents e in [0, 2].

    Within 3e-7 (relative) in float32, where exp(−e·ln x) is off by 1e-6: the power of two in x is
    split off, since its product with e is exact.
    """
    if xp is np:
        return x[..., None] ** -exponents
    mantissa, power = xp.frexp(x[..., None])
    power = power.astype(np.float32)
    high = (exponents.astype(np.float32).view(np.uint32) & np.uint32(0xFFFFF000)).view(np.float32)
    product = power * align_pairs(high, x)  # at most 6 by 12 bits
    whole = xp.round(product)
    rest = (product - whole) + power * align_pairs(exponents - high, x)
    rest = rest + align_pairs(exponents, x) * xp.log2(mantissa)
    return xp.ldexp(xp.exp2(-rest), -whole.astype(np.int32))
