"""`streaming` and `lm_infinite`: the first tokens and the most recent ones, nothing between."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from rope_jax.positions.maps.base import (
    MAX_TOKENS,
    AutoTokens,
    MapBand,
    PositionFunction,
    PositionMap,
)
from rope_jax.positions.mask import BandMask
from rope_jax.rope.settings import Whole

Sinks = Annotated[int, Field(ge=0, le=MAX_TOKENS), Whole]


class Streaming(PositionMap):
    """StreamingLLM: the first S tokens and the last R, at the positions they have in the cache.

    A query sees R + S + 1 keys, its own included, exactly as with token-by-token eviction.
    """

    source: ClassVar[str] = "Xiao et al., arXiv 2309.17453, mit-han-lab/streaming-llm"
    relative: ClassVar[str] = "d if d ≤ R; the first S: min(i, S + R) − j"
    type: Literal["streaming"] = "streaming"
    sinks: Sinks = Field(4, description="S, first tokens that stay visible")
    recent: AutoTokens = Field("auto", description="R, tokens before the query; auto: L − S − 1")

    def resolved(self, window: int, length: int) -> dict[str, Any]:
        return {"recent": max(1, window - self.sinks - 1)}

    def bands(self, window: int, length: int) -> tuple[MapBand, ...]:
        s, r = self.sinks, int(self.recent)
        local = MapBand(BandMask(beyond=r + 1))
        if not s:
            return (local,)
        return local, MapBand(BandMask(nearest=r + 1, first=s), PositionFunction(cap=s + r))


class LMInfinite(PositionMap):
    """LM-Infinite: the last B tokens at their distances, and the first G at distance B.

    "auto" is B = L − 1, the largest trained distance; the authors write B = L.
    """

    source: ClassVar[str] = "Han et al., arXiv 2308.16137"
    relative: ClassVar[str] = "d if d < B; the first G: B"
    type: Literal["lm_infinite"] = "lm_infinite"
    sinks: Sinks = Field(10, description="G, first tokens that stay visible")
    recent: AutoTokens = Field(
        "auto", description="B, tokens up to the query's own, at most L − 1; auto: L − 1"
    )

    def resolved(self, window: int, length: int) -> dict[str, Any]:
        return {"recent": max(1, window - 1)}

    def bands(self, window: int, length: int) -> tuple[MapBand, ...]:
        g, b = self.sinks, int(self.recent)
        local = MapBand(BandMask(beyond=b))
        if not g:
            return (local,)
        far = BandMask(nearest=b, first=g)
        return local, MapBand(far, PositionFunction(chunk=1, offset=b), PositionFunction(chunk=1))
