"""Schema of a sweep's entries: one curve each.

An entry is written flat: `{type: yarn, factor: auto, beta_fast: 8, name: mine}`. For each strategy,
a model with exactly these keys is derived from the strategy's own.
"""

import functools
import operator
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Union

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    TypeAdapter,
    create_model,
    model_validator,
)

from rope_jax.config.schema import flat
from rope_jax.config.strategy import Strategy, is_strategy_file, read_strategy
from rope_jax.config.types import FolderName, Frozen, ListOf, NonEmpty, bare_names, distinct
from rope_jax.positions.maps import AnyMap, PositionMap
from rope_jax.positions.maps.rerope import FarFrequencies
from rope_jax.rope import STRATEGIES, Scaling
from rope_jax.rope.settings import single_error
from rope_jax.rope.strategies.inner import BucketedScaling, ResonanceScaling
from rope_jax.rope.strategies.over import over
from rope_jax.rope.strategies.registry import PLAIN

_AutoFactor = Literal["auto"] | Annotated[float, Field(ge=1, allow_inf_nan=False)]
_FactorError = single_error("should be auto or a number of at least 1")


class Trained(NamedTuple):
    """How the checkpoints of a stage were trained; lengths in tokens, the map without "auto"."""

    window: int
    scaling: Scaling
    map: PositionMap | None
    train_length: int


class SweepEntry(Frozen):
    """One curve of a sweep: a scaling and a name. A factor of "auto" follows the length."""

    type: str
    name: FolderName | None = Field(None, description="null: its type, factor, map and query scale")
    map: AnyMap | None = Field(None, description="position map; null: none; trained: its own")
    over: Literal["trained", "base"] | None = Field(
        None,
        description="what it acts on: trained frequencies and the window, or base and L; null: "
        "trained if the model has a scaling of its own, else base",
    )
    layers: Literal["global", "all"] = Field(
        "global", description="all: over trained, local layers are scaled as well"
    )

    _difference: str = PrivateAttr("")
    """Settings in which it differs from other entries of a sweep, as part of its name."""

    @model_validator(mode="after")
    def _trained_is_reserved(self) -> "SweepEntry":
        if self.name == "trained" and not self.is_baseline:
            raise ValueError("name: trained means the checkpoint as it is; choose another")
        if self.layers == "all" and self.over == "base":
            raise ValueError("layers: all goes with over: trained")
        return self

    @property
    def is_baseline(self) -> bool:
        """Whether it is the checkpoint as it was trained."""
        return False

    def resolved(self, trained: Scaling) -> "SweepEntry":
        """Return the entry with what it acts on, for a model trained with a scaling.

        Without one, `over` stays null, which means base.
        """
        is_map_alone = self.type == "none" and self.map is not None
        if self.over is not None or (trained.type == "none" and self.layers == "global"):
            return self
        if self.scaling_at_window.replaces_frequencies and not is_map_alone:
            return self
        return self.model_copy(update={"over": "trained"})

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
        over = f"over-{self.over}" if self.over else ""
        words = (scaling, inner, self.factor_label, *others, over, self._difference)
        return self.name or "-".join(filter(None, words))

    def at(self, length: int, trained: Trained) -> Scaling:
        """Return the scaling to use at a length for a checkpoint.

        A factor of "auto" is at least 1: length / window over trained frequencies, length / L over
        the base. It is an oracle that knows the length. ValueError: it does not fit the other
        settings.
        """
        of_factor_1 = trained.train_length if self.over == "base" else trained.window
        scaling = self.scaling_at_window
        if self.factor_is_auto:
            scaling = scaling.with_factor(max(1.0, length / of_factor_1))
        if self.over != "trained":
            return scaling
        return over(scaling, trained.scaling, trained.window, self.layers)

    def map_at(self, length: int, trained: Trained) -> PositionMap | None:
        """Return the position map to use at a length. ValueError: "auto" has no solution."""
        map_ = None if self.map is None else self.map.at(trained.window, length)
        if isinstance(map_, FarFrequencies) and self.over == "trained":
            of_model = trained.scaling.model_copy(update={"query_scale": None})
            far = over(map_.far, of_model, trained.window, self.layers)
            return map_.model_copy(update={"far": far})
        return map_

    @functools.cached_property
    def scaling_at_window(self) -> Scaling:
        """The strategy without the entry's name; an "auto" factor is 1, as at the window."""
        strategy = STRATEGIES[self.type]
        settings = self.model_dump(include=set(strategy.model_fields))
        for part in (settings, settings.get("inner", {})):
            if part.get("factor") == "auto":
                part["factor"] = 1.0
        return strategy.model_validate(settings)


class TrainedEntry(SweepEntry):
    """The checkpoint's own scaling, the baseline of others; or that with a larger factor."""

    type: Literal["trained"] = "trained"
    over: Annotated[
        None, single_error("should be left out: trained is the model's own scaling itself")
    ] = Field(None, description="null")
    factor: Annotated[_AutoFactor | None, _FactorError] = Field(
        None, description="in place of its own; auto: its own · length / window; null: its own"
    )

    @property
    def is_baseline(self) -> bool:
        return self.map is None and self.factor is None

    def resolved(self, trained: Scaling) -> SweepEntry:
        return self

    def at(self, length: int, trained: Trained) -> Scaling:
        scaling, factor = trained.scaling, self.factor
        if factor == "auto":
            factor = (getattr(scaling, "factor", None) or 1.0) * max(1.0, length / trained.window)
        return scaling if factor is None else scaling.continued(factor)

    def map_at(self, length: int, trained: Trained) -> PositionMap | None:
        return super().map_at(length, trained) or trained.map


def _with_auto(strategy: type[Scaling], name: str, *bases: Any, **fields: Any) -> Any:
    """Derive a model from a strategy; its extension factor, if it has one, may be "auto"."""
    if strategy.has_extension_factor():
        field = strategy.model_fields["factor"]
        type_: Any = _AutoFactor if field.default is not None else _AutoFactor | None
        type_ = Annotated[type_, _FactorError]
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


def own_entry(entries: Sequence[SweepEntry], trained: Trained) -> str | None:
    """Return the name of the curve with a checkpoint's own scaling, or None.

    It is `trained`, or one that equals it, such as `none` for a model trained without scaling; an
    `auto` factor that happens to equal the trained one at some lengths does not count.
    """
    for entry in sorted(entries, key=lambda entry: not entry.is_baseline):
        read = entry.at(trained.window, trained), entry.map_at(trained.window, trained)
        if read == (trained.scaling, trained.map) and not entry.is_auto:
            return entry.label
    return None


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
    """Return the settings of the entry that reads with a strategy, which is complete in itself."""
    settings = strategy.scaling.model_dump(exclude_none=True) | {"name": name, "over": "base"}
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
            entry = entry.model_copy()
            entry._difference = "-".join(suffixes)
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
