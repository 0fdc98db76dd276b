"""Value types that several configs share, and the frozen base class of every config model."""

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from rope_jax.rope.settings import Whole

# Generous upper bound; much larger values overflow float32.
Moderate = Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1)]
Weight = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)]
# JAX's integers have 32 bits.
PositiveInt = Annotated[int, Field(gt=0, lt=2**31), Whole]
NonNegativeInt = Annotated[int, Field(ge=0, lt=2**31), Whole]
Count = Annotated[int, Field(gt=0, le=2**16), Whole]
Length = Annotated[int, Field(ge=2, lt=2**31), Whole]
# A resample of 64 documents takes 2 microseconds, and a sweep has a hundred points.
Resamples = Annotated[
    int, Field(gt=0, le=100_000, description="bootstrap resamples of the documents"), Whole
]
Step = Annotated[
    PositiveInt | None, Field(description="training step of the checkpoint; null: the newest")
]
Tolerance = Annotated[
    PositiveFloat, Field(description="usable length: most nats above the NLL at the window")
]
Seed = Annotated[int, Field(ge=0, lt=2**32), Whole]
T = TypeVar("T")
ListOf = Annotated[tuple[T, ...], Field(strict=False)]
NonEmpty = Annotated[tuple[T, ...], Field(min_length=1, strict=False)]
# A name becomes a folder, which must not lie outside its parent.
FolderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._=+-]*$", max_length=200)]


def _check_ascending(values: T) -> T:
    if isinstance(values, tuple) and list(values) != sorted(set(values)):
        raise ValueError(f"{list(values)} must be ascending, without repeats")
    return values


Ascending = AfterValidator(_check_ascending)


def distinct(name_of: Callable[[Any], str], advice: str = "") -> AfterValidator:
    """Refuse several elements with the same name."""

    def check(values: Iterable[Any] | None) -> Iterable[Any] | None:
        names = [name_of(value) for value in values or ()]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"{', '.join(repeated)} occurs twice{advice}")
        return values

    return AfterValidator(check)


def from_text(key: str, schema: object) -> BeforeValidator:
    """Accept text in place of a section: the value of its `key`. schema: JSON schema of both."""
    return BeforeValidator(
        lambda value: {key: value} if isinstance(value, str) else value,
        json_schema_input_type=schema,
    )


def bare_names(models: Mapping[str, type[BaseModel]], without: str = "") -> list[str]:
    """Return the members of a union that are complete as a bare name, but for the key `without`."""
    return [
        name
        for name, model in models.items()
        if not any(f.is_required() for key, f in model.model_fields.items() if key != without)
    ]


class Frozen(BaseModel):
    """A config model: immutable, and strict about unknown keys and about the types of values."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)
