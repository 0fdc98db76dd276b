"""`rerope` and `leaky_rerope`: exact distances nearby, constant or slower ones farther off."""

import math
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from rope_jax.positions.maps.base import (
    AutoTokens,
    MapBand,
    Places,
    PositionMap,
    check_least_window,
    resolved_number,
)
from rope_jax.positions.mask import BandMask
from rope_jax.rope.numbers import single_error


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
        return self.model_dump() | {"window": max(1, 3 * window // 4)}

    def bands(self, window: int, length: int) -> tuple[MapBand, ...]:
        w = resolved_number(self.window)
        here = Places(chunk=1)
        far = MapBand(BandMask(nearest=w), Places(chunk=1, offset=w), here)
        return MapBand(BandMask(beyond=w)), far

    def check_reach(self, window: int, length: int) -> None:
        if length > window:
            check_window(resolved_number(self.window), window, most=window - 1)


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
        auto = max(1, min(3 * window // 4, window - 2))
        w, k = auto if self.window == "auto" else resolved_number(self.window), self.k
        if k == "auto":
            check_window(w, window, most=window - 2)
            k = _rounded_up(_least_k(w, window, length))
        return self.model_dump() | {"window": w, "k": k}

    def bands(self, window: int, length: int) -> tuple[MapBand, ...]:
        w, k = resolved_number(self.window), float(self.k)
        return (MapBand(BandMask(beyond=w)), MapBand(BandMask(nearest=w), divisor=k, border=w))

    def check_reach(self, window: int, length: int) -> None:
        if length <= window:
            return
        check_least_window(window, 3)
        w, k, most = resolved_number(self.window), float(self.k), window - 2
        if w > most:
            # the largest w with which this k reaches; 0: there is none
            most = math.floor((k * (window - 1) - (length - 1)) / (k - 1)) if k > 1 else 0
        if most < 1:
            raise ValueError(
                f"window: {w:,} is too large for a window of {window:,} tokens; give at most "
                f"{window - 2:,}, and k: auto"
            )
        check_window(w, window, most=most)
        least = _least_k(w, window, length)
        if k < least:
            reach = math.floor(w + k * (window - 1 - w)) + 1
            raise ValueError(
                f"k: {k:g} reaches {reach:,} tokens, not {length:,}, before distances leave the "
                f"window of {window:,} tokens; give at least {_rounded_up(least):.4g}"
            )


def check_window(w: int, window: int, *, most: int) -> None:
    """ValueError if w is larger than `most`, which must be at least 1, in a window of L tokens."""
    check_least_window(window, window - most + 1)
    if w > most:
        raise ValueError(
            f"window: {w:,} is too large for a window of {window:,} tokens; give at most {most:,}"
        )


def _least_k(w: int, window: int, length: int) -> float:
    """Return the smallest k that keeps n > L tokens inside the window, for w at most L − 2."""
    return (length - 1 - w) / (window - 1 - w)


def _rounded_up(number: float) -> float:
    """Return the smallest number of four digits that is not below a number."""
    step = 10 ** (math.floor(math.log10(number)) - 3)
    return float(f"{math.ceil(number / step - 1e-9) * step:.4g}")
