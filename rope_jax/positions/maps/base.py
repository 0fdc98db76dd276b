"""The base class of every position map, and the parts that a map consists of."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float64, Int, Int64
from pydantic import Field

from rope_jax.positions.mask import BandMask
from rope_jax.rope import RotaryLayers, Scaling
from rope_jax.rope.geometry import AnyArray
from rope_jax.rope.settings import Settings, Whole, single_error, validated

# Of r(i, j): an automatic k is rounded to four digits, and r is the sum of two floats.
_ROUNDING = 1e-6
# The sum of any two settings must fit into 32 bits, as JAX's integers do.
MAX_TOKENS = 10**9
AutoTokens = Annotated[
    Literal["auto"] | Annotated[int, Field(ge=1, le=MAX_TOKENS), Whole],
    single_error(f"should be auto or a whole number from 1 to {MAX_TOKENS}"),
]
"""The type of a setting in tokens: a whole number, or "auto"."""


@dataclass(frozen=True)
class PositionFunction:
    """An integer function of a token's position p: min(⌊(p mod chunk) / group⌋ + offset, cap).

    None: no modulus, no cap. A chunk of 1 gives the constant `offset`.
    """

    chunk: int | None = None
    group: int = 1
    offset: int = 0
    cap: int | None = None

    def __call__(self, positions: Int[AnyArray, "*shape"]) -> Int[AnyArray, "*shape"]:
        """Return the function's values, of the positions' dtype."""
        moved = positions if self.chunk is None else positions % self.chunk
        if self.group > 1:
            moved = moved // self.group
        moved = moved + self.offset
        return moved if self.cap is None else moved.clip(max=self.cap)


UNMOVED = PositionFunction()


@dataclass(frozen=True)
class MapBand:
    """One band of a map: which keys, and the relative position at which a query sees them.

        r(i, j) = (f(i) − g(j)) / divisor + border · (1 − 1 / divisor)

    mask:     which keys these are.
    query, key: f and g.
    divisor:  of the frequencies; angles rather than positions are divided, so positions stay exact.
    border:   the distance at which the divided frequencies take over from the others; 0: none.
    far:      a scaling whose frequencies replace the divided ones.
    attention_factor: multiplies m.
    """

    mask: BandMask
    query: PositionFunction = UNMOVED
    key: PositionFunction = UNMOVED
    divisor: float = 1.0
    border: int = 0
    far: Scaling | None = None
    attention_factor: float = 1.0


class PositionMap(Settings):
    """Settings of one map. A docstring's first line is its entry in docs/positions.md.

    Notation: i and j are positions of a query and a key, d = i − j, L is the trained window and n
    the text's length. Settings that are "auto" follow from L and n; with them, a text of at most L
    tokens is read as without a map.
    """

    relative: ClassVar[str]
    """r(i, j), in the words of the table in docs/positions.md."""
    stays_inside: ClassVar[bool] = True
    """Whether it is meant to keep relative positions below L, which a sweep then checks."""
    acts_inside: ClassVar[bool] = False
    """Whether "auto" stands for a map also in texts of n ≤ L tokens."""
    written_by: ClassVar[str] = ""
    """The script that finds the map's params; empty: people choose its settings."""

    @property
    def is_auto(self) -> bool:
        """Whether any setting follows from the trained window and the length."""
        return any(value == "auto" for _, value in self)

    def at(self, window: int, length: int) -> "PositionMap | None":
        """Return the map with every "auto" resolved at L and n; None if it has one and n ≤ L.

        ValueError: what follows from L does not go with the setting that the message names.
        """
        if not self.is_auto:
            return self
        if length <= window and not self.acts_inside:
            return None
        settings, resolved = self.model_dump(), self.resolved(window, length)
        settings |= {name: x for name, x in resolved.items() if settings[name] == "auto"}
        try:
            return validated(type(self), settings)
        except ValueError as error:
            raise ValueError(f"{error} (at a trained window of {window:,})") from None

    def resolved(self, window: int, length: int) -> dict[str, Any]:
        """Return what "auto" stands for at L and n, by setting; those that are given stay."""
        return {}

    def bands(self, window: int, length: int) -> tuple[MapBand, ...]:
        """Return the bands of a map without "auto"; the first one holds d = 0."""
        raise NotImplementedError(f"{type(self).__name__} has no bands")

    def check_reach(self, window: int, length: int) -> None:
        """ValueError if n tokens leave the window L.

        window: L, or the longer window that a scaling provides.
        """
        if not self.stays_inside or length <= window:
            return
        # that of the last query, which no earlier one exceeds
        query, keys = np.array([length - 1]), np.arange(length)
        reach = float(np.nanmax(relative_positions(self.bands(window, length), query, keys)))
        if reach < window - 1 + _ROUNDING:
            return
        shown = self.shown_settings
        raise ValueError(
            f"{', '.join(shown)}: {', '.join(shown.values())} put the first of {length:,} tokens "
            f"at distance {reach:,.6g}, outside the window of {window:,} tokens; give others, "
            "or auto"
        )

    def check_layers(self, layers: RotaryLayers) -> None:
        """ValueError, which begins with a key of the map, if it was made for other layers."""

    @property
    def differs_by_head(self) -> bool:
        """Whether it has params for each head, so that devices cannot share the heads."""
        return False

    def check_heads(self, heads: int, kv_heads: int) -> None:
        """ValueError, which begins with a key of the map, if it was made for other heads."""

    def has_effect(self, window: int, length: int) -> bool:
        """Whether the last of n tokens sees any key otherwise than without a map.

        Frequencies and an m of a band's own count as an effect.
        """
        exact = tuple(
            band
            for band in self.bands(window, length)
            if band.far is None and band.divisor == 1 and band.attention_factor == 1
        )
        keys = np.arange(length)
        return bool((relative_positions(exact, keys[-1:], keys)[0] != keys[::-1]).any())

    @property
    def shown_settings(self) -> dict[str, str]:
        """The settings as text, such as {"window": "96", "k": "18.3"}."""
        shown: dict[str, str] = {}
        for name, value in self:
            if isinstance(value, Scaling):
                factor = value.extension_factor
                shown[name] = value.type if factor is None else f"{value.type}-{factor:.4g}"
            elif name != "type":
                shown[name] = f"{value:.4g}" if isinstance(value, float) else str(value)
        return shown

    @property
    def label(self) -> str:
        """The type and all settings, such as "leaky_rerope+window=96+k=18.3"."""
        return "+".join([self.type, *(f"{k}={v}" for k, v in self.shown_settings.items())])

    @property
    def settings_text(self) -> str:
        """All settings in words, such as "window 96, k 18.3"."""
        return ", ".join(f"{name} {value}" for name, value in self.shown_settings.items())


