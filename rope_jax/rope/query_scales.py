"""Factors on whole queries that grow with the query's position.

A query scale multiplies every dimension of a query, rotated or not, and so its logits; m of a
strategy (`attention_factor`) reaches rotated dimensions only, of queries and of keys.
"""

import math
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from rope_jax.rope.geometry import RotaryGeometry
from rope_jax.rope.numbers import Whole


class QueryScale(BaseModel):
    """Settings of one query scale. The class docstring's first line is its line in every list."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    source: ClassVar[str]
    type: str

    def at(self, geometry: RotaryGeometry, positions: Any) -> Any:
        """The factor for queries at integer positions [..., T]: float32, the same shape.

        On the host (numpy or a list) computed in float64 and rounded once; traced in float32.
        A position below 0 counts as 0.
        """
        if isinstance(positions, np.ndarray | np.generic | list | int):
            whole = np.maximum(np.asarray(positions), 0)
            return self._at(geometry, whole, np, np.float64).astype(np.float32)
        import jax.numpy as jnp

        return self._at(geometry, jnp.maximum(positions, 0), jnp, jnp.float32)

    def _at(self, geometry: RotaryGeometry, positions: Any, xp: Any, dtype: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no formula")


class LogN(QueryScale):
    """max(1, ln(p + 1) / ln L): keeps attention's entropy as the text grows past L."""

    source: ClassVar[str] = "Su, kexue.fm/archives/8823"
    type: Literal["logn"] = "logn"

    def _at(self, geometry: RotaryGeometry, positions: Any, xp: Any, dtype: Any) -> Any:
        if geometry.train_length < 2:
            raise ValueError("train_length: logn needs at least 2 (it divides by ln L)")
        grown = xp.log1p(positions.astype(dtype)) / dtype(math.log(geometry.train_length))
        return xp.maximum(dtype(1), grown)


class Llama4Scale(QueryScale):
    """1 + attn_scale · ln(1 + ⌊(p + 1) / floor_scale⌋): Llama 4's, on its NoPE layers."""

    source: ClassVar[str] = "Llama 4; Hugging Face `llama4`"
    type: Literal["llama4"] = "llama4"
    attn_scale: float = Field(0.1, gt=0, lt=1e6, description="growth with the logarithm")
    floor_scale: Annotated[int, Whole] = Field(
        8192, ge=1, lt=2**31, description="tokens between two steps"
    )

    def _at(self, geometry: RotaryGeometry, positions: Any, xp: Any, dtype: Any) -> Any:
        # ⌊(p + 1)/f⌋ without p + 1, which the last position does not have
        ends = positions % self.floor_scale == self.floor_scale - 1
        steps = positions // self.floor_scale + ends.astype(positions.dtype)
        return dtype(1) + dtype(self.attn_scale) * xp.log1p(steps.astype(dtype))


class MinistralScale(QueryScale):
    """1 + beta · ln(1 + ⌊p / L⌋): Ministral 3's."""

    source: ClassVar[str] = "Ministral 3; Hugging Face `llama_4_scaling_beta`"
    type: Literal["ministral"] = "ministral"
    beta: float = Field(0.1, gt=0, lt=1e6, description="growth with the logarithm")

    def _at(self, geometry: RotaryGeometry, positions: Any, xp: Any, dtype: Any) -> Any:
        steps = positions // geometry.train_length
        return dtype(1) + dtype(self.beta) * xp.log1p(steps.astype(dtype))


QUERY_SCALES: dict[str, type[QueryScale]] = {
    scale.model_fields["type"].default: scale for scale in (LogN, Llama4Scale, MinistralScale)
}
AnyQueryScale = Annotated[LogN | Llama4Scale | MinistralScale, Field(discriminator="type")]
