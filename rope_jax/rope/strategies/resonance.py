"""`resonance`: wavelengths rounded to whole tokens, on top of another strategy."""

from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, Union

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
    """Resonance RoPE: 2π / round(2π/θ'_i), θ' of another strategy, so that every turn repeats.

    m is the other strategy's. A pair that stands still stays so. Where θ' follows a traced length,
    in float32, a wavelength halfway between two tokens may be rounded to the other one: of texts
    to 200,000 tokens up to 1 wavelength in 60, the shortest 119 (d 64, base 1e4, L 2048).
    """

    source: ClassVar[str] = "Wang et al., arXiv 2403.00071"
    type: Literal["resonance"] = "resonance"
    inner: AnyPlain = Field(NoScaling(), description="what it stands on: any other scaling")

    @model_validator(mode="after")
    def _queries_are_scaled_here(self) -> Self:
        if self.inner.query_scale is not None:
            raise ValueError("inner.query_scale: does nothing there; give it beside inner")
        return self

    @property
    def factor(self) -> float | None:
        """What it stands on has it, where there is one."""
        return getattr(self.inner, "factor", None)

    @property
    def extension_factor(self) -> float | None:
        """The inner strategy's."""
        return self.inner.extension_factor

    def with_factor(self, factor: float) -> Self:
        """Return a copy whose inner strategy has another extension factor.

        ValueError: as for the inner strategy.
        """
        inner = self.inner.with_factor(factor)
        return self.model_copy(update={"inner": inner})

    @property
    def length_dependent(self) -> bool:
        """as inner"""
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
    turn = inv_freq.dtype.type(2 * np.pi)
    turning = inv_freq > 0
    wavelengths = xp.round(turn / xp.where(turning, inv_freq, 1))
    return xp.where(turning, turn / wavelengths, 0)
