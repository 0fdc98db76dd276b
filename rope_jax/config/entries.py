"""Schema of a sweep's entries: one curve each.

An entry is written flat: `{type: yarn, factor: auto, beta_fast: 8, name: mine}`. For each strategy,
a model with exactly these keys is derived from the strategy's own.
"""

import functools
import operator
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Union

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    TypeAdapter,
    create_model,
    model_validator,
)

from rope_jax.config.schema import flat
from rope_jax.config.strategy import Strategy, is_strategy_file, read_strategy
from rope_jax.config.types import FolderName, Frozen, ListOf, NonEmpty, bare_names, distinct
from rope_jax.positions.maps import AnyMap, PositionMap
from rope_jax.rope import STRATEGIES, Scaling
from rope_jax.rope.settings import single_error
from rope_jax.rope.strategies.inner import BucketedScaling, ResonanceScaling
from rope_jax.rope.strategies.registry import PLAIN


class Trained(NamedTuple):
    """How the checkpoints of a stage were trained; window in tokens, and the map without "auto"."""

    window: int
    scaling: Scaling
    map: PositionMap | None


class SweepEntry(Frozen):
    """One curve of a sweep: a scaling and a name. A factor of "auto" follows the length."""

    type: str
    name: FolderName | None = Field(None, description="null: its type, factor, map and query scale")
    map: AnyMap | None = Field(None, description="position map; null: none; trained: its own")

    @model_validator(mode="after")
    def _trained_is_reserved(self) -> "SweepEntry":
        if self.name == "trained" and (self.type != "trained" or self.map is not None):
            raise ValueError("name: trained means the checkpoint as it is; choose another")
        return self

    @property
    def is_auto(self) -> bool:
        """Whether the factor, or a setting of the map, follows from length and window."""
        return self.factor_is_auto or (self.map is not None and self.map.is_auto)

    @property
    def factor_is_auto(self) -> bool:
        return self._written_factor == "auto"

    @property
    def factor_label(self) -> str:
        """The factor as given, "" for the default; of bucketed, all factors, such as "1-4-16"."""
        if isinstance(self, BucketedScaling):
            return "-".join(f"{factor:g}" for factor in self.factors)
        field, factor = type(self).model_fields.get("factor"), self._written_factor
        if factor is None or (field is not None and factor == field.default):
            return ""
        return factor if isinstance(factor, str) else f"{factor:g}"

    @property
    def _written_factor(self) -> float | str | None:
        """The factor as in the file, that of resonance being its inner strategy's; None without."""
        factor: float | str | None = getattr(getattr(self, "inner", self), "factor", None)
        return factor

    @property
    def label(self) -> str:
        """The curve's name: its own, or what it reads with, such as "yarn-8-rerope-logn"."""
        scaling = "" if self.type == "none" and self.map else self.type
        parts = (getattr(self, key, None) for key in ("inner", "map", "query_scale"))
        inner, *others = (getattr(part, "type", "") for part in parts)
        return self.name or "-".join(filter(None, (scaling, inner, self.factor_label, *others)))

    def at(self, length: int, window: int, trained: Scaling) -> Scaling:
        """Return the scaling to use at a length; `trained` is the checkpoint's own.

        A factor of "auto" is length / window, at least 1: an oracle that knows the length.
        Raises ValueError if that factor does not fit the other settings.
        """
        scaling, factor = self.scaling_at_window, max(1.0, length / window)
        return scaling.with_factor(factor) if self.factor_is_auto else scaling

    def map_at(self, length: int, window: int, trained: PositionMap | None) -> PositionMap | None:
        """Return the position map to use at a length. ValueError: "auto" has no solution."""
        return None if self.map is None else self.map.at(window, length)

    @functools.cached_property
    def scaling_at_window(self) -> Scaling:
        """The strategy without the entry's name; an "auto" factor is 1, as at the window."""
        settings = self.model_dump(exclude={"name", "map"})
        for strategy in (settings, settings.get("inner", {})):
            if strategy.get("factor") == "auto":
                strategy["factor"] = 1.0
        return STRATEGIES[self.type].model_validate(settings)


class TrainedEntry(SweepEntry):
    """The checkpoint's own scaling: the baseline that others are compared with."""

    type: Literal["trained"] = "trained"

    def at(self, length: int, window: int, trained: Scaling) -> Scaling:
        return trained

    def map_at(self, length: int, window: int, trained: PositionMap | None) -> PositionMap | None:
        return super().map_at(length, window, trained) or trained


