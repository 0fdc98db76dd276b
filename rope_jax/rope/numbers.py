"""Types of settings, shared by the strategies and every config."""

from collections.abc import Callable
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WrapValidator
from pydantic_core import PydanticCustomError

# Settings are strict: neither `true` nor "10" is a number. But 1e3 and 3.0 count as whole
# numbers, because YAML has no other short way to write large ones.
Whole = BeforeValidator(
    lambda value: int(value) if isinstance(value, float) and value.is_integer() else value
)

Factor = Annotated[
    float,
    Field(ge=1, allow_inf_nan=False, description="s, how many times longer the context becomes"),
]
AttentionFactor = Annotated[float, Field(gt=0, lt=1e6)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
PairFactors = Annotated[tuple[Positive, ...], Field(strict=False)]


class Settings(BaseModel):
    """Frozen settings of one strategy, map, encoding, … with the name `type`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    source: ClassVar[str]
    """The paper or the code that it is from."""
    type: str


def single_error(message: str) -> WrapValidator:
    """Report a single error for a value of a union type, not one per member."""

    def validator(value: Any, handler: Callable[[Any], Any]) -> Any:
        try:
            return handler(value)
        except ValidationError:
            raise PydanticCustomError("one_of_several", message) from None  # type: ignore[arg-type]

    return WrapValidator(validator)
