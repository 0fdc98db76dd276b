"""Factors on whole queries, most of which grow with the query's position.

A query scale multiplies every dimension of a query, and so its logits; a strategy's m
(`attention_factor`) only the rotated dimensions of queries and keys.
"""

import math
from types import ModuleType
from typing import Annotated, ClassVar, Literal

import numpy as np
from jaxtyping import Float, Float32, Int
from pydantic import Field

from rope_jax.rope.angles import Positions
from rope_jax.rope.geometry import (
    AnyArray,
    RotaryGeometry,
    array_module,
    as_float,
    host_positions,
    is_on_host,
)
from rope_jax.rope.settings import Settings, Whole

Ints = Int[AnyArray, "*batch T"]
Floats = Float[AnyArray, "*batch T"]


class QueryScale(Settings):
    """Settings of one query scale. A subclass's docstring is its entry in the docs' table."""

    def at(self, geometry: RotaryGeometry, positions: Positions) -> Float32[AnyArray, "*#batch T"]:
        """Return the factor on queries at integer positions.

        It is computed in float64 for host positions, in float32 for traced ones; below 0 they count
        as 0.

        ValueError: host positions beyond 32 bits, or a geometry for which the formula is undefined.
        """
        if is_on_host(positions):
            positions = host_positions(positions)
        xp = array_module(positions)
        return self._at(geometry, xp.maximum(positions, 0), xp).astype(np.float32)

    def _at(self, geometry: RotaryGeometry, positions: Ints, xp: ModuleType) -> Floats:
        """Compute the factor at positions of at least 0; xp is numpy or jax.numpy."""
        raise NotImplementedError(f"{type(self).__name__} has no formula")

    def _log_ratio(self, geometry: RotaryGeometry, positions: Ints, xp: ModuleType) -> Floats:
        """ln(p + 1) / ln L."""
        if geometry.train_length < 2:
            raise ValueError(f"train_length: {self.type} needs at least 2 (it divides by ln L)")
        return xp.log1p(as_float(positions, xp)) / math.log(geometry.train_length)


class LogN(QueryScale):
    """max(1, ln(p + 1) / ln L): keeps the entropy of attention as the text grows past L."""

    source: ClassVar[str] = "Su, kexue.fm/archives/8823"
    type: Literal["logn"] = "logn"

    def _at(self, geometry: RotaryGeometry, positions: Ints, xp: ModuleType) -> Floats:
        return xp.maximum(1.0, self._log_ratio(geometry, positions, xp))


class PowerScale(QueryScale):
    """max(1, s · (ln n / ln L)^p) with n = position + 1 and settings s and p; both 1: `logn`.

    Theories of attention over n keys want its logits to grow with (ln n)^p for a p of ½, 1 or 2,
    depending on how the largest logits are spread. At n = 1, where ln n is 0, the factor is 1.
    """

    source: ClassVar[str] = "Hayase and Karakida, arXiv 2605.12697 (p); Su's `logn` (p = 1)"
    type: Literal["power"] = "power"
    s: float = Field(
        1.0,
        gt=0,
        lt=1e6,
        description="s, the factor at n = L if at least 1; below 1: growth starts later",
    )
    # 31^16, for L = 2 and n = 2^31, is far inside float32's range
    p: float = Field(1.0, gt=0, le=16, description="p, the exponent of ln n / ln L")

    def _at(self, geometry: RotaryGeometry, positions: Ints, xp: ModuleType) -> Floats:
        return xp.maximum(1.0, self.s * self._log_ratio(geometry, positions, xp) ** self.p)


class Llama4Scale(QueryScale):
    """1 + attn_scale · ln(1 + ⌊(p + 1) / floor_scale⌋), used in Llama 4's NoPE layers."""

    source: ClassVar[str] = "Llama 4; Hugging Face `llama4`"
    type: Literal["llama4"] = "llama4"
    attn_scale: float = Field(0.1, gt=0, lt=1e6, description="coefficient of the logarithm")
    floor_scale: Annotated[int, Whole] = Field(
        8192, ge=1, lt=2**31, description="tokens per step of the staircase"
    )

    def _at(self, geometry: RotaryGeometry, positions: Ints, xp: ModuleType) -> Floats:
        # ⌊(p + 1)/f⌋ without computing p + 1, which overflows at the last position
        ends = positions % self.floor_scale == self.floor_scale - 1
        steps = positions // self.floor_scale + ends.astype(positions.dtype)
        return 1 + self.attn_scale * xp.log1p(as_float(steps, xp))


class MinistralScale(QueryScale):
    """1 + beta · ln(1 + ⌊p / L⌋), used in Ministral 3."""

    source: ClassVar[str] = "Ministral 3; Hugging Face `llama_4_scaling_beta`"
    type: Literal["ministral"] = "ministral"
    beta: float = Field(0.1, gt=0, lt=1e6, description="coefficient of the logarithm")

    def _at(self, geometry: RotaryGeometry, positions: Ints, xp: ModuleType) -> Floats:
        steps = positions // geometry.train_length
        return 1 + self.beta * xp.log1p(as_float(steps, xp))


class ConstantScale(QueryScale):
    """s, at every position; (0.1 · mscale_all_dim · ln f + 1)² for DeepSeek's YaRN by factor f."""

    source: ClassVar[str] = "DeepSeek-V2, arXiv 2405.04434; Hugging Face `mscale_all_dim`"
    type: Literal["constant"] = "constant"
    s: float = Field(gt=0, lt=1e6, description="s, the factor on queries")

    def _at(self, geometry: RotaryGeometry, positions: Ints, xp: ModuleType) -> Floats:
        return xp.full(positions.shape, self.s)


QUERY_SCALES: dict[str, type[QueryScale]] = {
    scale.model_fields["type"].default: scale
    for scale in (LogN, PowerScale, Llama4Scale, MinistralScale, ConstantScale)
}
"""The class of each query scale, by its `type`."""
AnyQueryScale = Annotated[
    LogN | PowerScale | Llama4Scale | MinistralScale | ConstantScale, Field(discriminator="type")
]
