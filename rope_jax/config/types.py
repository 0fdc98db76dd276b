"""Kinds of values that several configs share, and the frozen base of every config model."""

from typing import Annotated

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
)

from rope_jax.rope.numbers import Whole

PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
# JAX counts in 32 bits.
PositiveInt = Annotated[int, Field(gt=0, lt=2**31), Whole]
NonNegativeInt = Annotated[int, Field(ge=0, lt=2**31), Whole]
Length = Annotated[int, Field(ge=2, lt=2**31), Whole]
Seed = Annotated[int, Field(ge=0, lt=2**32), Whole]
# A name becomes a folder; it may not climb out of its parent.
FolderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._=+-]*$", max_length=200)]


def _as_a_path(text: str) -> str:
    if "\0" in text:
        raise ValueError("holds a NUL character, which no file's name can")
    if any(len(name.encode()) > 255 for name in text.split("/")):
        raise ValueError("a name in it is longer than 255 bytes, the most a file's name can have")
    return text


PathText = Annotated[str, AfterValidator(_as_a_path)]


class Frozen(BaseModel):
    """Immutable, an unknown key is an error, and so is a value of another type."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
