"""`over`: a strategy that acts on the frequencies of a model with a scaling of its own."""

from types import ModuleType
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Union

import numpy as np
from jaxtyping import Float32
from pydantic import Field, model_validator

from rope_jax.rope.angles import Positions
from rope_jax.rope.geometry import AnyArray, RotaryGeometry, SeqLen
from rope_jax.rope.settings import Whole, validated
from rope_jax.rope.strategies.base import Lengths, Scaled, Scaling, WithInner
from rope_jax.rope.strategies.inner import BucketedScaling, ResonanceScaling
from rope_jax.rope.strategies.registry import PLAIN

if TYPE_CHECKING:
    AnyInner = Scaling
    AnyTrained = Scaling
else:
    _INNER = (*PLAIN, ResonanceScaling, BucketedScaling)
    AnyInner = Annotated[Union[*_INNER], Field(discriminator="type")]
    AnyTrained = Annotated[Union[*_INNER, "OverScaling"], Field(discriminator="type")]


class OverScaling(WithInner):
    """A strategy on the frequencies that a model was trained with, and on its window.

    The inner strategy's formula with θ_i = θ_i(trained) for a text as long as the window, and L the
    window: PI gives θ_i/s, NTK-aware θ_i·s^(−2i/(d−2)), another base b' θ_i·(b'/b)^(−2i/d). By
    parts and YaRN count the turns of θ_i in the window. m is the inner strategy's times the trained
    one. A trained query scale stays.

    Over no scaling and a window of L tokens it is the inner strategy, to the last digit.
    """

    source: ClassVar[str] = "this project's"
    follows_length: ClassVar[str] = "as inner"
    type: Literal["over"] = "over"
    inner: AnyInner = Field(description="the strategy that acts on the trained frequencies")
    trained: AnyTrained = Field(description="the scaling that the model was trained with")
    window: Annotated[int, Whole] = Field(
        ge=1, description="tokens that it was last trained at; L of the inner strategy"
    )
    layers: Literal["global", "all"] = Field(
        "global", description="all: also layers with a scaling of their own, each over its own"
    )

    @model_validator(mode="after")
    def _parts_fit(self) -> "OverScaling":
        if self.inner.replaces_frequencies and self.inner.type != "none":
            raise ValueError(
                f"inner: {self.inner.type} chooses all frequencies anew, so it acts on none that "
                "were trained"
            )
        trained = self.trained.query_scale
        if trained is not None and self.query_scale not in (None, trained):
            raise ValueError(
                f"query_scale: the model was trained with one ({trained.type}), which stays; "
                "leave this one out"
            )
        self.__dict__["query_scale"] = self.query_scale or trained
        return self

    @property
    def replaces_frequencies(self) -> bool:
        return True

    @property
    def longest_extension(self) -> float:
        return self.inner.longest_extension * self.trained.longest_extension

    def trained_geometry(self, geometry: RotaryGeometry) -> tuple[RotaryGeometry, float]:
        """Return the geometry with the trained frequencies, and with L the window; and m."""
        inv_freq, m = self.trained.host_frequencies(geometry, self.window)
        is_plain = np.array_equal(inv_freq, geometry.inv_freq())
        trained = geometry.trained if is_plain else tuple(inv_freq.tolist())
        made = RotaryGeometry(geometry.rotary_dim, geometry.base, self.window, trained)
        return made, float(np.asarray(m))

    def scaled(self, geometry: RotaryGeometry) -> tuple[np.ndarray, float]:
        over, trained_m = self.trained_geometry(geometry)
        inv_freq, m = self.inner.scaled(over)
        return inv_freq, m * trained_m

    def scaled_at(self, geometry: RotaryGeometry, length: Lengths, xp: ModuleType) -> Scaled:
        over, trained_m = self.trained_geometry(geometry)
        inv_freq, m = self.inner.scaled_at(over, length, xp)
        return inv_freq, m * trained_m

    def check(
        self, geometry: RotaryGeometry, seq_len: SeqLen = None, head_dim: int | None = None
    ) -> None:
        self.trained.check(geometry, self.window, head_dim)
        trained, _ = self.trained_geometry(geometry)
        if not trained.inv_freq().any() and self.inner.type != "drope":
            raise ValueError(
                f"over: no pair of the trained {self.trained.type} rotates, so {self.inner.type} "
                "has no frequency to act on; over: base replaces it"
            )
        self.inner.check(trained, seq_len, head_dim)

    def query_scale_at(
        self, geometry: RotaryGeometry, positions: Positions
    ) -> Float32[AnyArray, "*#batch T"]:
        if self.trained.query_scale is not None:  # whose L is the original one
            return self.trained.query_scale_at(geometry, positions)
        return super().query_scale_at(self.trained_geometry(geometry)[0], positions)

    def for_layer(self, layer: int, layers: int) -> "OverScaling":
        parts = {x: getattr(self, x).for_layer(layer, layers) for x in ("inner", "trained")}
        return self.model_copy(update=parts)

    def where_trained(self, scaling: Scaling | None) -> Scaling:
        """Return what a layer reads with; one that does not rotate stays so."""
        if scaling is None:
            return self
        if self.layers == "global" or scaling.type == "drope":
            return scaling
        return over(self.inner, scaling, self.window)


def over(inner: Scaling, trained: Scaling, window: int, layers: str = "global") -> OverScaling:
    """Return `inner` on the frequencies of `trained`; ValueError if the two do not fit."""
    settings = {
        "inner": inner.model_copy(update={"query_scale": None}),
        "query_scale": inner.query_scale,
        "trained": trained,
        "window": window,
        "layers": layers,
    }
    return validated(OverScaling, settings)
