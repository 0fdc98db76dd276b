"""`fitted`: a map whose params were found by gradient descent, for each layer and head."""

from typing import Annotated, ClassVar, Literal, TypeVar

import numpy as np
from pydantic import Field

from rope_jax.positions.maps.base import MAX_TOKENS, MapBand, PositionMap
from rope_jax.positions.mask import BandMask
from rope_jax.rope import RotaryLayers
from rope_jax.rope.settings import Positive, Whole

_Finite = Annotated[float, Field(allow_inf_nan=False)]
# Above π radians per token a frequency looks like a slower one that rotates the other way.
_Frequency = Annotated[float, Field(ge=-np.pi, le=np.pi)]


Number = TypeVar("Number")
_List = Annotated[tuple[Number, ...], Field(strict=False, min_length=1)]
# [layers][heads]
_ByHead = _List[_List[Number]]

_OF_FAR = ("far_inv_freq", "far_phase", "far_amplitude")
_BY_PAIR = ("near_inv_freq", *_OF_FAR)
_NUMBERS = (*_BY_PAIR, "attention_factor", "scale_s", "scale_p", "bias")
_OF_KEYS = ("near_inv_freq", "attention_factor", "far_inv_freq")


class FittedMap(PositionMap):
    """Numbers found by `rope-jax fit`, by band of distances and, if wanted, layer and head.

    In a band, pair m's share of the logit of a key at distance d is that of the angle θ'·d + φ,
    times a. A bias by head and distance is added to logits, and a query scale by head multiplies
    queries. `rope-jax fit` writes such maps; nobody writes them by hand.
    """

    source: ClassVar[str] = "rope-jax"
    relative: ClassVar[str] = "by pair, head and band: (θ'·d + φ)/θ"
    stays_inside: ClassVar[bool] = False
    written_by: ClassVar[str] = "rope-jax fit"
    type: Literal["fitted"] = "fitted"
    train_length: Annotated[int, Whole] = Field(
        ge=2, le=MAX_TOKENS, description="L of the model that the numbers were fitted for"
    )
    borders: Annotated[tuple[Annotated[int, Field(ge=1), Whole], ...], Field(strict=False)] = Field(
        (), description="distances at which the far bands begin, ascending"
    )
    near_inv_freq: _ByHead[_List[_Frequency]] | None = Field(
        None,
        description="θ' below the first border, [layers or 1][key-value heads or 1][pairs], "
        "radians per token; null: that of the scaling",
    )
    attention_factor: _ByHead[Positive] | None = Field(
        None, description="m, [layers or 1][key-value heads or 1]; null: that of the scaling"
    )
    far_inv_freq: _List[_ByHead[_List[_Frequency]]] | None = Field(
        None, description="θ' of each far band, [bands][layers or 1][key-value heads or 1][pairs]"
    )
    far_phase: _List[_ByHead[_List[_Finite]]] | None = Field(
        None, description="φ of each far band in radians, [bands][layers or 1][heads or 1][pairs]"
    )
    far_amplitude: _List[_ByHead[_List[Positive]]] | None = Field(
        None, description="a of each far band, [bands][layers or 1][heads or 1][pairs]; null: 1"
    )
    scale_s: _ByHead[Positive] | None = Field(
        None,
        description="s of the query scale s·max(1, ln n / ln L)^p, [layers or 1][heads or 1]; "
        "null: the scaling's own query scale",
    )
    scale_p: _ByHead[_Finite] | None = Field(
        None, description="p of the query scale, [layers or 1][heads or 1]"
    )
    bias: _ByHead[_List[_Finite]] | None = Field(
        None,
        description="added to logits, [layers or 1][heads][knots], at distances borders[0]·2^k; "
        "linear in ln d between them, 0 below the first; null: 0",
    )

    # not cached: pydantic compares what is cached as well, and arrays have no single truth value
    @property
    def params(self) -> dict[str, np.ndarray]:
        """The numbers given, as float64 arrays by field."""
        given = ((name, getattr(self, name)) for name in _NUMBERS)
        return {name: np.array(x, np.float64) for name, x in given if x is not None}

    def _by_layer(self) -> dict[str, np.ndarray]:
        """Return the numbers with the axis of layers first; of the far bands, those of one."""
        return {name: x[0] if name in _OF_FAR else x for name, x in self.params.items()}

    def bands(self, window: int, length: int) -> tuple[MapBand, ...]:
        """Return the bands without their params."""
        if not self.borders:
            return (MapBand(BandMask()),)
        ends = (*self.borders[1:], None)
        far = [BandMask(nearest=b, beyond=e) for b, e in zip(self.borders, ends, strict=True)]
        return (MapBand(BandMask(beyond=self.borders[0])), *map(MapBand, far))

    def has_effect(self, window: int, length: int) -> bool:
        near = (self.near_inv_freq, self.attention_factor, self.scale_s)
        return any(x is not None for x in near) or any(b < length for b in self.borders)

    def check_layers(self, layers: RotaryLayers) -> None:
        pairs = layers.geometry.rotary_dim // 2
        for name, x in self._by_layer().items():
            _check_size(name, "layers", len(x), 1, layers.count)
            if name in _BY_PAIR and x.shape[-1] != pairs:
                raise ValueError(
                    f"{name}: has numbers for {x.shape[-1]} pairs, and the model rotates {pairs} "
                    f"(rotary_dim {2 * pairs}); it was fitted for another model"
                )
        if self.train_length != layers.geometry.train_length:
            raise ValueError(
                f"train_length: was fitted for a model trained at {self.train_length:,} tokens, "
                f"not {layers.geometry.train_length:,}"
            )

    @property
    def differs_by_head(self) -> bool:
        return any(x.shape[1] > 1 for x in self._by_layer().values())

    def check_heads(self, heads: int, kv_heads: int) -> None:
        for name, x in self._by_layer().items():
            wanted = kv_heads if name in _OF_KEYS else heads
            _check_size(name, "heads", x.shape[1], wanted if name == "bias" else 1, wanted)

    @property
    def shown_settings(self) -> dict[str, str]:
        borders = {"borders": "-".join(map(str, self.borders))} if self.borders else {}
        return borders | {"numbers": str(sum(x.size for x in self.params.values()))}


def _check_size(name: str, axis: str, size: int, *sizes: int) -> None:
    """ValueError unless the model's size, which is the last of `sizes`, or another fits."""
    if size not in sizes:
        raise ValueError(
            f"{name}: has numbers for {size} {axis}, and the model has {sizes[-1]}; "
            "it was fitted for another model"
        )
