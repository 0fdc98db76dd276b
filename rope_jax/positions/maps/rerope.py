"""`rerope`, `leaky_rerope`, `far_frequencies`: exact distances nearby, others farther off."""

import math
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from rope_jax.positions.maps.base import AutoTokens, MapBand, PositionFunction, PositionMap
from rope_jax.positions.mask import BandMask
from rope_jax.rope import AnyScaling
from rope_jax.rope.settings import single_error


class ReRoPE(PositionMap):
    """ReRoPE: exact distances below w, the same distance w for all keys farther away.

    The author's code always multiplies queries by logn (`query_scale: {type: logn}`), without
    which its results do not hold. "auto" is 3L/4.
    """

    source: ClassVar[str] = "Su, kexue.fm/archives/9708, bojone/rerope"
    relative: ClassVar[str] = "d if d < w, else w"
    type: Literal["rerope"] = "rerope"
    window: AutoTokens = Field("auto", description="w, at most L − 1; auto: 3L/4")

    def resolved(self, window: int, length: int) -> dict[str, Any]:
        return {"window": max(1, 3 * window // 4)}

    def bands(self, window: int, length: int) -> tuple[MapBand, ...]:
        w = int(self.window)
        here = PositionFunction(chunk=1)
        far = MapBand(BandMask(nearest=w), PositionFunction(chunk=1, offset=w), here)
        return MapBand(BandMask(beyond=w)), far


class LeakyReRoPE(PositionMap):
    """Leaky ReRoPE: exact distances below w, distances that grow k times more slowly beyond.

    Like ReRoPE it is meant to be used with logn. "auto" sets w to 3L/4 and k to the smallest number
    that keeps n tokens inside the window, (n − 1 − w)/(L − 1 − w), rounded up to four digits.
    """

    source: ClassVar[str] = "Su, kexue.fm/archives/9708, bojone/rerope"
    relative: ClassVar[str] = "d if d < w, else w + (d − w)/k"
    type: Literal["leaky_rerope"] = "leaky_rerope"
    window: AutoTokens = Field("auto", description="w, at most L − 2; auto: 3L/4")
    k: Annotated[
        Literal["auto"] | Annotated[float, Field(ge=1, le=1e9)],
        single_error("should be auto or a number from 1 to 1e9"),
    ] = Field(
        "auto",
        description="how many times more slowly distances grow beyond w; auto: the smallest that "
        "keeps n tokens inside the window, (n − 1 − w)/(L − 1 − w)",
    )

    def resolved(self, window: int, length: int) -> dict[str, Any]:
        largest = window - 2
        w = max(1, min(3 * window // 4, largest)) if self.window == "auto" else self.window
        if self.k != "auto":
            return {"window": w}
        if window < 3:
            raise ValueError(f"type: needs a window of at least 3 tokens, not {window}")
        if w > largest:
            raise ValueError(f"window: {w:,} is too large; give at most {largest:,}")
        return {"window": w, "k": _rounded_up((length - 1 - w) / (window - 1 - w))}

    def bands(self, window: int, length: int) -> tuple[MapBand, ...]:
        w, k = int(self.window), float(self.k)
        return (MapBand(BandMask(beyond=w)), MapBand(BandMask(nearest=w), divisor=k, border=w))


class FarFrequencies(PositionMap):
    """Far frequencies: θ_m·d below w, θ'_m·d + (θ_m − θ'_m)·w beyond, continuous at w.

    θ' are the frequencies of any scaling, whose m acts on the far keys. θ' = θ/k (`pi`) is leaky
    ReRoPE, θ' = 0 ReRoPE, θ' = θ no map. The longest angle depends on θ', so
    the reach is not checked.
    """

    source: ClassVar[str] = "rope-jax"
    relative: ClassVar[str] = "by pair: d if d < w, else w + (d − w)·θ'/θ"
    stays_inside: ClassVar[bool] = False
    type: Literal["far_frequencies"] = "far_frequencies"
    window: AutoTokens = Field("auto", description="w, at most L − 1; auto: L/2")
    far: AnyScaling = Field(description="scaling that gives θ'; its factor is a number")

    @model_validator(mode="after")
    def _far_has_no_query_scale(self) -> "FarFrequencies":
        if self.far.query_scale is not None:
            raise ValueError("far.query_scale: has no effect there; give it beside the map")
        return self

    def resolved(self, window: int, length: int) -> dict[str, Any]:
        return {"window": max(1, window // 2)}

    def bands(self, window: int, length: int) -> tuple[MapBand, ...]:
        w = int(self.window)
        return (MapBand(BandMask(beyond=w)), MapBand(BandMask(nearest=w), border=w, far=self.far))


def _rounded_up(number: float) -> float:
    """Return the smallest number of four digits that is not below a number."""
    step = 10 ** (math.floor(math.log10(number)) - 3)
    return float(f"{math.ceil(number / step - 1e-9) * step:.4g}")
