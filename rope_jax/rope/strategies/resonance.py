"""`resonance`: another strategy with its wavelengths rounded to whole tokens."""

from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Union

import numpy as np
from pydantic import Field, model_validator

from rope_jax.rope.geometry import RotaryGeometry
from rope_jax.rope.strategies.base import Scaling
from rope_jax.rope.strategies.none import NoScaling
from rope_jax.rope.strategies.registry import PLAIN

if TYPE_CHECKING:
    AnyPlain = Scaling
else:
    AnyPlain = Annotated[Union[*PLAIN], Field(discriminator="type")]


class ResonanceScaling(Scaling):
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

    @model_validator(mode="after")
    def _queries_are_scaled_here(self) -> "ResonanceScaling":
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

    def with_factor(self, factor: float) -> "ResonanceScaling":
        """Return a copy whose inner strategy has another extension factor; ValueError as there."""
        return self.model_copy(update={"inner": self.inner.with_factor(factor)})

    @property
    def length_dependent(self) -> bool:
        return self.inner.length_dependent

    @property
    def needs_whole_head(self) -> bool:
        return self.inner.needs_whole_head

    def scaled(self, geometry: RotaryGeometry) -> tuple[np.ndarray, float]:
        inv_freq, m = self.inner.scaled(geometry)
        return _whole_wavelengths(inv_freq, np), m

    def scaled_at(self, geometry: RotaryGeometry, length: Any, xp: ModuleType) -> tuple[Any, Any]:
        inv_freq, m = self.inner.scaled_at(geometry, length, xp)
        return _whole_wavelengths(inv_freq, xp), m

    def check(
        self, geometry: RotaryGeometry, seq_len: Any = None, head_dim: int | None = None
    ) -> None:
        self.inner.check(geometry, seq_len, head_dim)
        super().check(geometry, seq_len, head_dim)

    def for_layer(self, layer: int, layers: int) -> "ResonanceScaling":
        return self.model_copy(update={"inner": self.inner.for_layer(layer, layers)})


def _whole_wavelengths(inv_freq: Any, xp: ModuleType) -> Any:
    """The frequencies [*batch, d/2] whose wavelengths 2π/θ' are rounded to whole tokens."""
    turn = inv_freq.dtype.type(2 * np.pi)
    turning = inv_freq > 0
    wavelengths = xp.round(turn / xp.where(turning, inv_freq, 1))
    return xp.where(turning, turn / wavelengths, 0)