def _with_auto(strategy: type[Scaling], name: str, *bases: Any, **fields: Any) -> Any:
    """Derive a model from a strategy; its extension factor, if it has one, may be "auto"."""
    if strategy.has_extension_factor():
        field = strategy.model_fields["factor"]
        type_: Any = Literal["auto"] | Annotated[float, Field(ge=1, allow_inf_nan=False)]
        if field.default is None:
            type_ = type_ | None
        type_ = Annotated[type_, single_error("should be auto or a number of at least 1")]
        description = f"{field.description}; auto: length / window, at least 1"
        fields["factor"] = (type_, Field(default=field.default, description=description))
    return create_model(name, __base__=(strategy, *bases), __doc__=strategy.__doc__, **fields)


def _entry_model(strategy: type[Scaling]) -> Any:
    fields = {}
    if strategy is ResonanceScaling:  # the factor of its inner strategy may be "auto" as well
        models = [_with_auto(inner, f"{inner.__name__}Inner") for inner in PLAIN]
        union = functools.reduce(operator.or_, models)
        description = strategy.model_fields["inner"].description
        default = Field(default=models[0](), description=description)
        fields["inner"] = Annotated[union, Field(discriminator="type")], default
    return _with_auto(strategy, f"{strategy.__name__}Entry", SweepEntry, **fields)


ENTRIES: Mapping[str, type[SweepEntry]] = {
    "trained": TrainedEntry,
    **{name: _entry_model(strategy) for name, strategy in STRATEGIES.items()},
}


def _as_settings(entry: object) -> object:
    """Return the settings of an entry that may be given in a short form.

    The forms are a bare name, whose extension factor is then auto, a strategy object, and the path
    of a strategy file, alone or as {type: PATH, name: …}; its folder names the curve.
    """
    if isinstance(entry, str):
        strategy = STRATEGIES.get(entry)
        extends = strategy is not None and strategy.has_extension_factor()
        entry = {"type": entry} | ({"factor": "auto"} if extends else {})
    if isinstance(entry, dict) and is_strategy_file(path := entry.get("type")):
        if more := sorted(set(entry) - {"type", "name"}):
            raise ValueError(f"{more[0]}: cannot be given beside a strategy file")
        name = entry.get("name") or Path(path).absolute().parent.name
        return entry_settings(read_strategy(path), name)
    if isinstance(entry, Scaling) and not isinstance(entry, SweepEntry):
        return entry.model_dump()
    return entry


def entry_settings(strategy: Strategy, name: str) -> dict[str, Any]:
    """Return the settings of the entry that reads with a strategy."""
    settings = strategy.scaling.model_dump(exclude_none=True) | {"name": name}
    if strategy.map is not None:
        settings["map"] = strategy.map.model_dump()
    return settings


if TYPE_CHECKING:
    AnyEntry = SweepEntry
else:
    _ByType = Annotated[Union[*ENTRIES.values()], Field(discriminator="type")]
    AnyEntry = Annotated[
        _ByType,
        BeforeValidator(
            _as_settings, json_schema_input_type=Literal[*bare_names(ENTRIES, "factor")] | _ByType
        ),
    ]


def _with_own_labels(entries: tuple[SweepEntry, ...]) -> tuple[SweepEntry, ...]:
    """Name entries of one label by the settings in which they differ: "rerope-window=64"."""
    named = []
    for entry in entries:
        alike = [_settings(other) for other in entries if other.label == entry.label]
        common = set.intersection(*(set(settings.items()) for settings in alike))
        differs = [(key, x) for key, x in _settings(entry).items() if (key, x) not in common]
        if differs and entry.name is None:
            suffixes = [f"{key.rpartition('.')[2]}={x}" for key, x in differs]
            entry = entry.model_copy(update={"name": "-".join([entry.label, *suffixes])})
        named.append(entry)
    return tuple(named)


def _settings(entry: SweepEntry) -> dict[str, str]:
    """Return the settings that are not defaults and can be part of a name, by dotted key."""
    given = flat(entry.model_dump(exclude_defaults=True, exclude={"name"}))
    texts = {key: f"{x:g}" if isinstance(x, float) else str(x) for key, x in given.items()}
    return {key: x for key, x in texts.items() if re.fullmatch(r"[\w.+-]{1,40}", x, re.ASCII)}


_Named = (
    AfterValidator(_with_own_labels),
    distinct(operator.attrgetter("label"), "; give one a name"),
    Field(description="one curve each: trained, or a strategy, its factor fixed or auto (n/L)"),
)
Entries = Annotated[ListOf[AnyEntry], *_Named]
Scalings = Annotated[NonEmpty[AnyEntry], *_Named]


def parse_entries(*entries: object) -> tuple[SweepEntry, ...]:
    """Return the entries that a config of a sweep would have. Raises ValidationError."""
    return TypeAdapter(Entries).validate_python(entries)
