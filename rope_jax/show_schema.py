"""What scripts/show_scaling.py and scripts/plot_decay.py can be asked, of a geometry or a model.

Imports no jax.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from rope_jax.config import load, validate
from rope_jax.errors import UserError
from rope_jax.rope import RotaryGeometry, RotaryLayers, Scaling
from rope_jax.rope.pairs import Pairs, effective
from rope_jax.rope.strategies import NoScaling
from rope_jax.schema import Base, Config, Frozen, Length, PathText, Whole
from rope_jax.sweep_schema import ENTRIES, AnyEntry, SweepEntry, TrainedEntry

USUAL_BASES = (1.0, 10.0, 100.0, 500.0, 5000.0, 10000.0, 50000.0)
LONGEST = 2**20  # distances of a decay: half a minute, at most
MOST_CURVES = 12  # what a figure tells apart
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


def number(value: float) -> str:
    """Four digits or so, for people."""
    if not math.isfinite(value):
        return "∞"
    if 1000 <= value < 999_999.5:
        return f"{value:,.0f}"
    return f"{value:.4g}".replace("e+0", "e").replace("e+", "e")


@dataclass(frozen=True)
class Model:
    """Rotary layers and their training; of a bare geometry one layer, trained without scaling.

    window:  L, tokens of the last stage, under the scaling `trained`.
    stages:  the scaling of each.
    sliding: attention windows of the layers, a pattern that repeats; None: all the text.
    """

    name: str
    layers: RotaryLayers
    window: int
    stages: tuple[Scaling, ...] = (NoScaling(),)
    sliding: tuple[int | None, ...] = (None,)

    @classmethod
    def of(cls, asked: Asked, training: Config | None) -> "Model":
        """What `read` found."""
        if training is None:
            geometry = RotaryGeometry(asked.rotary_dim, asked.base, asked.train_length)
            return cls("", RotaryLayers(geometry), asked.train_length)
        stages = tuple(training.stage_scaling(stage) for stage in range(len(training.stages)))
        window = training.stages[-1].seq_len
        layers, sliding = training.rotary_layers, training.sliding_windows
        return cls(training.name, layers, window, stages, sliding)

    @property
    def trained(self) -> Scaling:
        """The last stage's scaling."""
        return self.stages[-1]

    def title(self) -> str:
        """The model in a line."""
        bases = dict.fromkeys(
            number(geometry.base) for geometry, _ in self.layers.each(NoScaling())
        )
        name = f"{self.name}: " if self.name else ""
        scaling = "" if self.trained.type == "none" else f" with {_label(self.trained)}"
        return (
            f"{name}d {self.layers.geometry.rotary_dim}, base {' and '.join(bases)}, "
            f"trained at {self.window:,} tokens{scaling}"
        )


@dataclass(frozen=True)
class Curve:
    """One scaling, in layers that are alike. kind: its type, or "trained": what colours it."""

    name: str
    kind: str
    scaling: Scaling
    geometry: RotaryGeometry
    pairs: Pairs


def curves(model: Model, asked: Asked, length: int) -> list[Curve]:
    """Of every scaling asked for, or of the model's stages; one for each kind of layer.

    length: n. Layers with a scaling of their own are shown once: it holds whatever the others have.
    """
    made: dict[str, Curve] = {}
    for name, kind, scaling in _wanted(model, asked, length):
        try:
            alike = _layers_alike(model, scaling)
            for numbers in alike:
                curve = _curve(model, name, kind, scaling, numbers, length)
                if len(alike) > 1:
                    curve = replace(curve, name=f"{curve.name} ({_numbers(numbers)})")
                made[curve.name] = curve
        except ValueError as error:  # names a setting of the scaling, or of the geometry
            raise UserError(f"scalings: {name}: {error}") from None
    return list(made.values())


def check_curves(count: int) -> None:
    """UserError where there are none, or more than a figure tells apart."""
    if count == 0:
        raise UserError("scalings: give at least one")
    if count > MOST_CURVES:
        raise UserError(
            f"{count} curves are asked for, counting each kind of layer; a figure tells "
            f"{MOST_CURVES} apart"
        )


def _wanted(model: Model, asked: Asked, length: int) -> list[tuple[str, str, Scaling]]:
    """Name, kind and scaling."""
    if model.name and "scalings" not in asked.model_fields_set:
        earlier = {
            f"stage {number}: {_label(scaling)}": scaling
            for number, scaling in enumerate(model.stages)
            if scaling not in (*model.stages[:number], model.trained)
        }
        stages = [(name, scaling.type, scaling) for name, scaling in earlier.items()]
        return [*stages, ("trained", "trained", model.trained)]
    wanted = []
    for entry in asked.scalings:
        try:
            scaling = entry.at(length, model.window, model.trained)
        except ValidationError as error:  # what auto stands for does not fit its other settings
            message = error.errors()[0]["msg"].removeprefix("Value error, ")
            raise UserError(f"scalings: {entry.label}: {message}") from None
        wanted.append((entry.label, entry.type, scaling))
    return wanted


def _layers_alike(model: Model, scaling: Scaling) -> list[list[int]]:
    """Numbers of the layers that share all that a curve is made of."""
    alike: dict[Any, list[int]] = {}
    for layer in range(model.layers.count):
        geometry, own = model.layers.of(layer, scaling)
        _, trained = model.layers.of(layer, model.trained)
        settings = own.model_dump_json(), trained.model_dump_json()
        key = geometry, *settings, _of_its_own(model, layer), _sliding(model, layer)
        alike.setdefault(key, []).append(layer)
    return list(alike.values())


def _curve(
    model: Model, name: str, kind: str, scaling: Scaling, numbers: Sequence[int], length: int
) -> Curve:
    layer = numbers[0]
    geometry, own = model.layers.of(layer, scaling)
    _, trained = model.layers.of(layer, model.trained)
    if _of_its_own(model, layer):
        name, kind = _label(own), own.type
    # a query of a sliding window reads that far and no farther, in training and after it
    reach = _sliding(model, layer) or max(length, model.window)
    inv_freq, m = effective(own, geometry, length)
    pairs = Pairs(
        theta=geometry.inv_freq(),
        inv_freq=inv_freq,
        m=m,
        trained=effective(trained, geometry, model.window)[0],
        window=min(model.window, reach),
        length=min(length, reach),
    )
    return Curve(name, kind, own, geometry, pairs)


def _of_its_own(model: Model, layer: int) -> bool:
    pattern = model.layers.pattern
    return pattern[layer % len(pattern)].scaling is not None


def _sliding(model: Model, layer: int) -> int | None:
    return model.sliding[layer % len(model.sliding)]


def _numbers(layers: Sequence[int]) -> str:
    """The first few, which tell them from others: layers 0–2, 4–6, …"""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    shown = [f"{run[0]}–{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
    shown[2:] = ["…"] if len(shown) > 2 else []
    return f"layer{'s' if len(layers) > 1 else ''} {', '.join(shown)}"


def _label(scaling: Scaling) -> str:
    """Type and factor, as a sweep names its curves."""
    return ENTRIES[scaling.type].model_validate(scaling.model_dump()).label
