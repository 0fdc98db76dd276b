"""What every scaling strategy is: frozen settings that return frequencies."""

from collections.abc import Sequence
from types import ModuleType
from typing import Any, ClassVar, Self, get_args

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rope_jax.rope.frequencies import Frequencies
from rope_jax.rope.geometry import RotaryGeometry
from rope_jax.rope.numbers import EXTENSION, Factor
from rope_jax.rope.query_scales import AnyQueryScale


class Scaling(BaseModel):
    """Settings of one strategy. The class docstring's first line is its line in every list."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    source: ClassVar[str]
    type: str
    query_scale: AnyQueryScale | None = Field(
        None, description="a factor on whole queries that grows with their position"
    )

    @property
    def length_dependent(self) -> bool:
        """Whether a longer text changes the rotation of every key already in it.

        One that may says when in its own docstring: that is its line in every list.
        """
        return False

    @property
    def needs_whole_head(self) -> bool:
        """Whether rotary_dim must be the head's whole width for this to be what it says."""
        return False

    def frequencies(self, geometry: RotaryGeometry, seq_len: Any = None) -> Frequencies:
        """The effective frequencies and m.

        seq_len: the text's length in tokens, for length-dependent strategies: an int or an array
        of ints on the host (exact), or a traced scalar or [batch] array (float32, within 1e-6 of
        exact, no recompilation for another length). The others ignore it, and may get None.
        Returns float32 leaves: inv_freq [*batch, d/2] in radians a token, its remainder (0 where
        traced), m [*batch].

        ValueError: a setting does not fit the geometry, or a length is needed and was not given.
        """
        if not self.length_dependent:
            return self._on_host(geometry, lambda: self.scaled(geometry))
        if seq_len is None:
            raise ValueError(f"seq_len: {self.type} depends on the text's length; give it")
        if isinstance(seq_len, int | float | str | list | tuple | np.generic | np.ndarray):
            length = np.asarray(seq_len)
            if length.dtype.kind not in "iu" or length.min(initial=1) < 1:
                raise ValueError(f"seq_len: {seq_len!r} is not a whole number of at least 1")
            signed = length.astype(np.int64)  # in unsigned numbers n − L would wrap below L
            return self._on_host(geometry, lambda: self.scaled_at(geometry, signed, np))
        import jax.numpy as jnp

        traced = jnp.asarray(seq_len)
        if not jnp.issubdtype(traced.dtype, jnp.integer):
            raise ValueError(f"seq_len: is {traced.dtype}; a text has a whole number of tokens")
        if jnp.iinfo(traced.dtype).max > 2**31 - 1:  # unsigned or 64 bits: do not wrap
            traced = jnp.minimum(traced, jnp.asarray(2**31 - 1, traced.dtype))
        inv_freq, m = self.scaled_at(geometry, traced.astype(jnp.int32), jnp)
        m = jnp.broadcast_to(jnp.asarray(m, jnp.float32), inv_freq.shape[:-1])
        return Frequencies(inv_freq, jnp.zeros_like(inv_freq), m)

    def _on_host(self, geometry: RotaryGeometry, formula: Any) -> Frequencies:
        try:
            with np.errstate(over="raise", divide="raise", invalid="raise"):
                return Frequencies.from_float64(*formula())
        except (OverflowError, FloatingPointError):
            raise ValueError(
                f"type: {self.type} with these settings and base {geometry.base:g} exceeds "
                "what a float holds"
            ) from None

    def scaled(self, geometry: RotaryGeometry) -> tuple[np.ndarray, float]:
        """inv_freq, float64 [d/2], and m, computed on the host."""
        raise NotImplementedError(f"{type(self).__name__} has no formula")

    def scaled_at(self, geometry: RotaryGeometry, length: Any, xp: ModuleType) -> tuple[Any, Any]:
        """inv_freq [*batch, d/2] and m [*batch] at text lengths [*batch].

        One formula for both ways: xp is numpy (float64) or jax.numpy (float32, traced).
        """
        return self.scaled(geometry)

    def check(
        self, geometry: RotaryGeometry, seq_len: Any = None, head_dim: int | None = None
    ) -> None:
        """ValueError where this has no formula, does nothing, or is not what it says.

        Nothing: a factor above 1 that leaves frequencies and m as without any scaling; that it
        does so silently is this field's commonest bug. head_dim: of the model, where it is known;
        some strategies are themselves only where rotary_dim is all of it.
        """
        if self.needs_whole_head and head_dim not in (None, geometry.rotary_dim):
            raise ValueError(
                f"type: {self.type} works on whole heads; rotary_dim {geometry.rotary_dim} is not "
                f"head_dim {head_dim}"
            )
        made = self.frequencies(geometry, seq_len)
        factor = getattr(self, "factor", None) or 1.0
        # one that depends on the length does nothing at short ones
        if factor <= 1 or self.length_dependent:
            return
        plain = Frequencies.from_float64(geometry.inv_freq())
        if all(np.array_equal(a, b) for a, b in zip(made, plain, strict=True)):
            raise ValueError(
                f"factor: {factor:g} changes no frequency at train_length {geometry.train_length}; "
                f"check {self.type}'s other settings"
            )

    def query_scale_at(self, geometry: RotaryGeometry, positions: Any) -> Any:
        """The factor on whole queries at integer positions [..., T]: float32; 1 without one."""
        if self.query_scale is None:
            return np.ones(np.shape(positions), np.float32)
        return self.query_scale.at(geometry, positions)

    @classmethod
    def has_extension_factor(cls) -> bool:
        """Return whether `factor` says how many times longer the context becomes.

        False for `resonance`, whose factor is a setting of its inner strategy, and for
        `dynamic_ntk`, whose factor is a rate of growth.
        """
        field = cls.model_fields.get("factor")
        if field is None:
            return False
        # an optional factor (float | None) carries its mark one level further in
        members = [getattr(member, "__metadata__", ()) for member in get_args(field.annotation)]
        return any(EXTENSION in metadata for metadata in (field.metadata, *members))

    @property
    def extension_factor(self) -> float | None:
        """The s of this strategy, how many times longer the context becomes; None without one."""
        return getattr(self, "factor", None) if self.has_extension_factor() else None

    def with_factor(self, factor: float) -> Self:
        """Return a copy with another extension factor, validated like settings of a config.

        ValueError: the strategy has no extension factor, or the new one does not fit its other
        settings.
        """
        if not self.has_extension_factor():
            raise ValueError(f"factor: {self.type} has no extension factor")
        try:
            return type(self).model_validate(self.model_dump() | {"factor": float(factor)})
        except ValidationError as error:
            raise ValueError(first_error(error)) from None

    def for_layer(self, layer: int, layers: int) -> "Scaling":
        """What layer number `layer` of a model of `layers` uses; most use the same in all."""
        return self