def relative_positions(
    bands: tuple[MapBand, ...], queries: Int64[np.ndarray, " T"], keys: Int64[np.ndarray, " S"]
) -> Float64[np.ndarray, "T S"]:
    """Return r(i, j) for every query and key position of one document; NaN where it sees no key.

    ValueError: a band has frequencies of its own, for which no single r exists.
    """
    relative = np.full((queries.size, keys.size), np.nan)
    distance = queries[:, None] - keys[None]
    for band in bands:
        if band.far is not None:
            raise ValueError("far: has its own frequencies, so r(i, j) differs from pair to pair")
        visible = band.mask.by_distance(distance) & band.mask.by_document_position(queries, keys)
        steps = band.query(queries)[:, None] - band.key(keys)[None]
        r = steps / band.divisor + band.border * (1 - 1 / band.divisor)
        relative = np.where(visible, r, relative)
    return relative


def first_changed_distance(bands: tuple[MapBand, ...], length: int) -> int | None:
    """Return the smallest distance at which a map changes how, or whether, a key is seen.

    It is the end of the first band, or 0 if that is not like plain RoPE; None if no key of a text
    of n tokens is that far away.
    """
    near = bands[0]
    end = near.mask.beyond
    if near != MapBand(BandMask(beyond=end)):
        return 0
    return None if end is None or end >= length else end
