"""`string`: far keys moved closer, to positions that were trained more often."""

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from rope_jax.positions.maps.base import AutoTokens, MapBand, Places, PositionMap, resolved_number
from rope_jax.positions.mask import BandMask


class STRING(PositionMap):
    """STRING: exact distances below S; beyond, distances smaller by S − W.

    Meant for texts inside the window, whose longest distances are trained least: n tokens leave
    the window for n > L + S − W. "auto" is S = L/3 and W = L/32, the authors' 128 at 4,096, for
    every length above W + S.
    """

    source: ClassVar[str] = "An et al., arXiv 2410.18745, HKUNLP/STRING"
    relative: ClassVar[str] = "d if d < S, else d − S + W"
    stays_inside: ClassVar[bool] = False
    type: Literal["string"] = "string"
    shift: AutoTokens = Field("auto", description="S, from which distance on keys move; auto: L/3")
    local: AutoTokens = Field("auto", description="W, the distance they move to; auto: L/32")

    @model_validator(mode="after")
    def _local_is_at_most_shift(self) -> "STRING":
        if "auto" not in (self.shift, self.local):
            s, w = resolved_number(self.shift), resolved_number(self.local)
            if w > s:
                raise ValueError(f"local: {w:,} is more than shift {s:,}; give at most {s:,}")
        return self

    def at(self, window: int, length: int) -> "PositionMap":
        # unlike the other maps, also inside the window
        return self._with_numbers(window, length) if self.is_auto else self

    def resolved(self, window: int, length: int) -> dict[str, Any]:
        s = max(1, window // 3) if self.shift == "auto" else self.shift
        w = max(1, min(window // 32, s)) if self.local == "auto" else self.local
        return self.model_dump() | {"shift": s, "local": w}

    def bands(self, window: int, length: int) -> tuple[MapBand, ...]:
        s, w = resolved_number(self.shift), resolved_number(self.local)
        return MapBand(BandMask(beyond=s)), MapBand(BandMask(nearest=s), Places(offset=w - s))
