"""`self_extend`: exact distances nearby, positions in groups farther off."""

import math
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from rope_jax.positions.maps.base import AutoTokens, MapBand, Places, PositionMap, resolved_number
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
            w, g = resolved_number(self.window), resolved_number(self.group)
            if w % g:
                near = max(divisor for divisor in _divisors(w) if divisor < g)
                raise ValueError(
                    f"group: {g:,} does not divide window {w:,}; {near:,} does, and so does "
                    f"{g:,} with window {-(-w // g) * g:,}"
                )
        return self

    def resolved(self, window: int, length: int) -> dict[str, Any]:
        half = max(1, window // 2)
        if self.group == "auto":
            w = _divisible(half) if self.window == "auto" else resolved_number(self.window)
            divisors = _divisors(w)
            g = next((g for g in divisors if _largest(w, g, length) < window), divisors[-1])
        else:
            g = resolved_number(self.group)
            w = max(g, half // g * g)
        return self.model_dump() | {"window": w, "group": g}

    def bands(self, window: int, length: int) -> tuple[MapBand, ...]:
        w, g = resolved_number(self.window), resolved_number(self.group)
        far = MapBand(BandMask(nearest=w), Places(group=g, offset=w - w // g), Places(group=g))
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
    exponents = range(w.bit_length() - 1, -1, -1)
    return next(w >> a << a for a in exponents if w >> a << a >= 7 * w // 8)