class WithFactor(Scaling):
    """A strategy with a fixed factor."""

    factor: Factor


def first_error(error: ValidationError, *, skip: int = 0) -> str:
    """Return the first complaint of a validation in one line that begins with the field's name.

    skip: how many leading parts of the field's path to leave out.
    """
    first = error.errors()[0]
    if first["type"] == "value_error":  # raised by a validator of ours, which names the fields
        return first["msg"].removeprefix("Value error, ")
    field = ".".join(str(part) for part in first["loc"][skip:])
    return f"{field}: {first['msg']} (got {first['input']!r})"


def per_pair(values: Sequence[float], geometry: RotaryGeometry, field: str) -> np.ndarray:
    """float64 [d/2]; a ValueError that says both lengths where there is not one for each pair."""
    pairs = geometry.rotary_dim // 2
    if len(values) != pairs:
        raise ValueError(
            f"{field}: {len(values)} numbers for the {pairs} pairs of rotary_dim "
            f"{geometry.rotary_dim}"
        )
    return np.asarray(values, np.float64)


def growth(geometry: RotaryGeometry, length: Any, xp: ModuleType, rate: float = 1.0) -> Any:
    """max(1, 1 + rate · (n − L)/L) of text lengths n: [*batch]. With rate 1 it is max(1, n/L).

    The difference is taken in integers: in float32 rate·n/L − (rate − 1) would cancel.
    """
    past = xp.maximum(length - geometry.train_length, 0)
    past = past.astype(np.float64 if xp is np else np.float32)
    return 1 + past * past.dtype.type(rate / geometry.train_length)


def beside(pairs: np.ndarray, rows: Any) -> np.ndarray:
    """Host numbers [d/2] in the dtype of `rows` [*batch] and with as many axes before their own."""
    return pairs.astype(rows.dtype).reshape((1,) * rows.ndim + pairs.shape)


def falling_power(x: Any, exponents: np.ndarray, xp: ModuleType) -> Any:
    """x^(−e) for x [*batch] ≥ 1 and host exponents e [d/2] in [0, 2]: [*batch, d/2].

    In float32 within 3e-7 relative. exp(−e·ln x) alone is 1e-6 off, as ln x of 7 or more has no
    more digits: so the power of two in x is taken out, and its product with e is kept exact.
    """
    if xp is np:
        return x[..., None] ** -exponents
    mantissa, power = xp.frexp(x[..., None])
    power = power.astype(np.float32)
    high = (exponents.astype(np.float32).view(np.uint32) & np.uint32(0xFFFFF000)).view(np.float32)
    product = power * beside(high, x)  # at most 6 by 12 bits
    whole = xp.round(product)
    rest = (product - whole) + power * beside(exponents - high, x)
    rest = rest + beside(exponents, x) * xp.log2(mantissa)
    return xp.ldexp(xp.exp2(-rest), -whole.astype(np.int32))
