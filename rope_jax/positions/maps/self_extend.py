"""`self_extend`, `dual_chunk`, `string`: exact distances nearby, smaller ones farther off."""

import math
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from rope_jax.positions.maps.base import AutoTokens, MapBand, PositionFunction, PositionMap
from rope_jax.positions.mask import BandMask


class SelfExtend(PositionMap):
    """Self-Extend: exact distances below W; beyond, distances between groups of G tokens.

    G must divide W: otherwise the authors' code differs between reading a prompt and generating.
    The offset of the groups depends on i itself, so positions restart in every window. "auto" is
    W = L/2 and the smallest divisor G of W that keeps n tokens inside the window, W being lowered
    where no divisor does.
    """

    source: ClassVar[str] = "Jin et al., arXiv 2401.01325, datamllab/LongLM"
    relative: ClassVar[str] = "d if d < W, else ⌊i/G⌋ − ⌊j/G⌋ + W − W/G"
    type: Literal["self_extend"] = "self_extend"
    window: AutoTokens = Field("auto", description="W, a multiple of G; auto: L/2")
    group: AutoTokens = Field(
        "auto", description="G, tokens per group; auto: the smallest divisor of W that reaches n"
    )

    @model_validator(mode="after")
    def _group_divides_window(self) -> "SelfExtend":
        if "auto" not in (self.window, self.group):
            w, g = int(self.window), int(self.group)
            if w % g:
                near = max(divisor for divisor in _divisors(w) if divisor < g)
                raise ValueError(
                    f"group: {g:,} does not divide window {w:,}; {near:,} does, and so does "
                    f"{g:,} with window {-(-w // g) * g:,}"
                )
        return self

    def resolved(self, window: int, length: int) -> dict[str, Any]:
        half, g = max(1, window // 2), self.group
        if g != "auto":
            return {"window": max(g, half // g * g)}
        w = _divisible(half) if self.window == "auto" else self.window
        divisors = _divisors(w)
        g = next((g for g in divisors if _largest(w, g, length) < window), divisors[-1])
        return {"window": w, "group": g}

    def bands(self, window: int, length: int) -> tuple[MapBand, ...]:
        w, g = int(self.window), int(self.group)
        far = MapBand(
            BandMask(nearest=w),
            PositionFunction(group=g, offset=w - w // g),
            PositionFunction(group=g),
        )
        return MapBand(BandMask(beyond=w)), far


def _largest(w: int, g: int, length: int) -> int:
    """Return the largest relative position in a text of n tokens."""
    return max(min(length, w) - 1, (length - 1) // g + w - w // g if length > w else 0)


def _divisors(w: int) -> list[int]:
    """Return all divisors of w, ascending."""
    small = [d for d in range(1, math.isqrt(w) + 1) if w % d == 0]
    return sorted({*small, *(w // d for d in small)})


def _divisible(w: int) -> int:
    """Return, of the numbers from 7w/8 to w, the one that most powers of 2 divide."""
    power = 1
    while w // (2 * power) * (2 * power) >= max(1, 7 * w // 8):
        power *= 2
    return w // power * power


class DualChunk(PositionMap):
    """Dual chunk attention: exact distances within a chunk of c = s − w tokens and just before it.

    r is not monotonic in d, and it depends on i itself, so positions restart in every window. For
    n > L, m is multiplied by 0.05·ln(n/L) + 1, as in vLLM. "auto" is s = 3L/4 and w = L/8.
    """

    source: ClassVar[str] = "An et al., arXiv 2402.17463, HKUNLP/ChunkLlama; vLLM"
    relative: ClassVar[str] = (
        "same chunk: d; the one before: min(i mod c + c, s) − j mod c; older: "
        "min(2c − 1, s) − j mod c"
    )
    type: Literal["dual_chunk"] = "dual_chunk"
    chunk: AutoTokens = Field("auto", description="s, the largest position; auto: 3L/4")
    local: AutoTokens = Field(
        "auto", description="w, tokens of the chunk before seen at exact distances; auto: L/8"
    )

    @model_validator(mode="after")
    def _local_is_less_than_chunk(self) -> "DualChunk":
        if self.chunk != "auto" and self.chunk < 2:
            raise ValueError("chunk: should be auto or a whole number from 2")
        if "auto" not in (self.chunk, self.local):
            s, w = int(self.chunk), int(self.local)
            if w >= s:
                raise ValueError(f"local: {w:,} leaves no chunk of {s:,}; give at most {s - 1:,}")
        return self

    def resolved(self, window: int, length: int) -> dict[str, Any]:
        s = max(2, 3 * window // 4) if self.chunk == "auto" else self.chunk
        return {"chunk": s, "local": max(1, min(window // 8, s - 1))}

    def bands(self, window: int, length: int) -> tuple[MapBand, ...]:
        s = int(self.chunk)
        c = s - int(self.local)
        m = 0.05 * math.log(length / window) + 1 if length > window else 1.0
        within = PositionFunction(chunk=c)
        same = BandMask(beyond=c, chunk=c, chunks_back=(0, 0))
        before = BandMask(nearest=1, beyond=2 * c, chunk=c, chunks_back=(1, 1))
        older = BandMask(nearest=c + 1, chunk=c, chunks_back=(2, None))
        last = PositionFunction(chunk=1, offset=min(2 * c - 1, s))
        return (
            MapBand(same, within, within, attention_factor=m),
            MapBand(before, PositionFunction(chunk=c, offset=c, cap=s), within, attention_factor=m),
            MapBand(older, last, within, attention_factor=m),
        )


class STRING(PositionMap):
    """STRING: exact distances below S; beyond, distances smaller by S − W.

    Meant for texts inside the window, whose longest distances are trained least: n tokens leave
    the window for n > L + S − W. "auto" is S = L/3 and W = L/32, the authors' 128 at 4,096, for
    every length above W + S.
    """

    source: ClassVar[str] = "An et al., arXiv 2410.18745, HKUNLP/STRING"
    relative: ClassVar[str] = "d if d < S, else d − S + W"
    stays_inside: ClassVar[bool] = False
    acts_inside: ClassVar[bool] = True
    type: Literal["string"] = "string"
    shift: AutoTokens = Field("auto", description="S, from which distance on keys move; auto: L/3")
    local: AutoTokens = Field("auto", description="W, the distance they move to; auto: L/32")

    @model_validator(mode="after")
    def _local_is_at_most_shift(self) -> "STRING":
        if "auto" not in (self.shift, self.local):
            s, w = int(self.shift), int(self.local)
            if w > s:
                raise ValueError(f"local: {w:,} is more than shift {s:,}; give at most {s:,}")
        return self

    def resolved(self, window: int, length: int) -> dict[str, Any]:
        s = max(1, window // 3) if self.shift == "auto" else self.shift
        return {"shift": s, "local": max(1, min(window // 32, s))}

    def bands(self, window: int, length: int) -> tuple[MapBand, ...]:
        s, w = int(self.shift), int(self.local)
        return MapBand(BandMask(beyond=s)), MapBand(
            BandMask(nearest=s), PositionFunction(offset=w - s)
        )
