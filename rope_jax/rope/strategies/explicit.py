"""`explicit`: the user's own numbers."""

import json
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Discriminator, Field, Tag, model_validator

from rope_jax.rope.geometry import RotaryGeometry
from rope_jax.rope.numbers import AttentionFactor
from rope_jax.rope.strategies.base import Scaling, per_pair

# Above π radians a token a frequency looks like a slower one that turns the other way.
Frequency = Annotated[float, Field(ge=0, le=np.pi)]
PairFactor = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _kind(value: Any) -> str:
    rows = isinstance(value, list | tuple) and any(isinstance(v, list | tuple) for v in value)
    return "by layer" if rows else "shared"


FrequencyLists = Annotated[
    Annotated[tuple[Frequency, ...], Field(strict=False), Tag("shared")]
    | Annotated[
        tuple[Annotated[tuple[Frequency, ...], Field(strict=False)], ...],
        Field(strict=False),
        Tag("by layer"),
    ],
    Discriminator(_kind),
]
FactorLists = Annotated[
    Annotated[tuple[PairFactor, ...], Field(strict=False), Tag("shared")]
    | Annotated[
        tuple[Annotated[tuple[PairFactor, ...], Field(strict=False)], ...],
        Field(strict=False),
        Tag("by layer"),
    ],
    Discriminator(_kind),
]
AttentionFactors = Annotated[
    Annotated[AttentionFactor, Tag("shared")]
    | Annotated[
        Annotated[tuple[AttentionFactor, ...], Field(strict=False, min_length=1)], Tag("by layer")
    ],
    Discriminator(lambda value: "by layer" if isinstance(value, list | tuple) else "shared"),
]
_NUMBERS = ("inv_freq", "factors", "attention_factor")
_LARGEST = 2**26  # bytes of a file of numbers


class ExplicitScaling(Scaling):
    """Your own frequencies, or factors λ_i with θ_i / λ_i, and m; for all layers or one list each.

    A list of numbers is for all layers, a list of such lists has one for each. path: a JSON file
    with these keys, read once: its numbers take the place of the path, so that a saved config is
    whole.
    """

    source: ClassVar[str] = "the user's"
    type: Literal["explicit"] = "explicit"
    inv_freq: FrequencyLists | None = Field(None, description="radians a token, one a pair")
    factors: FactorLists | None = Field(None, description="λ, one a pair: θ/λ")
    attention_factor: AttentionFactors = Field(1.0, description="m; a list: one a layer")
    path: str | None = Field(None, description="JSON file with inv_freq or factors, and m")

    @model_validator(mode="before")
    @classmethod
    def _read_path(cls, settings: Any) -> Any:
        if not isinstance(settings, dict) or not isinstance(settings.get("path"), str):
            return settings
        rest = {key: value for key, value in settings.items() if key != "path"}
        numbers = _read(settings["path"])
        twice = [key for key in _NUMBERS if key in numbers and rest.get(key) is not None]
        if twice:
            raise ValueError(f"{twice[0]}: stands here and in {settings['path']}; give it once")
        return rest | numbers

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.inv_freq is None) == (self.factors is None):
            raise ValueError("inv_freq, factors: give one of the two")
        return self

    @property
    def _lists(self) -> tuple[str, Any]:
        return ("factors", self.factors) if self.inv_freq is None else ("inv_freq", self.inv_freq)

    def for_layer(self, layer: int, layers: int) -> "ExplicitScaling":
        """The numbers of one layer. ValueError where there is not one list for each."""
        chosen = {}
        for field in _NUMBERS:
            value = getattr(self, field)
            many = isinstance(value, tuple) if field == "attention_factor" else _by_layer(value)
            if many and len(value) != layers:
                raise ValueError(f"{field}: {len(value)} entries for {layers} layers")
            chosen[field] = value[layer] if many else value
        return self.model_copy(update=chosen)

    def scaled(self, geometry: RotaryGeometry) -> tuple[np.ndarray, float]:
        field, values = self._lists
        if _by_layer(values) or isinstance(self.attention_factor, tuple):
            field = field if _by_layer(values) else "attention_factor"
            raise ValueError(f"{field}: has an entry for each layer; take for_layer(i, layers)")
        numbers = per_pair(values, geometry, field)
        inv_freq = numbers if field == "inv_freq" else geometry.inv_freq() / numbers
        if inv_freq.max(initial=0) > np.pi:
            raise ValueError(
                f"factors: make a pair turn {inv_freq.max():.3g} radians a token; above π it "
                "looks like a slower one"
            )
        return inv_freq, self.attention_factor


def _by_layer(values: Any) -> bool:
    return isinstance(values, tuple) and any(isinstance(v, tuple) for v in values)


def _read(path: str) -> dict[str, Any]:
    """The numbers of a JSON file; a ValueError names it."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(_LARGEST + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        why = getattr(error, "strerror", None) or error
        raise ValueError(f"path: {path} cannot be read ({why})") from None
    if len(content) > _LARGEST:
        raise ValueError(f"path: {path} is larger than {_LARGEST:,} bytes")
    try:
        numbers = json.loads(content, object_pairs_hook=_mapping)
    except KeyError:
        raise ValueError(f"path: {path} has a key twice") from None
    except (ValueError, RecursionError):  # also of text that is not UTF-8, of a number too long
        raise ValueError(f"path: {path} is not JSON") from None
    if not isinstance(numbers, dict) or not set(numbers) <= set(_NUMBERS):
        there = ", ".join(numbers) if isinstance(numbers, dict) else "no keys"
        raise ValueError(f"path: {path} may hold {', '.join(_NUMBERS)}; it has {there}")
    return numbers


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON allows a key to stand twice, and readers take the last; which one was meant?"""
    made = dict(pairs)
    if len(made) < len(pairs):
        raise KeyError
    return made
