"""`self_extend`: exact distances nearby, positions in groups farther off."""

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from rope_jax.positions.maps.base import (
    AutoTokens,
    MapBand,
    Places,
    PositionMap,
    resolved_number,
)
from rope_jax.positions.visible import Visible


class SelfExtend(PositionMap):
    """Self-Extend: exact distances below W; beyond, distances between groups of G tokens.

    G must divide W: otherwise the authors' code differs between reading a prompt and generating.
    The offset of the groups depends on i itself, so positions restart in every window. "auto" is
    W = L/2 and the smallest divisor G of W that keeps n tokens inside the window; W is lowered to
    a multiple of a power of two where no divisor does.
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
                near = max(divisor for divisor in range(1, min(g, w) + 1) if w % divisor == 0)
                raise ValueError(
                    f"group: {g:,} does not divide window {w:,}; {near:,} does, and so does "
                    f"{g:,} with window {-(-w // g) * g:,}"
                )
        return self

    def resolved(self, window: int, length: int) -> dict[str, Any]:
        w, g = self.window, self.group
        if w == "auto":
            w = max(1, window // 2) if g == "auto" else max(g, window // 2 // g * g)
            if g == "auto":
                # a window with many divisors: 2^a · b with the largest a of those at least 7/8 as long
                candidates = range(max(1, 7 * w // 8), w + 1)
                w = max(candidates, key=lambda candidate: (candidate & -candidate, candidate))
        if g == "auto":
            divisors = [g for g in range(1, w + 1) if w % g == 0]
            g = next((g for g in divisors if _largest(w, g, length) < window), divisors[-1])
        return self.model_dump() | {"window": w, "group": g}

    def bands(self, window: int, length: int) -> tuple[MapBand, ...]:
        w, g = resolved_number(self.window), resolved_number(self.group)
        far = MapBand(Visible(nearest=w), Places(group=g, offset=w - w // g), Places(group=g))
        return MapBand(Visible(beyond=w)), far

    def check_reach(self, window: int, length: int) -> None:
        w, g = resolved_number(self.window), resolved_number(self.group)
        if length <= window or _largest(w, g, length) < window:
            return
        reach = [d for d in range(1, w + 1) if w % d == 0 and _largest(w, d, length) < window]
        advice = f"give group {reach[0]:,}" if reach else "no group reaches it; give another window"
        raise ValueError(
            f"group: {g:,} with window {w:,} puts the first of {length:,} tokens at distance "
            f"{_largest(w, g, length):,}, outside the trained window of {window:,}; {advice}"
        )


def _largest(w: int, g: int, length: int) -> int:
    """Return the largest relative position in a text of n tokens."""
    return max(min(length, w) - 1, (length - 1) // g + w - w // g if length > w else 0)
