"""`longrope` and `explicit`: factors or frequencies given as numbers."""

import json
import math
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Discriminator, Field, Tag, model_validator

from rope_jax.rope.geometry import RotaryGeometry, as_float
from rope_jax.rope.settings import AttentionFactor, Factor, PairFactors, Whole
from rope_jax.rope.strategies.base import Lengths, Scaled, Scaling, per_pair


class LongRoPEScaling(Scaling):
    """LongRoPE: θ_i / λ_i, one list of λ up to length L, another beyond; m = √(1 + ln s / ln L).

    λ is short_factor for texts of n ≤ L tokens and long_factor for n > L. m depends on s (`factor`)
    only, not on n, and so applies to short texts too.
    """

    source: ClassVar[str] = "Ding et al., arXiv 2402.13753; Hugging Face `longrope`"
    follows_length: ClassVar[str] = "at L, unless the lists are equal"
    type: Literal["longrope"] = "longrope"
    short_factor: PairFactors = Field(description="λ of each pair for texts of at most L tokens")
    long_factor: PairFactors = Field(description="λ of each pair for longer texts")
    factor: Factor | None = Field(None, description="s, from which m is computed")
    attention_factor: AttentionFactor | None = Field(None, description="m; null: computed from s")

    @model_validator(mode="after")
    def _a_way_to_m(self) -> "LongRoPEScaling":
        if self.factor is None and self.attention_factor is None:
            raise ValueError("factor: is needed to compute m; give it, or attention_factor")
        return self

    @property
    def length_dependent(self) -> bool:
        return self.short_factor != self.long_factor

    def continued(self, factor: float) -> "LongRoPEScaling":
        raise ValueError(
            "factor: longrope's λ were searched for one length, and no larger factor follows from "
            "them; take another scaling, over: trained"
        )

    def m(self, geometry: RotaryGeometry) -> float:
        """Return the attention factor."""
        if self.attention_factor is not None:
            return self.attention_factor
        if geometry.train_length < 2:
            raise ValueError("train_length: longrope needs at least 2 (m divides by ln L)")
        return math.sqrt(1 + math.log(self.factor or 1) / math.log(geometry.train_length))

    def scaled(self, geometry: RotaryGeometry) -> tuple[np.ndarray, float]:
        factors = per_pair(self.short_factor, geometry, "short_factor")
        return geometry.inv_freq() / factors, self.m(geometry)

    def scaled_at(self, geometry: RotaryGeometry, length: Lengths, xp: ModuleType) -> Scaled:
        short, m = self.scaled(geometry)
        long = geometry.inv_freq() / per_pair(self.long_factor, geometry, "long_factor")
        is_long = (length > geometry.train_length)[..., None]
        shape = (*length.shape, short.size)
        short, long = (xp.broadcast_to(as_float(x, xp), shape) for x in (short, long))
        return xp.where(is_long, long, short), m


# Above π radians per token a frequency looks like a slower one that rotates the other way.
Frequency = Annotated[float, Field(ge=0, le=np.pi)]

FrequencyList = Annotated[tuple[Frequency, ...], Field(strict=False)]
# The fields that may differ between layers, and how deep the lists are that all layers share.
_SHARED_DEPTH = {"inv_freq": 1, "factors": 1, "attention_factor": 0}


def _is_deeper(value: object, depth: int) -> bool:
    """Whether more than `depth` lists are nested in one another."""
    return isinstance(value, list | tuple) and (
        depth == 0 or any(_is_deeper(inside, depth - 1) for inside in value)
    )


def _maybe_per_layer(shared: Any, depth: int) -> Any:
    """Return the type of a setting that all layers share, or of a list with one per layer.

    The value's nesting decides which form pydantic checks, so that an error names only that.
    """
    per_layer = Annotated[tuple[shared, ...], Field(strict=False, min_length=1)]
    return Annotated[
        Annotated[shared, Tag("shared")] | Annotated[per_layer, Tag("per layer")],
        Discriminator(lambda value: "per layer" if _is_deeper(value, depth) else "shared"),
    ]


