"""What scripts/show_scaling.py and scripts/plot_decay.py can be asked, of a geometry or a model.

Imports no jax.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from rope_jax.config import load, validate
from rope_jax.errors import UserError
from rope_jax.rope import RotaryGeometry, RotaryLayers, Scaling
from rope_jax.rope.pairs import Pairs, effective
from rope_jax.rope.strategies import NoScaling
from rope_jax.schema import Base, Config, Frozen, Length, PathText, PositiveInt, Whole
from rope_jax.sweep_schema import ENTRIES, AnyEntry, SweepEntry, TrainedEntry

USUAL_BASES = (1.0, 10.0, 100.0, 500.0, 5000.0, 10000.0, 50000.0)
MOST_CURVES = 12  # what a figure tells apart
# What is asked of a model; the other keys, of a geometry, are then the training config's own.
_OF_A_MODEL = ("length", "scalings", "output")
_SUFFIXES = (".png", ".pdf", ".svg")


def _is_a_figure(path: str) -> str:
    if Path(path).suffix not in _SUFFIXES:
        raise ValueError(f"{path} should end in {', '.join(_SUFFIXES[:-1])} or {_SUFFIXES[-1]}")
    return path


FigurePath = Annotated[PathText, AfterValidator(_is_a_figure)]
Entries = Annotated[tuple[AnyEntry, ...], Field(strict=False)]
Distances = Annotated[int, Field(ge=2, le=2**20), Whole]


class Asked(Frozen):
    """A bare geometry, and the scalings of it. Of a training config: its own geometry."""

    rotary_dim: Annotated[int, Field(ge=2, le=2**12), Whole] = Field(
        64, description="d, even; of a model: its own, as are the next two"
    )
    base: Base = Field(10000.0, description="b")
    train_length: Length = Field(4096, description="L, tokens that training saw at once")
    length: Length | None = Field(
        None, description="n, tokens of the text; null: 4 times the training window"
    )
    scalings: Entries = Field(
        description="one curve each: none, or a strategy with a factor or auto, which is n/L; of "
        "a model also trained; not given: those of its stages",
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
        description="distances, from 0; null: 2048, with scalings 4 times the training window",
    )
    bases: Annotated[tuple[Base, ...], Field(min_length=1, strict=False)] | None = Field(
        None, description="one curve each, without scaling; null: 1 to 50000, with scalings none"
    )
    output: FigurePath = Field(
        "decay.png", description="the figure: .png, .pdf or .svg; a .csv goes beside it"
    )

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
        if not path.parent.is_dir():
            raise UserError(f"output: {path.parent} is not a folder; make it, or name another")
        if path.is_dir():
            raise UserError(f"output: {path} is a folder; name a file")
        if not os.access(path.parent, os.W_OK):
            raise UserError(f"output: nothing can be written to {path.parent}")


@dataclass(frozen=True)
class Subject:
    """What is shown: rotary layers, their training, and the scalings of a text.

    window:   L, tokens of training, under the scaling `trained`.
    length:   n, tokens of the text.
    scalings: name, kind (a scaling's type, or "trained") and scaling of each.
    sliding:  attention windows of the layers, a pattern that repeats; None: all the text.
    """

    title: str
    layers: RotaryLayers
    window: int
    length: int
    scalings: tuple[tuple[str, str, Scaling], ...]
    trained: Scaling = NoScaling()
    sliding: tuple[int | None, ...] = (None,)


def subject(asked: Asked, training: Config | None, length: int | None = None) -> Subject:
    """The layers and scalings to show; length: of the text, where none was asked for."""
    if training is None:
        geometry = RotaryGeometry(asked.rotary_dim, asked.base, asked.train_length)
        return _subject(asked, RotaryLayers(geometry), asked.train_length, length)
    last = len(training.stages) - 1
    return _subject(
        asked,
        training.rotary_layers,
        training.stages[last].seq_len,
        length,
        name=training.name,
        trained=training.stage_scaling(last),
        sliding=training.sliding_windows,
        stages=None
        if "scalings" in asked.model_fields_set
        else [training.stage_scaling(stage) for stage in range(last + 1)],
    )


def _subject(
    asked: Asked,
    layers: RotaryLayers,
    window: int,
    length: int | None,
    name: str = "",
    trained: Scaling = NoScaling(),
    sliding: tuple[int | None, ...] = (None,),
    stages: Sequence[Scaling] | None = None,
) -> Subject:
    length = asked.length or length or 4 * window
    scalings: list[tuple[str, str, Scaling]] = []
    if stages is None:
        for entry in asked.scalings:
            with _named(entry.label):
                scalings.append((entry.label, entry.type, entry.at(length, window, trained)))
    else:
        for number, scaling in enumerate(stages):
            if scaling != trained and scaling not in stages[:number]:
                scalings.append((f"stage {number}: {_label(scaling)}", scaling.type, scaling))
        scalings.append(("trained", "trained", trained))
    bases = dict.fromkeys(f"{geometry.base:,g}" for geometry, _ in layers.each(trained))
    parts = [
        *([name] if name else []),
        f"d {layers.geometry.rotary_dim}, base {' and '.join(bases)}",
        f"trained at {window:,} tokens"
        + (f" with {_label(trained)}" if trained.type != "none" else ""),
        f"a text of {length:,}",
    ]
    return Subject(", ".join(parts), layers, window, length, tuple(scalings), trained, sliding)


def _label(scaling: Scaling) -> str:
    """Type and factor, as a sweep names its curves."""
    return ENTRIES[scaling.type].model_validate(scaling.model_dump()).label
