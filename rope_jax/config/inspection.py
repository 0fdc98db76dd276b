"""Schemas of inspections: scalings of a bare geometry or a model's layers, and maps."""

import operator
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, model_validator

from rope_jax.config.entries import Entries, TrainedEntry, parse_entries
from rope_jax.config.inherit import training_config
from rope_jax.config.load import dump, dump_yaml, read_raw, validate
from rope_jax.config.model import Base
from rope_jax.config.training import TrainingConfig
from rope_jax.config.types import Frozen, Length, bare_names, distinct, from_text
from rope_jax.errors import UserError
from rope_jax.positions.maps import MAPS, AnyMap
from rope_jax.rope import RotaryGeometry
from rope_jax.rope.settings import Whole, single_error

MAX_MAPPED_LENGTH = 2**13  # visiting every pair of tokens takes nearly a second per map


FigurePath = Annotated[
    str, Field(pattern=r"[^/]\.(png|pdf|svg)$"), single_error("should end in .png, .pdf or .svg")
]
RotaryDim = Annotated[int, Field(ge=2, le=2**12, multiple_of=2), Whole]


class ScalingConfig(Frozen):
    """Config of rope-jax show: a bare geometry's scalings, or a training config's."""

    rotary_dim: RotaryDim = Field(64, description="d; a training config sets d, b and L itself")
    base: Base = Field(10000.0, description="b, the base of the frequencies")
    train_length: Length = Field(4096, description="L, tokens in a training window")
    length: Length | None = Field(None, description="n, tokens in the text; null: 4 windows")
    scalings: Entries = Field(default_factory=lambda: parse_entries("none", "pi", "ntk", "yarn"))
    output: FigurePath = Field("scaling.png", description="the figure: .png, .pdf or .svg")


ShownMap = Annotated[AnyMap, from_text("type", str | dict[str, Any])]

# every map with its defaults, and far_frequencies with a scaling as an example
_DEFAULT_MAPS = [
    *bare_names(MAPS),
    {"type": "far_frequencies", "far": {"type": "ntk", "factor": 8}},
]


class MapsConfig(Frozen):
    """Config of rope-jax maps."""

    maps: Annotated[
        tuple[ShownMap, ...],
        Field(min_length=1, max_length=15, strict=False),
        distinct(operator.attrgetter("label")),
    ] = Field(
        description="one panel each, after plain RoPE: a name, or settings",
        default_factory=lambda: TypeAdapter(tuple[ShownMap, ...]).validate_python(_DEFAULT_MAPS),
    )
    window: Length = Field(128, description="L, tokens in a training window")
    length: Length | None = Field(None, description="n, tokens in the text; null: 4 windows")
    rotary_dim: RotaryDim = Field(64, description="d; matters to far_frequencies only")
    base: Base = Field(10000.0, description="b; matters to far_frequencies only")
    output: FigurePath = Field("maps.png", description=".png, .pdf or .svg, and a .csv beside it")

    @model_validator(mode="after")
    def _can_be_drawn(self) -> "MapsConfig":
        if self.text_length > MAX_MAPPED_LENGTH:
            raise ValueError(f"length: {self.text_length:,} is more than {MAX_MAPPED_LENGTH:,}")
        return self

    @property
    def geometry(self) -> RotaryGeometry:
        return RotaryGeometry(self.rotary_dim, self.base, self.window)

    @property
    def text_length(self) -> int:
        return self.length or 4 * self.window


def load_inspection(
    schema: type[ScalingConfig], path: Path | None, overrides: Sequence[str]
) -> tuple[ScalingConfig, TrainingConfig | None]:
    """Return the inspection in a config file, and the training config if the file is one.

    A file with `stages` is a training config; `length`, `scalings` and `output` may be added to it.
    UserError: one of the two is not valid.
    """
    raw, origin = read_raw(path, overrides)
    if "stages" in raw:
        added = {key: raw.pop(key) for key in ("length", "scalings", "output") if key in raw}
        return validate(schema, added, origin), training_config(raw, origin)
    inspection = validate(schema, raw, origin)
    if any(isinstance(entry, TrainedEntry) for entry in inspection.scalings):
        raise UserError(
            f"{origin}: scalings: trained needs a training config; for a bare geometry write none"
        )
    return inspection, None


def dump_inspection(inspection: ScalingConfig, training: TrainingConfig | None) -> str:
    """Return the results of `load_inspection` as YAML, which loads as the same two."""
    if training is None:
        return dump(inspection)
    # without keys that were not given, whose defaults come from the training config
    given = inspection.model_dump(exclude_unset=True, mode="json")
    return dump_yaml(training.model_dump(mode="json") | given)


def check_writable(*paths: Path) -> None:
    """UserError if one of these output files cannot be written; to call before computing them."""
    for path in paths:
        if os.path.isdir(path):
            raise UserError(f"output: {path} is a folder; name a file")
        if not (os.path.isdir(path.parent) and os.access(path.parent, os.W_OK)):
            raise UserError(f"output: {path.parent} is not a writable folder; name another")
