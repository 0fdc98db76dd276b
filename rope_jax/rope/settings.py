"""Settings of strategies, maps and encodings: their base class, their types and their errors."""

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, TypeVar

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

    def validator(value: object, handler: Callable[[object], object]) -> object:
        try:
            return handler(value)
        except ValidationError:
            raise PydanticCustomError("one_of_several", message) from None  # type: ignore[arg-type]

    return WrapValidator(validator)


Model = TypeVar("Model", bound=BaseModel)


def validated(schema: type[Model], settings: Mapping[str, Any], prefix: str = "") -> Model:
    """Return the model with some settings.

    ValueError: one line that begins with the first wrong key, after `prefix`, and says what its
    value should be.
    """
    try:
        return schema.model_validate(settings)
    except ValidationError as error:
        raise ValueError(f"{prefix}{_first_error(error, schema, settings)}") from None


def _first_error(
    error: ValidationError, schema: type[BaseModel], settings: Mapping[str, Any]
) -> str:
    # A missing key is often one that is misspelt: report unknown keys first.
    first = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    keys: list[str] = []
    node: Any = settings
    for part in first["loc"]:
        # pydantic also names the members of unions on the way, which are no keys
        if not (isinstance(node, Mapping) and part not in node and part == node.get("type")):
            keys.append(str(part))
            node = node.get(part) if isinstance(node, Mapping) else None
    if first["type"].startswith("union_tag"):
        keys.append("type")
    key = ".".join(keys)
    if first["type"] == "missing":
        return f"{key}: is required but was not given"
    if first["type"] == "extra_forbidden":
        known = [name for name in schema.model_fields if name != "type"]
        return f"{key}: unknown key; the keys here are {', '.join(known)}"
    message = re.sub("^(Value error, |Input )", "", first["msg"])
    begin = f"{key}: " if key else ""
    if first["type"] == "value_error":  # raised by a model, whose message has the values
        return f"{begin}{message}"
    return f"{begin}{message[:1].lower() + message[1:]}, not {first['input']!r}"
