"""`alibi`, `t5`, `kerple`: a bias on the logits, by distance."""

import bisect
import functools
import math
from typing import Annotated, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float64, Int32, Key
from pydantic import Field, model_validator

from rope_jax.positions.encodings.base import Encoding, Positions, Sizes, bounded
from rope_jax.positions.interaction import Params, plus_by_distance
from rope_jax.rope.settings import Whole


class BiasByDistance(Encoding):
    """Encodings that add a table [L|1, N, C] of biases by head and distance to the logits.

    `layer_params` makes the table, "by_distance"; all keys beyond have its last number.
    """

    uses_distances: ClassVar[bool] = True
    scores = staticmethod(plus_by_distance)  # type: ignore[pydantic-field]


class ALiBiEncoding(BiasByDistance):
    """ALiBi: logits q·k/√H − slope_n·(i − j), with a fixed slope per head n; no parameters."""

    source: ClassVar[str] = "Press et al., arXiv 2108.12409"
    type: Literal["alibi"] = "alibi"

    def layer_params(
        self, parameters: Params, positions: Positions, pairs: int, heads: int
    ) -> Params:
        slopes = jnp.asarray(alibi_slopes(heads), jnp.float32)[None, :, None]
        distance = jnp.arange(positions.shape[-1], dtype=jnp.float32)[None, None]
        return {"by_distance": -slopes * distance}


def alibi_slopes(heads: int) -> Float64[np.ndarray, " {heads}"]:
    """Return the slope of each of N heads.

    For N a power of two: 2^(−8n/N), n = 1 … N. Otherwise: those of the largest power of two P
    below N, then every other one of those for 2P, beginning with the first, as in the authors' code
    (ofirpress/attention_with_linear_biases, `get_slopes`).
    """
    power = 2 ** int(math.log2(heads))

    def of_power(n: int) -> Float64[np.ndarray, " {n}"]:
        return 2.0 ** (-8.0 * np.arange(1, n + 1) / n)

    return np.concatenate([of_power(power), of_power(2 * power)[::2][: heads - power]])


class T5Encoding(BiasByDistance):
    """T5 bias: logits q·k/√H + b[n, bucket(i − j)], a trained number per head n and bucket.

    Each distance below buckets/2 is a bucket of its own; the others share the rest, see
    `t5_buckets`. All layers share b, as in T5. T5 itself does not divide q·k by √H.
    """

    source: ClassVar[str] = "Raffel et al., arXiv 1910.10683"
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

    def layer_params(
        self, parameters: Params, positions: Positions, pairs: int, heads: int
    ) -> Params:
        buckets = t5_buckets(self.buckets, self.max_distance)
        return {"by_distance": jnp.take(parameters["bias"], buckets, axis=1).swapaxes(1, 2)}


@functools.cache
def t5_buckets(buckets: int, max_distance: int) -> Int32[np.ndarray, " {max_distance}+1"]:
    """Return the bucket of every distance 0 … max_distance.

    With e = buckets/2: Δ for Δ < e, then min(buckets − 1, e + ⌊e·ln(Δ/e) / ln(max_distance/e)⌋), as
    `_relative_position_bucket` of T5's code does for causal attention. Whole numbers are compared,
    since rounded logarithms can miss a border: bucket e + k begins at the first Δ with
    Δ^e ≥ max_distance^k · e^(e − k).
    """
    exact = buckets // 2
    powers = [max_distance**k * exact ** (exact - k) for k in range(1, exact)]
    candidates = range(max_distance + 1)
    borders = [bisect.bisect_left(candidates, x, key=lambda first: first**exact) for x in powers]
    distances = np.arange(max_distance + 1)
    logarithmic = exact + np.searchsorted(borders, distances, side="right")
    by_distance = np.where(distances < exact, distances, logarithmic).astype(np.int32)
    by_distance.flags.writeable = False  # it is cached
    return by_distance


# The authors' code keeps both parameters at least this large.
_MIN_PARAMETER = 1e-2


class KERPLEEncoding(BiasByDistance):
    """KERPLE-log: logits q·k/√H − r1·ln(1 + r2·(i − j)), with trained r1, r2 > 0 per head.

    As in the authors' code (chijames/KERPLE, `ParallelKerpleLog`): at least 0.01 where they are
    used; initially r1 ~ U(0, 2) and r2 ~ U(0, 1); all layers share them. The authors overwrite a
    smaller parameter; here it stays, and can come back.
    """

    source: ClassVar[str] = "Chi et al., arXiv 2205.09921"
    type: Literal["kerple"] = "kerple"

    def parameter_shapes(self, sizes: Sizes) -> dict[str, tuple[int, ...]]:
        return {"r1": (1, sizes.heads), "r2": (1, sizes.heads)}

    def initial(self, sizes: Sizes, key: Key[Array, ""]) -> Params:
        r1_key, r2_key = jax.random.split(key)
        shape = (1, sizes.heads)
        return {
            "r1": jax.random.uniform(r1_key, shape, maxval=2.0),
            "r2": jax.random.uniform(r2_key, shape),
        }

    def layer_params(
        self, parameters: Params, positions: Positions, pairs: int, heads: int
    ) -> Params:
        r1, r2 = (bounded(parameters[name], _MIN_PARAMETER)[..., None] for name in ("r1", "r2"))
        distance = jnp.arange(positions.shape[-1], dtype=jnp.float32)[None, None]
        return {"by_distance": -r1 * jnp.log1p(r2 * distance)}
