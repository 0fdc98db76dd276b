"""Protocols of perplexity: which windows are read, and which of their tokens are scored.

To add one, write a file here with a subclass of `TilingProtocol` and list it below;
docs/add-a-protocol.md shows how.
"""

from collections.abc import Mapping

from rope_jax.protocols.base import Protocol
from rope_jax.protocols.same_tokens import SameTokens
from rope_jax.protocols.tiling import (
    PerPosition,
    Sliding,
    Tiles,
    TilingProtocol,
    WholeWindow,
    YarnCompat,
)

__all__ = ["BASELINE", "PROTOCOLS", "Protocol", "Tiles", "TilingProtocol"]

_ALL: tuple[type[Protocol], ...] = (SameTokens, WholeWindow, Sliding, PerPosition, YarnCompat)
PROTOCOLS: Mapping[str, type[Protocol]] = {protocol.name: protocol for protocol in _ALL}
"""The class of each protocol, by the name that a sweep's `protocols` gives it."""
BASELINE = SameTokens.name
"""The protocol whose targets are the same at every length, so that only its curves can be compared
with the baseline: `trained` at the window, which is what truncation gives."""
