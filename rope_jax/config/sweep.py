"""What a sweep can be asked for. Imports no jax."""

import functools
import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, Union, get_args

from pydantic import (
    BeforeValidator,
    Field,
    TypeAdapter,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    create_model,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from rope_jax.config.devices import DistributedConfig
from rope_jax.config.model import AttentionName
from rope_jax.config.types import FolderName, Frozen, Length, PositiveFloat, PositiveInt, Seed
from rope_jax.rope import STRATEGIES, Scaling
from rope_jax.rope.numbers import EXTENSION
from rope_jax.rope.strategies.registry import PLAIN
from rope_jax.rope.strategies.resonance import ResonanceScaling

Protocol = Literal["same_tokens", "whole_window", "sliding", "per_position", "yarn_compat"]
Bos = Literal["document", "every_window", "none"]


class SweepEntry(Frozen):
    """One curve: a strategy's settings and a name; its factor may be "auto"."""

    type: str
    name: FolderName | None = Field(
        None, description="the curve's name; null: made of type and factor"
    )

    @model_validator(mode="after")
    def _trained_is_trained(self) -> Self:
        if self.name == "trained" and self.type != "trained":
            raise ValueError("name: trained is the checkpoint's own scaling; choose another")
        return self

    @property
    def factor_label(self) -> str:
        """The factor as given: a number, "auto", or "" where there is none but the default."""
        factor = getattr(self, "factor", None)
        field = type(self).model_fields.get("factor")
        if field is not None and factor == field.default:
            return ""
        return factor if isinstance(factor, str) else "" if factor is None else f"{factor:g}"

    @property
    def label(self) -> str:
        """The curve's name, unique in the sweep."""
        inner = getattr(self, "inner", None)
        parts = (self.type, inner.type if inner else "", self.factor_label)
        return self.name or "-".join(part for part in parts if part)

    def at(self, length: int, window: int, trained: Scaling) -> Scaling:
        """The scaling to use at a length; `trained` is the checkpoint's own.

        factor "auto" is length / window, at least 1: an oracle that knows the length.
        """
        if self.type == "trained":
            return trained
        settings = self.model_dump(exclude={"name"})
        for strategy in (settings, settings.get("inner", {})):
            if strategy.get("factor") == "auto":
                strategy["factor"] = max(1.0, length / window)
        return STRATEGIES[self.type](**settings)


class TrainedEntry(SweepEntry):
    """The checkpoint's own scaling: the baseline that others are compared with."""

    type: Literal["trained"] = "trained"


def _factor(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    """One complaint, not one for each of the two things that a factor may be."""
    try:
        return handler(value)
    except ValidationError:
        message = "should be auto or a number of at least 1"
        raise PydanticCustomError("factor", message) from None


def _steps(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    """One complaint, not one for each of the things that `steps` may be."""
    try:
        return handler(value)
    except ValidationError:
        message = "should be all, or a list of training steps from 1 on"
        raise PydanticCustomError("steps", message) from None


def _is_extension(field: FieldInfo) -> bool:
    """Whether a field is how many times longer the context becomes."""
    inside = [getattr(part, "__metadata__", ()) for part in get_args(field.annotation)]
    return any(EXTENSION in metadata for metadata in (field.metadata, *inside))


def _with_auto(strategy: type[Scaling], name: str, *bases: Any, **fields: Any) -> Any:
    """The strategy's own settings, but that its factor may be "auto"."""
    field = strategy.model_fields.get("factor")
    if field is not None and _is_extension(field):
        choices: Any = Literal["auto"] | Annotated[float, Field(ge=1, allow_inf_nan=False)]
        if field.default is None:
            choices = choices | None
        either = Annotated[choices, WrapValidator(_factor)]
        description = "s; auto: length / window, at least 1"
        fields["factor"] = (either, Field(default=field.default, description=description))
    return create_model(name, __base__=(strategy, *bases), __doc__=strategy.__doc__, **fields)


def _inner() -> Any:
    """What resonance may stand on, its factor "auto" or not."""
    models = [_with_auto(strategy, strategy.__name__ + "Inner") for strategy in PLAIN]
    field = ResonanceScaling.model_fields["inner"]
    union = functools.reduce(operator.or_, models)
    default = Field(default=models[0](), description=field.description)
    return Annotated[union, Field(discriminator="type")], default


def _entry_model(strategy: type[Scaling]) -> type[SweepEntry]:
    """The strategy's own settings, plus a name; its factor may be "auto"."""
    fields = {"inner": _inner()} if strategy is ResonanceScaling else {}
    return _with_auto(strategy, strategy.__name__ + "Entry", SweepEntry, **fields)


ENTRIES: Mapping[str, type[SweepEntry]] = {
    "trained": TrainedEntry,
    **{name: _entry_model(strategy) for name, strategy in STRATEGIES.items()},
}


def _as_settings(entry: Any) -> Any:
    """A bare name, or a strategy made in Python, as an entry's settings."""
    if isinstance(entry, Scaling) and not isinstance(entry, SweepEntry):
        return entry.model_dump()
    return {"type": entry} if isinstance(entry, str) else entry


if TYPE_CHECKING:
    AnyEntry = SweepEntry
else:
    _ByType = Annotated[Union[*ENTRIES.values()], Field(discriminator="type")]
    AnyEntry = Annotated[
        _ByType,
        BeforeValidator(_as_settings, json_schema_input_type=Literal["trained", "none"] | _ByType),
    ]


def _default_scalings() -> tuple[SweepEntry, ...]:
    raw = ["trained", *({"type": name, "factor": "auto"} for name in ("pi", "ntk", "yarn"))]
    return TypeAdapter(tuple[AnyEntry, ...]).validate_python(raw)


class SweepConfig(Frozen):
    """Perplexity over context length, for many scalings, on one set of documents."""

    name: FolderName = Field("sweep", description="the folder in the run's evals/")
    steps: Annotated[
        Literal["all"] | Annotated[tuple[PositiveInt, ...], Field(strict=False)] | None,
        WrapValidator(_steps),
    ] = Field(
        None,
        description="checkpoints to sweep, by training step, to see the curve form: a list, or all "
        "that the run has kept; null: the newest",
    )
    lengths: Annotated[tuple[Length, ...], Field(strict=False)] | None = Field(
        None, description="context lengths; null: the window times 1/2, 1, 2, 4, 8 and 16"
    )
    protocols: Annotated[tuple[Protocol, ...], Field(min_length=1, strict=False)] = Field(
        ("same_tokens",), description="how windows are cut and which of their tokens count"
    )
    scalings: Annotated[tuple[AnyEntry, ...], Field(min_length=1, strict=False)] = Field(
        description="one curve each: trained, or a strategy with a factor or auto",
        default_factory=_default_scalings,
    )
    max_documents: PositiveInt = Field(64, description="documents, the same for all lengths")
    max_blocks: PositiveInt = Field(
        2, description="same_tokens: scored blocks a document; else its text in longest windows"
    )
    targets: PositiveInt | None = Field(
        None, description="same_tokens: scored tokens a block; null: half the shortest length"
    )
    stride: PositiveInt | None = Field(
        None,
        description="sliding, yarn_compat: tokens from one window to the next; "
        "null: 256, or half the shortest length where that is less",
    )
    bos: Bos = Field(
        "document", description="where the document-start token stands; training has it as document"
    )
    split: Literal["test", "validation"] = Field(
        "test", description="what is read; test is what figures come from"
    )
    seed: Seed = Field(0, description="of the choice of documents, blocks and resamples")
    memory_gib: PositiveFloat | None = Field(
        None,
        description="for one batch; sets its size at each length; null: half of an accelerator's "
        "memory, 1/32 on a CPU, which is fastest with small ones",
    )
    attention: AttentionName | None = Field(
        None, description="backend to read with; null: that of the training"
    )
    tolerance: PositiveFloat = Field(
        0.02, description="usable length: nats above the value at the window that still pass"
    )
    resamples: PositiveInt = Field(2000, description="bootstrap resamples of the documents")
    distributed: DistributedConfig | None = Field(
        None, description="null: this process is the whole sweep"
    )

    @model_validator(mode="after")
    def _protocols_are_unique(self) -> Self:
        if len(set(self.protocols)) < len(self.protocols):
            raise ValueError(f"protocols: {', '.join(self.protocols)} names one twice")
        return self

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        labels = [entry.label for entry in self.scalings]
        taken = {"sweep.yaml", "results.csv", "results.jsonl", "documents.csv", "summary.json",
                 "curve.png", "steps.png"}  # fmt: skip
        if taken & set(labels):
            raise ValueError(f"scalings: {', '.join(taken & set(labels))} is a file of the results")
        twice = {label for label in labels if labels.count(label) > 1}
        if twice:
            raise ValueError(f"scalings: {', '.join(sorted(twice))} stands twice; give a name")
        return self

    @model_validator(mode="after")
    def _steps_rise(self) -> Self:
        if self.steps is None or self.steps == "all":
            return self
        if not self.steps:
            raise ValueError("steps: give at least one, or all, or null for the newest")
        if list(self.steps) != sorted(set(self.steps)):
            raise ValueError(f"steps: {list(self.steps)} must rise without repeats")
        return self

    @model_validator(mode="after")
    def _lengths_rise(self) -> Self:
        lengths = self.lengths
        if lengths is not None:
            if not lengths:
                raise ValueError("lengths: give at least one")
            if list(lengths) != sorted(set(lengths)):
                raise ValueError(f"lengths: {list(lengths)} must rise without repeats")
            if self.targets is not None:
                check_targets(self.targets, lengths)
            if self.stride is not None:
                check_stride(self.stride, lengths)
        return self


def check_targets(targets: int, lengths: tuple[int, ...]) -> None:
    """At most half of the shortest length may be scored, so that every target has a context."""
    if targets > lengths[0] // 2:
        raise ValueError(
            f"lengths: {lengths[0]} is too short for {targets} scored targets; "
            f"the shortest length must be at least {2 * targets}, or targets at most "
            f"{lengths[0] // 2}"
        )


def check_stride(stride: int, lengths: tuple[int, ...]) -> None:
    """Windows further apart than they are long would leave tokens out."""
    if stride > lengths[0]:
        raise ValueError(
            f"stride: {stride} is more than the shortest length, {lengths[0]}: tokens between "
            "the windows would not be scored"
        )
