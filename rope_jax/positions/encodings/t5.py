"""`t5`: a trained bias per head and bucket of distances."""

import functools
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from rope_jax.positions.encodings.base import Encoding, Params, Scores, Sizes
from rope_jax.rope.numbers import Whole


class T5Encoding(Encoding):
    """T5 bias: logits q·k/√H + b[n, bucket(i − j)], a trained number per head n and bucket.

    Each distance below buckets/2 is a bucket of its own; the others share the rest, see
    `t5_buckets`. All layers share b, as in T5. T5 itself does not divide q·k by √H.
    """

    source: ClassVar[str] = "Raffel et al., arXiv 1910.10683"
    uses_distances: ClassVar[bool] = True
    needs_interaction: ClassVar[bool] = True
    type: Literal["t5"] = "t5"
    buckets: Annotated[int, Whole] = Field(
        32, ge=2, le=512, description="number of biases per head, even"
    )
    max_distance: Annotated[int, Whole] = Field(
        128, gt=1, le=2**20, description="distance from which all keys share the last bucket"
    )

    @model_validator(mode="after")
    def _buckets_fit(self) -> "T5Encoding":
        if self.buckets % 2:
            raise ValueError(f"buckets: {self.buckets} is odd; half of them are single distances")
        if self.max_distance <= self.buckets // 2:
            raise ValueError(
                f"max_distance: {self.max_distance} is not above the {self.buckets // 2} distances "
                "that have a bucket of their own (buckets / 2); raise it or lower buckets"
            )
        return self

    def parameter_shapes(self, sizes: Sizes) -> dict[str, tuple[int, ...]]:
        return {"bias": (1, self.buckets, sizes.heads)}

    def layer_params(self, parameters: Params, positions: Any, pairs: int) -> Params:
        import jax.numpy as jnp

        buckets = t5_buckets(self.buckets, self.max_distance)
        return {"by_distance": jnp.take(parameters["bias"], buckets, axis=1).swapaxes(1, 2)}

    @property
    def scores(self) -> Scores:
        from rope_jax.positions.interaction import plus_by_distance

        return plus_by_distance


@functools.cache
def t5_buckets(buckets: int, max_distance: int) -> np.ndarray:
    """Return the bucket of every distance 0 … max_distance, int32 [max_distance + 1].

    With e = buckets/2: Δ for Δ < e, then min(buckets − 1, e + ⌊e·ln(Δ/e) / ln(max_distance/e)⌋), as
    `_relative_position_bucket` of T5's code does for causal attention. Whole numbers are compared,
    since rounded logarithms can miss a border: bucket e + k begins at the first Δ with
    Δ^e ≥ max_distance^k · e^(e − k).
    """
    exact = buckets // 2
    borders = []
    for k in range(1, exact):
        border = max_distance**k * exact ** (exact - k)
        first = round(exact * (max_distance / exact) ** (k / exact))
        while first**exact >= border:
            first -= 1
        while first**exact < border:
            first += 1
        borders.append(first)
    distances = np.arange(max_distance + 1)
    logarithmic = exact + np.searchsorted(borders, distances, side="right")
    found = np.where(distances < exact, distances, logarithmic).astype(np.int32)
    found.flags.writeable = False  # it is cached
    return found
