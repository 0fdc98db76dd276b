"""`far_frequencies`: a second vector of frequencies for keys that are far away."""

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from rope_jax.positions.maps.base import AutoTokens, MapBand, PositionMap, resolved_number
from rope_jax.positions.maps.rerope import check_window
from rope_jax.positions.mask import BandMask
from rope_jax.rope import AnyScaling


class FarFrequencies(PositionMap):
    """Far frequencies: θ_m·d below w, θ'_m·d + (θ_m − θ'_m)·w beyond, continuous at w.

    θ' are the frequencies of any scaling, whose m acts on the far keys. θ' = θ/k (`pi`) is leaky
    ReRoPE, θ' = 0 ReRoPE, θ' = θ no map. The longest angle depends on θ', so only w is checked.
    """

    source: ClassVar[str] = "rope-jax"
    relative: ClassVar[str] = "by pair: d if d < w, else w + (d − w)·θ'/θ"
    type: Literal["far_frequencies"] = "far_frequencies"
    window: AutoTokens = Field("auto", description="w, at most L − 1; auto: L/2")
    far: AnyScaling = Field(description="scaling that gives θ'; its factor is a number")

    @model_validator(mode="after")
    def _far_has_no_query_scale(self) -> "FarFrequencies":
        if self.far.query_scale is not None:
            raise ValueError(
                "far.query_scale: has no effect there; "
                "give it to the scaling that the map goes with"
            )
        return self

    def resolved(self, window: int, length: int) -> dict[str, Any]:
        return self.model_dump() | {"window": max(1, window // 2)}

    def bands(self, window: int, length: int) -> tuple[MapBand, ...]:
        w = resolved_number(self.window)
        return (MapBand(BandMask(beyond=w)), MapBand(BandMask(nearest=w), border=w, far=self.far))

    def check_reach(self, window: int, length: int) -> None:
        if length > window:
            check_window(resolved_number(self.window), window, most=window - 1)
