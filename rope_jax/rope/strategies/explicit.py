"""`longrope` and `explicit`: factors or frequencies given as numbers."""

import json
import math
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Discriminator, Field, Tag, model_validator

from rope_jax.rope.files import read_limited
from rope_jax.rope.geometry import RotaryGeometry
from rope_jax.rope.numbers import AttentionFactor, Factor, PairFactors, Whole
from rope_jax.rope.strategies.base import Scaling, per_pair


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

    def scaled_at(self, geometry: RotaryGeometry, length: Any, xp: ModuleType) -> tuple[Any, Any]:
        short, m = self.scaled(geometry)
        long = geometry.inv_freq() / per_pair(self.long_factor, geometry, "long_factor")
        dtype = np.float64 if xp is np else np.float32
        is_long = (length > geometry.train_length)[..., None]
        shape = (*length.shape, short.size)
        short, long = (xp.broadcast_to(x.astype(dtype), shape) for x in (short, long))
        return xp.where(is_long, long, short), m


# Above π radians per token a frequency looks like a slower one that rotates the other way.
Frequency = Annotated[float, Field(ge=0, le=np.pi)]

# Each setting below is either shared by all layers or given per layer. The value's nesting decides
# which form Pydantic checks, so that an error names one form rather than both.


def _shared_or_per_layer(value: Any) -> str:
    """Distinguish a list of numbers (shared) from a list of lists (one per layer)."""
    nested = isinstance(value, list | tuple) and any(isinstance(v, list | tuple) for v in value)
    return "per layer" if nested else "shared"


FrequencyList = Annotated[tuple[Frequency, ...], Field(strict=False)]
FrequencyLists = Annotated[
    Annotated[FrequencyList, Tag("shared")]
    | Annotated[tuple[FrequencyList, ...], Field(strict=False), Tag("per layer")],
    Discriminator(_shared_or_per_layer),
]
FactorLists = Annotated[
    Annotated[PairFactors, Tag("shared")]
    | Annotated[tuple[PairFactors, ...], Field(strict=False), Tag("per layer")],
    Discriminator(_shared_or_per_layer),
]
AttentionFactors = Annotated[
    Annotated[AttentionFactor, Tag("shared")]
    | Annotated[
        Annotated[tuple[AttentionFactor, ...], Field(strict=False, min_length=1)], Tag("per layer")
    ],
    Discriminator(lambda value: "per layer" if isinstance(value, list | tuple) else "shared"),
]
_IN_FILES = ("inv_freq", "factors", "attention_factor")
_MAX_FILE_BYTES = 2**24  # takes half a second to parse


class ExplicitScaling(Scaling):
    """Frequencies θ' as numbers, or factors λ_i that give θ_i / λ_i; and m. Shared or per layer.

    inv_freq and factors: a list with one number per pair, shared by all layers, or one such list
    per layer. attention_factor: one number, or one per layer.

    path: a JSON file with these keys, whose numbers replace the path when the settings are parsed,
    so that a saved config does not depend on the file.
    """

    source: ClassVar[str] = "the user's"
    type: Literal["explicit"] = "explicit"
    inv_freq: FrequencyLists | None = Field(
        None, description="θ' of each pair, radians per token; or one such list per layer"
    )
    factors: FactorLists | None = Field(
        None, description="λ of each pair, for θ/λ; or one such list per layer"
    )
    attention_factor: AttentionFactors = Field(1.0, description="m; a list: one per layer")
    train_length: Annotated[int, Whole] | None = Field(
        None, ge=1, description="L of the model that the numbers are for; null: any"
    )
    path: str | None = Field(
        None, description="JSON file with inv_freq or factors, and attention_factor"
    )

    @model_validator(mode="before")
    @classmethod
    def _read_path(cls, settings: Any) -> Any:
        if not isinstance(settings, dict) or not isinstance(settings.get("path"), str):
            return settings
        given = {key: value for key, value in settings.items() if key != "path"}
        numbers = _read_json(settings["path"])
        twice = [key for key in _IN_FILES if key in numbers and given.get(key) is not None]
        if twice:
            raise ValueError(f"{twice[0]}: is given both here and in {settings['path']}; keep one")
        return given | numbers

    @model_validator(mode="after")
    def _frequencies_or_factors(self) -> "ExplicitScaling":
        if (self.inv_freq is None) == (self.factors is None):
            raise ValueError("inv_freq, factors: give one of the two")
        return self

    def for_layer(self, layer: int, layers: int) -> "ExplicitScaling":
        """Return the strategy with the numbers of one layer, of as many as `layers`."""
        chosen = {}
        for field in _IN_FILES:
            value = getattr(self, field)
            if _is_per_layer(field, value):
                if len(value) != layers:
                    raise ValueError(f"{field}: {len(value)} entries for {layers} layers")
                value = value[layer]
            chosen[field] = value
        return self.model_copy(update=chosen)

    def scaled(self, geometry: RotaryGeometry) -> tuple[np.ndarray, float]:
        for field in _IN_FILES:
            if _is_per_layer(field, getattr(self, field)):
                raise ValueError(f"{field}: has one entry per layer; use for_layer(i, layers)")
        if self.train_length not in (None, geometry.train_length):
            raise ValueError(
                f"train_length: the numbers are for a model trained at {self.train_length:,} "
                f"tokens, not {geometry.train_length:,}"
            )
        # after the checks above, m is one number and the others have one number per pair
        m: Any = self.attention_factor
        if self.inv_freq is not None:
            return per_pair(self.inv_freq, geometry, "inv_freq"), m  # type: ignore[arg-type]
        inv_freq = geometry.inv_freq() / per_pair(self.factors, geometry, "factors")  # type: ignore[arg-type]
        if inv_freq.max(initial=0) > np.pi:
            raise ValueError(
                f"factors: make a pair turn {inv_freq.max():.3g} radians per token; above π it "
                "looks like a slower one"
            )
        return inv_freq, m


def _is_per_layer(field: str, value: Any) -> bool:
    if field == "attention_factor":
        return isinstance(value, tuple)
    return _shared_or_per_layer(value) == "per layer"


def _read_json(path: str) -> dict[str, Any]:
    """The settings in a JSON file; ValueError, naming the file, if it has anything else."""
    try:
        content = read_limited(Path(path), _MAX_FILE_BYTES)
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the path
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"path: {path} cannot be read ({reason})") from None
    try:
        numbers = json.loads(content, object_pairs_hook=_without_duplicates)
    except KeyError:
        raise ValueError(f"path: {path} has a key twice") from None
    except (ValueError, RecursionError):  # ValueError also covers bad UTF-8 and overlong numbers
        raise ValueError(f"path: {path} is not JSON") from None
    if not isinstance(numbers, dict) or not set(numbers) <= set(_IN_FILES):
        found = ", ".join(numbers) if isinstance(numbers, dict) else "no keys"
        raise ValueError(f"path: {path} may hold {', '.join(_IN_FILES)}; it has {found}")
    return numbers


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A mapping; KeyError for a repeated key, of which `json` would silently keep the last."""
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        raise KeyError
    return mapping
