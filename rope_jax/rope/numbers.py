"""Kinds of numbers that settings take."""

from typing import Annotated

from pydantic import BeforeValidator, Field

# Fields are strict: true is no number, "10" is text. But 1e3 and 3.0 are whole numbers: YAML has
# no other way to write a large one shortly.
Whole = BeforeValidator(lambda v: int(v) if isinstance(v, float) and v.is_integer() else v)

# What a sweep's "auto" may stand for: length / window. Marks the fields that mean it.
EXTENSION = "extension factor"
Factor = Annotated[
    float,
    Field(ge=1, allow_inf_nan=False, description="s, how many times longer the context becomes"),
    EXTENSION,
]
AttentionFactor = Annotated[float, Field(gt=0, lt=1e6)]
