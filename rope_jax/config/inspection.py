"""What scripts/show_scaling.py and scripts/plot_decay.py can be asked, of a geometry or a model.

Imports no jax.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from rope_jax.config.explain import validate
from rope_jax.config.load import load
from rope_jax.config.model import Base
from rope_jax.config.sweep import ENTRIES, AnyEntry, SweepEntry, TrainedEntry
from rope_jax.config.training import Config
from rope_jax.config.types import Frozen, Length, PathText
from rope_jax.errors import UserError
from rope_jax.rope import RotaryGeometry
from rope_jax.rope.numbers import Whole

USUAL_BASES = (1.0, 10.0, 100.0, 500.0, 5000.0, 10000.0, 50000.0)
LONGEST = 2**20  # distances of a decay: half a minute, at most
# What is asked of a training config's layers; the other keys are of a geometry.
_OF_A_MODEL = ("length", "scalings", "output")
_SUFFIXES = (".png", ".pdf", ".svg")


def _is_a_figure(path: str) -> str:
    if Path(path).suffix not in _SUFFIXES:
        raise ValueError(f"{path} should end in {', '.join(_SUFFIXES[:-1])} or {_SUFFIXES[-1]}")
    return path


FigurePath = Annotated[PathText, AfterValidator(_is_a_figure)]
Entries = Annotated[tuple[AnyEntry, ...], Field(strict=False)]
Distances = Annotated[int, Field(ge=2, le=LONGEST), Whole]


class Asked(Frozen):
    """A bare geometry and scalings of it; or scalings of a training config's layers."""

    rotary_dim: Annotated[int, Field(ge=2, le=2**12), Whole] = Field(
        64, description="d, even; a training config has its own, and b, and L"
    )
    base: Base = Field(10000.0, description="b")
    train_length: Length = Field(4096, description="L, tokens that training saw at once")
    length: Length | None = Field(
        None, description="n, tokens of the text; null: 4 times the training window"
    )
    scalings: Entries = Field(
        description="one curve each: none, or a strategy with a factor or auto, n/L; of a training "
        "config also trained, and by default those of its stages",
        default_factory=tuple,
    )
    output: FigurePath = Field("scaling.png", description="the figure: .png, .pdf or .svg")

    @model_validator(mode="after")
    def _geometry_makes_sense(self) -> Self:
        RotaryGeometry(self.rotary_dim, self.base, self.train_length)
        return self

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        labels = [entry.label for entry in self.scalings]
        twice = {label for label in labels if labels.count(label) > 1}
        if twice:
            raise ValueError(f"scalings: {', '.join(sorted(twice))} stands twice; give a name")
        return self


def _usual_scalings() -> tuple[SweepEntry, ...]:
    autos = [ENTRIES[name].model_validate({"factor": "auto"}) for name in ("pi", "ntk", "yarn")]
    return (ENTRIES["none"].model_validate({}), *autos)


class ScalingAsked(Asked):
    """What scripts/show_scaling.py shows."""

    scalings: Entries = Field(
        description=Asked.model_fields["scalings"].description, default_factory=_usual_scalings
    )


class DecayAsked(Asked):
    """What scripts/plot_decay.py draws."""

    length: Distances | None = Field(
        None,
        description="distances, from 0; null: 2048; with scalings 4 times the training window",
    )
    bases: Annotated[tuple[Base, ...], Field(min_length=1, strict=False)] | None = Field(
        None,
        description="an unscaled curve each; null: from 1 to 50000, unless scalings are given",
    )
    output: FigurePath = Field(
        "decay.png", description="the figure: .png, .pdf or .svg; a .csv goes beside it"
    )

    @model_validator(mode="after")
    def _bases_are_unique(self) -> Self:
        bases = self.bases or ()
        if len(set(bases)) < len(bases):
            raise ValueError(f"bases: {', '.join(map(str, bases))} names one twice")
        return self

    @property
    def bases_shown(self) -> tuple[float, ...]:
        """bases, resolved."""
        return self.bases or (() if self.scalings else USUAL_BASES)


AskedType = TypeVar("AskedType", bound=Asked)


class _Anything(BaseModel):
    """A config whose kind is not known yet."""

    model_config = ConfigDict(extra="allow", frozen=True)


def read(
    schema: type[AskedType], path: Path | None, overrides: Sequence[str]
) -> tuple[AskedType, Config | None]:
    """What is asked, and the training config where it is one: where it has `stages`.

    Such a file may hold `length`, `scalings` and `output` as well.
    """
    raw = dict(load(_Anything, path, overrides).model_extra or {})
    origin = "overrides" if path is None else str(path)
    if "stages" not in raw:
        asked = validate(schema, raw, origin)
        if any(isinstance(entry, TrainedEntry) for entry in asked.scalings):
            raise UserError(
                f"{origin}: scalings: trained is a training config's own; "
                "without training the scaling is none"
            )
        return asked, None
    asked = validate(schema, {key: raw.pop(key) for key in _OF_A_MODEL if key in raw}, origin)
    return asked, validate(Config, raw, origin)


def resolved(asked: Asked, training: Config | None) -> BaseModel:
    """Both as one config, which gives the same when it is read again."""
    if training is None:
        return asked
    # what was not given follows from the model
    own = {key: getattr(asked, key) for key in _OF_A_MODEL if key in asked.model_fields_set}
    own = asked.model_dump(include=set(own), mode="json")
    return _Anything.model_validate(training.model_dump(mode="json") | own)


def check_output(*paths: Path) -> None:
    """UserError where a file cannot be put, before the work that it is for."""
    for path in paths:
        try:
            there, taken = path.parent.is_dir(), path.is_dir()
        except OSError as error:  # a name that is too long
            raise UserError(f"output: {path}: {error.strerror}") from None
        if not there:
            raise UserError(f"output: {path.parent} is not a folder; make it, or name another")
        if taken:
            raise UserError(f"output: {path} is a folder; name a file")
        if not os.access(path.parent, os.W_OK):
            raise UserError(f"output: nothing can be written to {path.parent}")
