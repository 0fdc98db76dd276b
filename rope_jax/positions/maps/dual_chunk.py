"""`dual_chunk`: positions that restart in every chunk of the text."""

import math
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from rope_jax.positions.maps.base import AutoTokens, MapBand, Places, PositionMap
from rope_jax.positions.mask import BandMask


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
        if "auto" not in (self.chunk, self.local):
            s, w = int(self.chunk), int(self.local)
            if w >= s:
                raise ValueError(f"local: {w:,} leaves no chunk of {s:,}; give at most {s - 1:,}")
        return self

    def resolved(self, window: int, length: int) -> dict[str, Any]:
        s = max(2, 3 * window // 4) if self.chunk == "auto" else self.chunk
        w = max(1, min(window // 8, s - 1)) if self.local == "auto" else self.local
        return self.model_dump() | {"chunk": s, "local": w}

    def bands(self, window: int, length: int) -> tuple[MapBand, ...]:
        s = int(self.chunk)
        c = s - int(self.local)
        m = 0.05 * math.log(length / window) + 1 if length > window else 1.0
        within = Places(chunk=c)
        same = BandMask(beyond=c, chunk=c, chunks_back=(0, 0))
        before = BandMask(nearest=1, beyond=2 * c, chunk=c, chunks_back=(1, 1))
        older = BandMask(nearest=c + 1, chunk=c, chunks_back=(2, None))
        last = Places(chunk=1, offset=min(2 * c - 1, s))
        return (
            MapBand(same, within, within, attention_factor=m),
            MapBand(before, Places(chunk=c, offset=c, cap=s), within, attention_factor=m),
            MapBand(older, last, within, attention_factor=m),
        )
