"""Types of the numbers that settings hold, shared by the strategies and by every config."""

from typing import Annotated

from pydantic import BeforeValidator, Field

# Settings are strict: `true` is not a number and "10" is not one either. But 1e3 and 3.0 count as
# whole numbers, because YAML has no other short way to write a large one.
Whole = BeforeValidator(
    lambda value: int(value) if isinstance(value, float) and value.is_integer() else value
)

# Marks the field that a sweep's `factor: auto` sets, to length / window.
EXTENSION = "extension factor"
Factor = Annotated[
    float,
    Field(ge=1, allow_inf_nan=False, description="s, how many times longer the context becomes"),
    EXTENSION,
]
AttentionFactor = Annotated[float, Field(gt=0, lt=1e6)]
