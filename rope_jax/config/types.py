"""Value types that several configs share, and the frozen base class of every config model."""

import contextlib
from collections.abc import Iterator
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from rope_jax.rope.numbers import Whole

# Up to a value far beyond every useful one. In float32, much larger ones give infinite numbers.
Moderate = Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
# JAX's integers have 32 bits.
PositiveInt = Annotated[int, Field(gt=0, lt=2**31), Whole]
NonNegativeInt = Annotated[int, Field(ge=0, lt=2**31), Whole]
Length = Annotated[int, Field(ge=2, lt=2**31), Whole]
# A resample of 64 documents takes 2 microseconds, and a sweep has a hundred points.
Resamples = Annotated[int, Field(gt=0, le=100_000), Whole]
Seed = Annotated[int, Field(ge=0, lt=2**32), Whole]
# A name becomes a folder, which must not lie outside its parent.
FolderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._=+-]*$", max_length=200)]


def _check_path(text: str) -> str:
    if "\0" in text:
        raise ValueError("contains a NUL character, which a file name cannot have")
    if any(len(name.encode()) > 255 for name in text.split("/")):
        raise ValueError("contains a name longer than 255 bytes, the limit for a file name")
    return text


PathText = Annotated[str, AfterValidator(_check_path)]


class Frozen(BaseModel):
    """A config model: immutable, and strict about unknown keys and about the types of values."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


@contextlib.contextmanager
def errors_in(section: str, kind: type[Exception] = ValueError) -> Iterator[None]:
    """Name the section of a ValueError, which begins with a key in it: errors_in("rope.").

    kind: what is raised in its place.
    """
    try:
        yield
    except ValueError as error:
        raise kind(f"{section}{error}") from None