class ExplicitScaling(Scaling):
    """Frequencies θ' as numbers, or factors λ_i that give θ_i / λ_i; and m. Shared or per layer.

    inv_freq and factors: a list with one number per pair, shared by all layers, or one such list
    per layer. attention_factor: one number, or one per layer.

    path: a JSON file with these keys, whose numbers replace the path when the settings are parsed,
    so that a saved config does not depend on the file.
    """

    source: ClassVar[str] = "the user's"
    type: Literal["explicit"] = "explicit"
    inv_freq: _maybe_per_layer(FrequencyList, 1) | None = Field(  # type: ignore[valid-type]
        None, description="θ' of each pair, radians per token; or one such list per layer"
    )
    factors: _maybe_per_layer(PairFactors, 1) | None = Field(  # type: ignore[valid-type]
        None, description="λ of each pair, for θ/λ; or one such list per layer"
    )
    attention_factor: _maybe_per_layer(AttentionFactor, 0) = Field(  # type: ignore[valid-type]
        1.0, description="m; a list: one per layer"
    )
    train_length: Annotated[int, Whole] | None = Field(
        None, ge=1, description="L of the model that the numbers are for; null: any"
    )
    path: str | None = Field(
        None, description="JSON file with inv_freq or factors, and attention_factor"
    )

    @model_validator(mode="before")
    @classmethod
    def _read_path(cls, settings: object) -> object:
        if not isinstance(settings, dict) or not isinstance(settings.get("path"), str):
            return settings
        given = {key: value for key, value in settings.items() if key != "path"}
        numbers = _read_json(settings["path"])
        twice = [key for key in numbers if given.get(key) is not None]
        if twice:
            raise ValueError(f"{twice[0]}: is given both here and in {settings['path']}; keep one")
        return given | numbers

    @model_validator(mode="after")
    def _frequencies_or_factors(self) -> "ExplicitScaling":
        if (self.inv_freq is None) == (self.factors is None):
            raise ValueError("inv_freq, factors: give one of the two")
        return self

    @property
    def replaces_frequencies(self) -> bool:
        return self.inv_freq is not None

    def for_layer(self, layer: int, layers: int) -> "ExplicitScaling":
        """Return the strategy with the numbers of one layer, of as many as `layers`."""
        per_layer = self._per_layer()
        for field, values in per_layer.items():
            if len(values) != layers:
                raise ValueError(f"{field}: {len(values)} entries for {layers} layers")
        return self.model_copy(update={field: x[layer] for field, x in per_layer.items()})

    def _per_layer(self) -> dict[str, Any]:
        """Return the settings that differ between layers."""
        given = ((field, getattr(self, field), depth) for field, depth in _SHARED_DEPTH.items())
        return {field: value for field, value, depth in given if _is_deeper(value, depth)}

    def scaled(self, geometry: RotaryGeometry) -> tuple[np.ndarray, float]:
        for field in self._per_layer():
            raise ValueError(f"{field}: has one entry per layer; use for_layer(i, layers)")
        if self.train_length not in (None, geometry.train_length):
            raise ValueError(
                f"train_length: the numbers are for a model trained at {self.train_length:,} "
                f"tokens, not {geometry.train_length:,}"
            )
        if self.inv_freq is not None:
            return per_pair(self.inv_freq, geometry, "inv_freq"), self.attention_factor
        inv_freq = geometry.inv_freq() / per_pair(self.factors or (), geometry, "factors")
        if inv_freq.max(initial=0) > np.pi:
            raise ValueError(
                f"factors: make a pair turn {inv_freq.max():.3g} radians per token; above π it "
                "looks like a slower one"
            )
        return inv_freq, self.attention_factor


def _read_json(path: str) -> dict[str, Any]:
    """Return the settings in a JSON file; ValueError, naming it, if it has anything else."""
    try:
        content = Path(path).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the path
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"path: {path} cannot be read ({reason})") from None
    try:
        numbers = json.loads(content)
    except (ValueError, RecursionError):  # ValueError also covers bad UTF-8 and overlong numbers
        raise ValueError(f"path: {path} is not JSON") from None
    if not isinstance(numbers, dict) or not numbers.keys() <= _SHARED_DEPTH.keys():
        keys = ", ".join(numbers) if isinstance(numbers, dict) else "no keys"
        raise ValueError(f"path: {path} may hold {', '.join(_SHARED_DEPTH)}; it has {keys}")
    return numbers
